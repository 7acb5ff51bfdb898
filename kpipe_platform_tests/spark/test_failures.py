"""Whose fault a failed Spark job was: told from Spark's text, because of a failed task the driver gets no more."""

from __future__ import annotations

import pytest

from kpipe_platform.errors import (
    BrokerUnavailableError,
    EngineUnavailableError,
    EnvironmentSetupError,
    FencedError,
    KpipeError,
    LostRangeError,
    StageFailedError,
)
from kpipe_platform.spark.failures import classify, root_cause

PYTHON_UDF = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "stage.py", line 3, in price
    return 1 / quantity
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed to find data source: kafka. Please deploy the application", EnvironmentSetupError),
        ("ModuleNotFoundError: No module named 'pyarrow'", EnvironmentSetupError),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", EngineUnavailableError),
        ("java.io.IOException: No space left on device", EngineUnavailableError),
        ("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", EngineUnavailableError),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before", BrokerUnavailableError),
        ("java.lang.IllegalStateException: Cannot fetch offset 17 (GroupId: ...)", LostRangeError),
        (PYTHON_UDF, StageFailedError),
        ('[CAST_INVALID_INPUT] The value \'n1\' of the type "STRING" cannot be cast to "INT"', StageFailedError),
    ],
)
def test_kinds(text: str, kind: type[KpipeError]) -> None:
    found = classify(RuntimeError(text), "orders/0 [0, 5)")
    assert type(found) is kind
    assert "orders/0 [0, 5)" in str(found)
    assert found.fix


def test_the_cause_is_the_users_own_error_not_sparks_wrapper() -> None:
    assert root_cause(RuntimeError(PYTHON_UDF)) == "ZeroDivisionError: division by zero"
    java = "Job aborted due to stage failure\nCaused by: org.example.BadRowException: row 7\n\tat x"
    assert root_cause(RuntimeError(java)) == "BadRowException: row 7"


def test_our_own_errors_stay_what_they_are() -> None:
    fenced = FencedError("a newer run took over")
    assert classify(fenced, "somewhere") is fenced

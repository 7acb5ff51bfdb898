"""Whose fault a failed Spark job was: told from Spark's text, because of a failed task the driver gets no more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty, PythonProxyPool
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from kpipe_platform.errors import (
    BrokerUnavailableError,
    ConfigError,
    EngineUnavailableError,
    EnvironmentSetupError,
    FencedError,
    KpipeError,
    LostRangeError,
    StageFailedError,
    TransientError,
)
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.policies.faults import Fault
from kpipe_platform.spark import _compat
from kpipe_platform.spark.causes import Cause, is_sparks
from kpipe_platform.spark.engine.session import get_session
from kpipe_platform.spark.engine.settings import EngineSettings
from kpipe_platform.spark.failures import classify, root_cause

NO_ANSWER = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.{status}
\tdetails = "{details}"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""
REFUSED = NO_ANSWER.format(status="UNAVAILABLE", details="failed to connect to all addresses; Connection refused")
PYTHON_UDF = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "stage.py", line 3, in price
    return 1 / quantity
ZeroDivisionError: division by zero
"""


class SparksError(Exception):
    """What Spark raises on the driver: a text, and for its own errors a condition with an SQLSTATE."""

    def __init__(self, text: str, condition: str | None = None, state: str | None = None) -> None:
        super().__init__(text)
        self._condition, self._state = condition, state

    def getCondition(self) -> str | None:
        return self._condition

    def getSqlState(self) -> str | None:
        return self._state


SparksError.__module__ = "pyspark.errors"


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (REFUSED, None),
        (NO_ANSWER.format(status="UNAVAILABLE", details="Socket closed"), None),
        (NO_ANSWER.format(status="UNKNOWN", details="Stream removed"), None),
        (NO_ANSWER.format(status="UNAUTHENTICATED", details="Invalid authentication token"), None),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed.", "INVALID_HANDLE.SESSION_CLOSED"),
        ("[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted.", None),
        ("Cannot invoke RPC on closed channel!", None),
    ],
)
def test_a_connect_server_that_is_gone_is_no_fault_of_the_data(text: str, condition: str | None) -> None:
    found = classify(SparksError(text, condition, "HY000" if condition else None), "orders/0 [0, 5)")
    assert type(found) is EngineUnavailableError
    assert "kpipe spark start" in str(found.fix)


def test_what_a_connect_client_got_for_an_answer_is_the_cause() -> None:
    assert root_cause(SparksError(REFUSED)) == "UNAVAILABLE: failed to connect to all addresses; Connection refused"


def test_a_connect_clients_text_holds_the_cause_twice_and_the_second_is_cut_off() -> None:
    again = "\n\nJVM stacktrace:\norg.apache.spark.SparkException: "
    python = classify(SparksError(PYTHON_UDF + again + PYTHON_UDF[:120]), "orders/0 [0, 5)")
    assert python.cause == "ZeroDivisionError: division by zero"
    raised = f"[USER_RAISED_EXCEPTION] poison 3 SQLSTATE: P0001{again}[USER_RAISED_EXCEPTION] poi"
    spark = classify(SparksError(raised, "USER_RAISED_EXCEPTION", "P0001"), "orders/0 [0, 5)")
    assert isinstance(spark, StageFailedError)
    assert spark.isolable
    assert spark.source.message == "poison 3"


def test_a_session_without_avro_is_no_fault_of_the_data() -> None:
    text = "[AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE] Cannot call the FROM_AVRO SQL function SQLSTATE: 22KD3"
    found = classify(SparksError(text, "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE", "22KD3"), "orders/0 [0, 5)")
    assert isinstance(found, ConfigError)
    assert "org.apache.spark:spark-avro_2.13:4.2.0" in (found.fix or "")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Failed to find data source: kafka. Please deploy the application", EnvironmentSetupError),
        ("java.lang.ClassNotFoundException: org.apache.spark.sql.kafka010.KafkaSourceProvider", EnvironmentSetupError),
        # The connector's own frames are in the trace of all that it fails on.
        (
            "TimeoutException: Timed out waiting for a node assignment. Call: listNodes\n"
            "\tat org.apache.spark.sql.kafka010.ConsumerStrategy.retrieveAllPartitions(ConsumerStrategy.scala:66)",
            BrokerUnavailableError,
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", EnvironmentSetupError),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", EngineUnavailableError),
        ("java.io.IOException: No space left on device", EngineUnavailableError),
        ("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", EngineUnavailableError),
        (
            "javax.security.auth.login.LoginException: An internal error occurred while retrieving token from callback "
            "handler",
            BrokerUnavailableError,
        ),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before", BrokerUnavailableError),
        ("java.lang.IllegalStateException: Cannot fetch offset 17 (GroupId: ...)", LostRangeError),
        (PYTHON_UDF, StageFailedError),
        ('[CAST_INVALID_INPUT] The value \'n1\' of the type "STRING" cannot be cast to "INT"', StageFailedError),
    ],
)
def test_kinds(text: str, kind: type[KpipeError]) -> None:
    found = classify(SparksError(text), "orders/0 [0, 5)")
    assert type(found) is kind
    assert "orders/0 [0, 5)" in str(found)
    assert found.fix


def test_the_cause_is_the_users_own_error_not_sparks_wrapper() -> None:
    assert root_cause(SparksError(PYTHON_UDF)) == "ZeroDivisionError: division by zero"
    java = "Job aborted due to stage failure\nCaused by: org.example.BadRowException: row 7\n\tat x"
    assert root_cause(SparksError(java)) == "BadRowException: row 7"


def test_our_own_errors_stay_what_they_are() -> None:
    fenced = FencedError("a newer run took over")
    assert classify(fenced, "somewhere") is fenced


CAST = """[CAST_INVALID_INPUT] The value 'n1' of the type "STRING" cannot be cast to "INT". SQLSTATE: 22018
== DataFrame ==
"cast" was called from
/work/stage.py:23
"""


def python(name: str, message: str, file: str = "/work/stage.py") -> SparksError:
    """What the driver gets of an exception in a Python worker."""
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "{file}", line 3, in price\n    return ask(x)\n{name}: {message}\n'
    )
    return SparksError(text, "PYTHON_EXCEPTION", "38000")


def test_an_extra_that_workers_lack_is_named_with_its_place() -> None:
    inside = "/packages/kpipe_platform/codecs/protobuf/_compat.py"
    by_import = python(
        "ModuleNotFoundError", "No module named 'fastavro'", inside.replace("protobuf/_compat", "avro/records")
    )
    fix = "pip install 'kpipe-platform[protobuf]'"
    by_check = python("kpipe_platform.errors.EnvironmentSetupError", f"ptars is missing.\n  How to fix: {fix}", inside)
    for error, extra in ((by_import, "avro"), (by_check, "protobuf")):
        found = classify(error, "orders/0 [0, 5)")
        assert type(found) is EnvironmentSetupError
        assert f"kpipe-platform[{extra}]" in str(found)
        assert "kpipe spark pack" in str(found)
        assert "Spark's Python workers" in str(found)
    # A package of the same name that the stage imports.
    assert type(classify(python("ModuleNotFoundError", "No module named 'google'"), "orders/0")) is StageFailedError


def fault_of(error: BaseException) -> Fault:
    found = classify(error, "orders/0 [0, 5)")
    assert isinstance(found, StageFailedError)
    assert found.isolable
    cause: Cause = found.source
    return cause.fault(17)


def test_an_expressions_fault_has_its_condition_and_the_place_that_called_it() -> None:
    fault = fault_of(SparksError(CAST, "CAST_INVALID_INPUT", "22018"))
    assert (fault.kind, fault.exception_type) == ("CAST_INVALID_INPUT", "SparksError")
    assert fault.message == 'The value \'n1\' of the type "STRING" cannot be cast to "INT".'
    assert fault.stacktrace is not None
    assert "/work/stage.py:23" in fault.stacktrace


def test_a_python_functions_fault_has_its_own_type_whole_message_and_traceback() -> None:
    fault = fault_of(python("shop.errors.BadPrice", "seven is not\nallowed"))
    assert (fault.kind, fault.exception_type) == ("BadPrice", "shop.errors.BadPrice")
    assert fault.message == "seven is not\nallowed"
    assert fault.stacktrace is not None
    assert 'File "/work/stage.py", line 3, in price' in fault.stacktrace
    assert "An exception was thrown from the Python worker" not in fault.stacktrace


def test_a_stage_that_raises_on_the_driver_keeps_its_own_type() -> None:
    try:
        int("n1")
    except ValueError as error:
        fault = fault_of(error)
    assert (fault.kind, fault.exception_type) == ("ValueError", "ValueError")
    assert fault.stacktrace is not None
    assert "test_failures.py" in fault.stacktrace


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "refused"),
        TimeoutError("no answer"),
        python("ConnectionResetError", "[Errno 104]"),
        python("requests.exceptions.ReadTimeout", "read timed out"),
        python("urllib.error.URLError", "<urlopen error>"),
        python("socket.gaierror", "[Errno -2]"),
        python("kpipe_platform.errors.BrokerUnavailableError", "no broker"),
        python("MemoryError", ""),
        python("OSError", "[Errno 28] No space left on device"),
        SparksError("java.net.SocketException: Connection reset"),
    ],
)
def test_what_is_not_the_records_fault_is_transient(error: Exception) -> None:
    assert isinstance(classify(error, "orders/0 [0, 5)"), TransientError)


def socket_of_java() -> None:
    """PySpark's own way to call Java, where nobody listens any more."""
    shared = GatewayProperty(auto_field=True, pool=PythonProxyPool())
    JavaClient(JavaParameters(port=free_port()), PythonParameters(), shared).send_command("r\nu\norg.apache.spark\ne\n")


def no_answer_of_java() -> None:
    msg = "Answer from Java side is empty"
    raise Py4JNetworkError(msg)


# py4j raises these for a Java process that ends during a call, and for a mistake.
DURING_A_CALL = [
    "An error occurred while calling z:org.apache.spark.sql.functions.lit",
    "org.apache.spark.sql.classic.SparkSession does not exist in the JVM",
]


@pytest.mark.parametrize("message", DURING_A_CALL)
@pytest.mark.parametrize("has_ended", [True, False])
def test_a_java_process_that_ends_during_a_call(message: str, has_ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as java:
        monkeypatch.setattr(_compat, "jvm_process", lambda: java)
        if has_ended:
            java.kill()
        found = classify(Py4JError(message), "orders/0 [0, 5)")
        java.kill()
    assert isinstance(found, EngineUnavailableError if has_ended else StageFailedError)


@pytest.mark.parametrize("call", [socket_of_java, no_answer_of_java])
def test_a_java_process_that_is_gone_is_no_service_of_the_stage(call: Callable[[], None]) -> None:
    with pytest.raises((OSError, Py4JNetworkError)) as caught:
        call()
    assert is_sparks(caught.value)
    found = classify(caught.value, "orders/0 [0, 5)")
    assert isinstance(found, EngineUnavailableError)
    assert str(found).startswith(
        "the Java process of Spark, which this process started, no longer runs while processing orders/0"
    )
    assert "in a new process" in str(found)


@pytest.mark.parametrize("call", [socket_of_java, no_answer_of_java])
def test_a_session_whose_java_process_is_gone_is_told(
    call: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", call)
    with pytest.raises(
        EngineUnavailableError, match="Java process of Spark, which this process started, no longer runs"
    ):
        get_session(EngineSettings())


@pytest.mark.parametrize(
    "error",
    [
        python("ValueError", "Connection refused by the customer"),
        python("KeyError", "'java.lang.OutOfMemoryError'"),
        SparksError("[USER_RAISED_EXCEPTION] Connection refused SQLSTATE: P0001", "USER_RAISED_EXCEPTION", "P0001"),
    ],
)
def test_a_records_own_text_decides_nothing(error: Exception) -> None:
    assert isinstance(classify(error, "orders/0 [0, 5)"), StageFailedError)


@pytest.mark.parametrize(
    "error",
    [
        SparksError("[UNRESOLVED_COLUMN] amuont", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"),
        python("NameError", "name 'amuont' is not defined"),
        python("ModuleNotFoundError", "No module named 'shop'"),
        python("ValueError", "x", "/lib/kpipe_platform/spark/sink/task/writer.py"),
    ],
)
def test_what_fails_on_every_record_is_not_isolated(error: Exception) -> None:
    found = classify(error, "orders/0 [0, 5)")
    assert isinstance(found, StageFailedError)
    assert not found.isolable

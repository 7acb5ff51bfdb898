"""Spark's exceptions as kpipe's: whose fault was it, the data's and the stage's, or the platform's?"""

from __future__ import annotations

import re

from kpipe_platform.errors import (
    BrokerUnavailableError,
    EngineUnavailableError,
    EnvironmentSetupError,
    KpipeError,
    LostRangeError,
    StageFailedError,
    TransientError,
)

# Marks in the text of the exception chain. Spark hands the driver texts, not types: of a failed task there is only
# the stack trace, and over Connect there is only the message.
_MARKS: tuple[tuple[str, type[KpipeError], str, str], ...] = (
    (
        r"Failed to find data source: kafka|NoClassDefFoundError: org/apache/kafka|kafka010",
        EnvironmentSetupError,
        "the Spark session has no Kafka connector",
        "let SparkEngine start the session, or add org.apache.spark:spark-sql-kafka-0-10_2.13 of your Spark's version",
    ),
    (
        r"No module named 'kpipe_platform'|No module named 'confluent_kafka'|No module named 'pyarrow'",
        EnvironmentSetupError,
        "Spark's Python workers lack a package",
        "start the workers with the driver's Python (PYSPARK_PYTHON), or install kpipe-platform there",
    ),
    (
        r"OutOfMemoryError|Java heap space|No space left on device|MemoryError",
        EngineUnavailableError,
        "Spark ran out of memory or disk",
        "lower max_records, or give the engine more memory (spark.driver.memory, spark.executor.memory)",
    ),
    (
        r"ExecutorLostFailure|SparkContext was shut down|Connection refused|Python worker exited unexpectedly|"
        r"SESSION_CLOSED|SESSION_NOT_FOUND|StatusCode\.UNAVAILABLE|Py4JNetworkError|Job aborted due to cancellation|"
        r"cancelled because|OPERATION_CANCELED",
        EngineUnavailableError,
        "the Spark engine was lost or the work was cancelled",
        "see the engine's log, then run again",
    ),
    (
        r"OffsetOutOfRangeException|data may have been lost|Cannot fetch offset \d+|KAFKA_DATA_LOSS",
        LostRangeError,
        "offsets of the slice were deleted while it was read",
        "run again: the plan names the lost range; raise the topic's retention",
    ),
    (
        r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|NotLeader|Coordinator|UnknownTopic)\w*|"
        r"Timeout of \d+ms expired before|Timed out waiting for a node|Failed to get records for",
        BrokerUnavailableError,
        "Spark's Kafka source got no answer from the brokers",
        "check the brokers, then run again",
    ),
)
_CAUSE = re.compile(r"^(?:Caused by: )?([\w.$]+(?:Error|Exception)): (.*)$", re.MULTILINE)
_PYTHON_CAUSE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Fault)): (.*)$", re.MULTILINE)


def classify(error: BaseException, where: str) -> KpipeError:
    """What a failed Spark job means.

    Args:
        error: What pyspark raised.
        where: The slice.

    Returns:
        A TransientError when nothing is wrong with the data; a StageFailedError otherwise.
    """
    if isinstance(error, KpipeError):
        return error
    text = str(error)
    for pattern, kind, what, fix in _MARKS:
        if re.search(pattern, text):
            return kind(f"{what}, while working on {where}: {root_cause(error)}", fix=fix)
    if isinstance(error, ConnectionError):
        return TransientError(f"the connection to Spark broke while working on {where}: {error}", fix="run again")
    return StageFailedError(
        f"the stage failed on {where}: {root_cause(error)}",
        fix="mend the stage or the data; offsets are unmoved, so the same slice is taken again",
        cause=root_cause(error),
    )


def is_sparks(error: BaseException) -> bool:
    """True for an exception of Spark's, on classic or over Connect, not of the user's own code."""
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j", "grpc")


def root_cause(error: BaseException) -> str:
    """One line: the innermost cause that Spark's text names, not Spark's wrapper."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        found = _PYTHON_CAUSE.findall(text)
        if found:
            return f"{found[-1][0]}: {found[-1][1]}"[:500]
    condition = getattr(error, "getCondition", None)
    if callable(condition) and condition() is not None:
        return text.strip().splitlines()[0][:500]
    causes = _CAUSE.findall(text)
    if causes:
        return f"{causes[-1][0].rsplit('.', 1)[-1]}: {causes[-1][1]}"[:500]
    lines = text.strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]

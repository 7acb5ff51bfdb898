"""Conversion of Spark's exceptions to kpipe's: stage failures are distinguished from failures of the platform."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyspark

from kpipe_platform import errors
from kpipe_platform.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    BrokerUnavailableError,
    ConfigError,
    EngineUnavailableError,
    EnvironmentSetupError,
    KpipeError,
    LostRangeError,
    StageFailedError,
    TransientError,
)
from kpipe_platform.kafka.client.sasl import MSK_COORDINATE
from kpipe_platform.policies.faults import qualified_name
from kpipe_platform.spark.causes import Cause, cause_of, is_of_lost_java, is_sparks, text_of

# Patterns for errors of Spark that contain neither a Python exception nor a condition that data can cause.
_MARKS: tuple[tuple[str, type[KpipeError], str, str], ...] = (
    (
        r"Failed to find data source: kafka|NoClassDefFoundError: org/apache/kafka|"
        r"ClassNotFoundException: org\.apache\.spark\.sql\.kafka010",
        EnvironmentSetupError,
        "the Spark session has no Kafka connector",
        "let SparkEngine start the session, or add org.apache.spark:spark-sql-kafka-0-10_2.13 in your Spark version",
    ),
    (
        r"for configuration sasl\.\S+: Class \S+ could not be found|No LoginModule found for \S+",
        EnvironmentSetupError,
        "Spark's Kafka client lacks a class that the connection needs",
        "add the jar of the class to spark.jars.packages, where the Spark session is started first; for AWS_MSK_IAM it "
        f"is {MSK_COORDINATE}",
    ),
    (
        # Kafka's client does not pass on the cause. A refusal is found before, when the slice is planned.
        r"LoginException: An internal error occurred while retrieving token from callback handler",
        BrokerUnavailableError,
        "Spark's Kafka client got no token from the token endpoint",
        "check that Spark's driver and executors reach the token endpoint (oauth_token_url), then run again",
    ),
    (
        r"org\.apache\.kafka\.common\.errors\.(Sasl|Ssl)?AuthenticationException|LoginException|"
        r"javax\.net\.ssl\.SSL\w+Exception|InvalidKeySpecException|InvalidConfigurationException: .*PEM",
        AuthenticationFailedError,
        "the brokers or the token endpoint refuse Spark's Kafka source",
        "check the security_protocol, sasl_*, oauth_* and ssl_* settings of KafkaConnection; Spark's executors need "
        "the same files",
    ),
    (
        r"OutOfMemoryError|Java heap space|No space left on device|MemoryError|UNABLE_TO_ACQUIRE_MEMORY",
        EngineUnavailableError,
        "Spark ran out of memory or disk",
        "lower max_records, or give the engine more memory (spark.driver.memory, spark.executor.memory)",
    ),
    (
        r"of RPC that terminated with|SESSION_CLOSED|SESSION_NOT_FOUND|SESSION_CHANGED|closed channel|"
        # A restarted server requires another token.
        r"StatusCode\.(UNAVAILABLE|UNAUTHENTICATED)",
        EngineUnavailableError,
        "the connection to the Spark Connect server was lost, or the server was restarted",
        "see its log (kpipe spark status), start it again if it is gone (kpipe spark start), then run again",
    ),
    (
        r"ExecutorLostFailure|SparkContext was shut down|Connection refused|Python worker exited unexpectedly|"
        r"INVALID_HANDLE|Py4JNetworkError|"
        r"Job aborted due to cancellation|cancelled because|OPERATION_CANCELED|SPARK_JOB_CANCELLED|"
        r"Error while sending or receiving|java\.net\.\w+Exception",
        EngineUnavailableError,
        "the Spark engine was lost, or its job was canceled",
        "see the engine's log, then run again",
    ),
    (
        r"OffsetOutOfRangeException|data may have been lost|Cannot fetch offset \d+|KAFKA_DATA_LOSS",
        LostRangeError,
        "offsets of the slice were deleted while it was read",
        "run again: the next plan reports the lost range; to keep records longer, raise the topic's retention",
    ),
    (
        r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|NotLeader|Coordinator|UnknownTopic)\w*|"
        r"Timeout of \d+ms expired before|Timed out waiting for a node|Failed to get records for",
        BrokerUnavailableError,
        "Spark's Kafka source got no response from the brokers",
        "check the brokers, then run again",
    ),
)
# Not from jvm.jars, whose packages tasks do not have.
_PACKAGES = ",".join(
    f"org.apache.spark:{name}_2.13:{pyspark.__version__}" for name in ("spark-sql-kafka-0-10", "spark-avro")
)
_ADD_AVRO = (
    f'spark_config={{"spark.jars.packages": "{_PACKAGES}"}} where the session is started first, in a new process; or '
    "let SparkEngine start the session"
)
_MISSING_PACKAGE = re.compile(
    r"No module named '(kpipe_platform|confluent_kafka|pyarrow|fastavro|google|ptars|jsonschema_rs)"
)
# Packages of codecs, by the extra. A stage may import others of the same name.
_EXTRAS = {"fastavro": "[avro]", "google": "[protobuf]", "ptars": "[protobuf]", "jsonschema_rs": "[jsonschema]"}
_PACK = "for a cluster: kpipe spark pack, then kpipe spark start --archive"

_DENIED = re.compile(r"(?:Topic|Group)AuthorizationException: Not authorized to access (topic|group)s?: \[?([^\]\s]+)")
# Exceptions of a Python function that its record does not cause: a service that the function calls is unreachable.
_AWAY = re.compile(
    r"(Timeout|TimeoutError|TimeoutException|ConnectTimeout|ReadTimeout|ConnectError|ConnectionError|BrokenPipeError|"
    r"Connection\w*Error|NewConnectionError|MaxRetryError|RemoteDisconnected|URLError|gaierror|ServiceUnavailable|"
    r"TransientError|BrokerUnavailableError|CommitUnknownError|DeliveryError|EngineUnavailableError)$"
)
# Not certain: a stage can overflow too, and if several Spark stages fail at the same time, Spark gives no reason.
_TIMESTAMP = re.compile(
    r"that overflows when converting to Spark|^\S* long overflow$|STAGE_MATERIALIZATION_MULTIPLE_FAILURES"
)
_EXHAUSTED = re.compile(r"(^|\.)MemoryError$|No space left on device|\[Errno 28\]|Too many open files|\[Errno 24\]")
# Programming errors, which fail on every record.
_MISTAKES = (
    *("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError", "PicklingError"),
    *("ConfigError", "NotImplementedError"),
)
# SQLSTATE classes of conditions that one record can cause: data, cardinality, constraint, external routine, raised
# errors.
_DATA_STATES = ("21", "22", "23", "38", "39", "P0")
_OWN = "kpipe_platform/"
_OWN_TASK = re.compile(r"kpipe_platform/(spark/sink/task/|spark/source/dead_letters|dead_letters/|kafka/)")


def is_classified(error: BaseException) -> bool:
    """Whether an error is a classified kpipe error. A ``StageFailedError`` that a stage raises itself is not."""
    return isinstance(error, KpipeError) and (not isinstance(error, StageFailedError) or "isolable" in error.attributes)


@contextmanager
def classified(where: str) -> Iterator[None]:
    """Raise Spark's exceptions of a block as kpipe errors. Other exceptions are raised unchanged.

    Args:
        where: The slice, for the message.
    """
    try:
        yield
    except KpipeError:
        raise
    except Exception as error:
        if is_sparks(error):
            raise classify(error, where) from error
        raise


def classify(error: BaseException, where: str) -> KpipeError:
    """Convert the exception of a Spark job, or of a stage on the driver, to a kpipe error.

    Args:
        error: The exception.
        where: The slice, for the message.

    Returns:
        A ``StageFailedError`` if the stage or the data is the reason; its ``isolable`` is True if a single record may
        be the cause, and ``source`` has the `Cause`. Otherwise another typed error, for example ``TransientError`` for
        a service that does not respond.
    """
    if isinstance(error, KpipeError) and is_classified(error):
        return error
    cause = cause_of(error)
    text = text_of(error)
    if is_of_lost_java(error):
        return java_lost(f" while processing {where}: {cause}")
    if is_sparks(error) and (missing := _MISSING_PACKAGE.search(text)) is not None:
        extra = _EXTRAS.get(missing.group(1), "")
        if not extra or _OWN in (cause.file or ""):
            return EnvironmentSetupError(
                f"Spark's Python workers lack a package while processing {where}: {cause}",
                fix="start the workers with the driver's Python (PYSPARK_PYTHON), or pip install "
                f"'kpipe-platform{extra}' there; {_PACK}",
            )
    if cause.language == "python":
        if (own := _own_error(cause, where)) is not None:
            return own
        if _EXHAUSTED.search(cause.exception_type) or _EXHAUSTED.search(cause.message):
            return EngineUnavailableError(
                f"a Python function ran out of memory, disk space or open files while processing {where}: {cause}",
                fix="lower max_records, or raise this limit for the workers",
            )
        if isinstance(error, ConnectionError | TimeoutError) or _AWAY.search(cause.exception_type):
            away = TransientError(
                f"a service that the stage calls did not respond while processing {where}: {cause}",
                fix="check that service, then run again; offsets did not move",
                cause=str(cause),
                exception_type=cause.exception_type,
            )
            away.part = "stage"
            return away
    elif (cause.condition or "").startswith("AVRO_NOT_LOADED"):
        # Spark gives it a SQLSTATE of the data.
        return ConfigError(f"the Spark session has no functions for Avro, for {where}", fix=_ADD_AVRO)
    elif cause.sql_state is None or not cause.sql_state.startswith(_DATA_STATES):
        if (denied := _DENIED.search(text)) is not None:
            acl = f"Read on {denied.group(1)} {denied.group(2)}"
            msg = f"an ACL denies a call of Spark's Kafka source while processing {where}: {cause}"
            return AuthorizationFailedError(msg, fix=f"grant {acl} to the principal of the connection", acl=acl)
        for pattern, kind, what, fix in _MARKS:
            if re.search(pattern, text):
                typed = kind(f"{what} while processing {where}: {cause}", fix=fix)
                typed.part = "source" if kind is BrokerUnavailableError else None
                return typed
    return _stage_failed(cause, where)


def _own_error(cause: Cause, where: str) -> KpipeError | None:
    """Rebuild an error that kpipe's own code raised in a Python worker, for example its Kafka client."""
    kind = getattr(errors, cause.exception_type.rpartition("kpipe_platform.errors.")[2], None)
    if not (isinstance(kind, type) and issubclass(kind, KpipeError)):
        return None
    message, _, fix = cause.message.partition("\n  How to fix: ")
    if kind is EnvironmentSetupError and _OWN in (cause.file or ""):
        # For example an extra of a codec, which the driver has.
        message, fix = f"{message.rstrip('.')} where Spark's Python workers run,", f"{fix.strip()}, there too; {_PACK}"
    elif not _OWN_TASK.search(cause.file or ""):
        return None
    return kind(f"{message} while processing {where}", fix=fix.strip() or None)


def java_lost(when: str) -> EngineUnavailableError:
    """The error for a Spark session in this process whose Java process is gone.

    Args:
        when: End of the message's sentence.
    """
    return EngineUnavailableError(
        f"the Java process of Spark, which this process started, no longer runs{when}",
        fix="run again in a new process, as Dagster's launcher does, because PySpark starts Java once per process; if "
        "Java was killed for lack of memory, lower max_records or add memory",
    )


def is_away(error: BaseException | None) -> bool:
    """Whether an exception, or one in its ``__cause__`` chain, has another cause than the record being processed."""
    while error is not None:
        if isinstance(error, ConnectionError | TimeoutError | MemoryError | TransientError):
            return True
        if _AWAY.search(qualified_name(type(error))) or (isinstance(error, OSError) and _EXHAUSTED.search(str(error))):
            return True
        error = error.__cause__
    return False


def _stage_failed(cause: Cause, where: str) -> StageFailedError:
    return StageFailedError(
        f"the stage failed on {where}: {cause}",
        fix="fix the stage or the data, then run again; offsets did not move, so the next run reads the same records",
        cause=str(cause),
        source=cause,
        exception_type=cause.exception_type,
        isolable=_is_isolable(cause),
    )


def _is_isolable(cause: Cause) -> bool:
    if cause.language == "python":
        inside = cause.file is not None and _OWN_TASK.search(cause.file)
        return not inside and cause.exception_type.rsplit(".", 1)[-1] not in _MISTAKES
    # A plan that Spark cannot analyze fails on every slice.
    return cause.condition is None or (cause.sql_state or "").startswith(_DATA_STATES)


def may_be_timestamp(error: StageFailedError) -> bool:
    """Whether the failure may come from Spark's Kafka source, for a timestamp that it cannot convert."""
    cause = error.attributes.get("source")
    return isinstance(cause, Cause) and _TIMESTAMP.search(f"{cause.condition} {cause.message}") is not None


def root_cause(error: BaseException) -> str:
    """The innermost cause of an exception in one line, without Spark's wrapper."""
    return str(cause_of(error))


__all__ = ["classified", "classify", "is_away", "is_sparks", "java_lost", "may_be_timestamp", "root_cause"]

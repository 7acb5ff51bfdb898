"""The behavior of librdkafka and its Python client that kpipe relies on and that no documented API offers.

Most of it is error texts: librdkafka has a cause, but its Python client passes on only the text. No other module of the
package compares librdkafka's texts. ``kpipe_platform_tests/kafka/client/test_compat.py`` tests each function against a
real broker and names the librdkafka version. It fails first when librdkafka is upgraded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Producer

__all__ = [
    "MAX_PURGED",
    "PURGED_CODES",
    "denied_cause",
    "fatal_cause",
    "has_feature",
    "ignored_by_producer",
    "is_refused",
    "is_token_endpoint_away",
    "is_unknown_property",
    "is_untrusted",
    "producer_fatal_cause",
    "serve_reports",
]

_DENIED_CODES = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
PURGED_CODES = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""After a failure and an abort, librdkafka purges records that are produced while it resets its sequence numbers."""
MAX_PURGED = 5
"""More consecutive purges than this have another cause."""

# Causes of a consumer's fatal error that kpipe distinguishes.
_FATAL_CAUSES = (
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.UNRELEASED_INSTANCE_ID,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
)
_REFUSED_CODES = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)
# Texts of libcurl, with which librdkafka calls the token endpoint.
_ENDPOINT_AWAY = re.compile(
    r"Failed to acquire SASL OAUTHBEARER token.*(Failed to connect|Could not (connect|resolve)|timed out|"
    r"Timeout was reached|Connection reset|Empty reply|Recv failure|HTTP error 5\d\d)",
    re.DOTALL,
)
# Timeout of the call that returns a fatal error's cause, seconds. A client with a fatal error sends no request for it.
_ANSWERED_S = 1.0


def fatal_cause(error: KafkaError) -> KafkaError:
    """Return the cause of a consumer's fatal error; the client reports the cause's text, but not its code.

    ``rd_kafka_fatal_error`` returns the code. The Python client does not call it for a consumer.
    """
    if error.code() == KafkaError._FATAL:
        for code in _FATAL_CAUSES:
            if KafkaError(code).str() in error.str():
                return KafkaError(code, fatal=True)
    return error


def producer_fatal_cause(producer: Producer, error: KafkaError) -> KafkaError:
    """Return the cause of a transactional producer's fatal error; the client reports it when it tries to abort.

    Args:
        producer: The producer that reported the error.
        error: The fatal error, to return if the client reports no cause.
    """
    try:
        producer.abort_transaction(_ANSWERED_S)
    except KafkaException as exception:
        cause: KafkaError = exception.args[0]
        return cause
    return error


def denied_cause(producer: Producer, error: KafkaError) -> KafkaError:
    """Return the denied call for which an open transaction must be aborted, if there is one.

    The client then reports only that it purged the records. A request in a wrong state returns the transaction's error.
    To begin an open transaction is always such a request, and changes nothing.

    Args:
        producer: The producer, with an open transaction.
        error: The reported error, to return if it is another one, or if no call was denied.
    """
    if error.code() not in PURGED_CODES:
        return error
    try:
        producer.begin_transaction()
    except KafkaException as exception:
        cause: KafkaError = exception.args[0]
        if cause.code() in _DENIED_CODES:
            return cause
    return error


def serve_reports(call: Callable[[], int]) -> int:
    """Serve a producer's delivery reports, with its ``poll`` or ``flush``.

    Raises:
        KafkaException: A fatal error of the producer. The client sets it as the current exception and still calls the
            callback for each record. Python then raises a SystemError, because an exception was already set when a
            callback returned.
    """
    try:
        return call()
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def has_feature(feature: str) -> bool:
    """Whether librdkafka was built with a feature, for example ``gssapi``. It has no call that lists the features.

    Args:
        feature: Name of the feature, a value of ``builtin.features``.
    """
    try:
        Producer({"builtin.features": feature})
    except KafkaException:
        return False
    return True


def is_refused(error: KafkaError) -> bool:
    """Whether the brokers or the token endpoint refuse the client; a retry does not fix it.

    With TLS 1.3, a broker that refuses the client's certificate closes the connection after the handshake. librdkafka
    reports that as a lost connection.
    """
    if error.code() == KafkaError._TRANSPORT:
        return "SSL alert number" in error.str()
    return error.code() in _REFUSED_CODES


def is_token_endpoint_away(error: KafkaError) -> bool:
    """Whether the token endpoint does not respond. The code is that of a token that the endpoint refuses."""
    return error.code() == KafkaError._AUTHENTICATION and _ENDPOINT_AWAY.search(error.str()) is not None


def is_untrusted(error: KafkaError) -> bool:
    """Whether the client does not accept the brokers' certificate. librdkafka does not report the reason."""
    return error.code() == KafkaError._SSL and "certificate verify failed" in error.str()


def is_unknown_property(refusal: str) -> bool:
    """Whether librdkafka refuses a property because of its name. A wrong value has the same error code.

    Args:
        refusal: The text of the error.
    """
    return "No such configuration" in refusal


def ignored_by_producer(lines: Iterable[str]) -> str | None:
    """Return the first log line that reports an ignored property of a producer. There is no error for it.

    Args:
        lines: Log lines of a new producer.

    Returns:
        The line without its prefix; None if there is none.
    """
    return next((line.rpartition("]: ")[2] for line in lines if "will be ignored" in line), None)

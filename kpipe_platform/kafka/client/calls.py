"""Broker calls with a deadline, and conversion of Kafka error codes to typed kpipe errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential
from tenacity.retry import retry_base

from kpipe_platform.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    BrokerUnavailableError,
    DeliveryError,
    FencedError,
    KpipeError,
    TerminalError,
    TopicNotFoundError,
    TransientError,
)
from kpipe_platform.kafka.client._compat import is_refused, is_token_endpoint_away, is_untrusted
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings

Key = TypeVar("Key")
Result = TypeVar("Result")

# Extra wait after the request's own timeout, seconds. librdkafka reports the timeout itself, so this only guards
# against a client that never answers.
_GRACE_S = 2.0

# The kind of resource that an ACL is for, with the attribute that has its name, and the operation.
_AUTHORIZATION: Mapping[int, tuple[str, str, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("topic", "topic", "Describe"),
    # Reading a group's offsets needs only Describe, which Read includes; committing them needs Read.
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("group", "group", "Read"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("transactional id", "transactional_id", "Write"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: ("the cluster", "", "IdempotentWrite"),
}
NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Temporary errors after a broker starts, after a topic is created, or while a leader moves."""
_UNAVAILABLE = NO_LEADER | {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
_MOMENTARY = NO_LEADER | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
}
FENCED_CODES = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.TRANSACTION_COORDINATOR_FENCED,
}
# Errors that a record causes, alone or in a batch. No other error is caused by a record.
REFUSED_CODES = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_MSG,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError._INVALID_DIFFERENT_RECORD,
}
_UNKNOWN_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}


def kafka_error(exception: KafkaException) -> KafkaError:
    """Return the KafkaError of a KafkaException."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


def translate(
    error: KafkaError | KafkaException,
    settings: ConnectionSettings,
    what: str,
    *,
    needs: str | None = None,
    **where: Any,
) -> KpipeError:
    """Convert a Kafka error to a kpipe error, terminal or transient by type, with what failed, where and a fix.

    Args:
        error: The error that a client raised or reported.
        settings: The connection, for its servers and for redaction.
        what: The action that failed, as a phrase: ``"describe topic flights"``.
        needs: The operation on topics that the action needs, ``Describe`` by default.
        **where: Attributes of the new error, for example topic and partition.
    """
    if isinstance(error, KafkaException):
        error = kafka_error(error)
    code = error.code()
    text = settings.redact(error.str() or error.name())
    message = f"cannot {what} at {settings.bootstrap_servers}: {text} ({error.name()})"
    where = {**where, "code": error.name()}
    if is_token_endpoint_away(error):
        return BrokerUnavailableError(
            message,
            fix="check that the token endpoint (oauth_token_url) is running and reachable, then run again",
            **where,
        )
    if is_untrusted(error):
        return AuthenticationFailedError(
            message,
            fix="the brokers' certificate has expired, is for another host name, or is not signed by an authority of "
            "ssl_ca_pem; for the reason: openssl s_client -connect HOST:PORT -verify_hostname HOST -CAfile CA_PEM",
            **where,
        )
    if is_refused(error):
        return AuthenticationFailedError(
            message, fix="check the security_protocol, sasl_*, oauth_* and ssl_* settings of KafkaConnection", **where
        )
    if code in _AUTHORIZATION:
        acl = _acl(code, needs, where)
        return AuthorizationFailedError(
            message, fix=f"grant {acl} to the principal of the connection", acl=acl, **where
        )
    if code in _UNKNOWN_TOPIC:
        return TopicNotFoundError(message, fix="create the topic, or correct its name", **where)
    if code in FENCED_CODES:
        return FencedError(message, fix="no action is needed: a newer run owns this partition now", **where)
    if code in _UNAVAILABLE:
        return BrokerUnavailableError(
            message,
            fix="check that the brokers are running and reachable, and that bootstrap_servers is correct; run again",
            **where,
        )
    if code == KafkaError._FATAL:
        # The error is fatal only to this client; the next run creates a new one.
        return TransientError(message, fix="run again; the next run uses a new client", **where)
    kind = TransientError if error.retriable() else TerminalError
    return kind(message, **where)


def _acl(code: int, needs: str | None, where: Mapping[str, Any]) -> str:
    """Name the ACL that is missing, for example ``Read on topic flights``."""
    resource, attribute, operation = _AUTHORIZATION[code]
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED and needs is not None:
        operation = needs
    name = where.get(attribute)
    acl = f"{operation} on {resource}{'' if name is None else f' {name}'}"
    return f"{acl} (Read and Write include it)" if operation == "Describe" else acl


def ask(
    request: Callable[[], Future[Result]], clients: Clients, what: str, *, needs: str | None = None, **where: Any
) -> Result:
    """Send a request and wait for the response within the connection's deadline.

    A broker that has just started, or a coordinator that is moving, refuses temporarily; such a request is retried
    until the deadline.

    Args:
        request: Sends the request.
        clients: The clients in use, for the deadline and for the reason of a refused connection.
        what: The request, as a phrase for error messages.
        needs: The operation on topics that the request needs, ``Describe`` by default.
        **where: Attributes of an error.

    Raises:
        KpipeError: The request failed or got no answer; a typed error.
    """
    settings = clients.settings
    retrying = until_deadline(settings, retry_if_exception(_is_momentary))
    try:
        return retrying(lambda: request().result(timeout=_longest_s(settings)))
    except KafkaException as exception:
        refusal = clients.refusal() if kafka_error(exception).code() in _UNAVAILABLE else None
        raise translate(refusal or exception, settings, what, needs=needs, **where) from exception
    except FutureTimeoutError as exception:
        raise no_answer(settings, what, **where) from exception


def until_deadline(settings: ConnectionSettings, retry: retry_base) -> Retrying:
    """Return a retry with short exponential waits until the connection's deadline; it then raises the last exception.

    Args:
        settings: The connection.
        retry: Condition for another attempt.
    """
    return Retrying(
        retry=retry,
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=stop_after_delay(settings.request_timeout_s),
        reraise=True,
    )


def ask_each(
    request: Callable[[], Mapping[Key, Future[Result]]], clients: Clients, what: Callable[[Key], RequestText]
) -> Callable[[], dict[Key, Result]]:
    """Send one request for many keys, each with its own response.

    The request has been sent when this function returns, so other requests can run concurrently. A key that is refused
    temporarily is retried separately.

    Args:
        request: Sends the request.
        clients: As for `ask`.
        what: Returns the request for one key, for error messages.

    Returns:
        A function that waits for the responses; it raises the errors of `ask`.
    """
    settings = clients.settings
    sent = request()

    def answers() -> dict[Key, Result]:
        results = {}
        for key, future in sent.items():
            try:
                # Not through `ask`: setting up its retries takes longer than the responses of a thousand partitions.
                results[key] = future.result(timeout=_longest_s(settings))
            except (KafkaException, FutureTimeoutError) as exception:
                asked = what(key)
                if isinstance(exception, FutureTimeoutError):
                    raise no_answer(settings, asked.phrase, **asked.where) from exception
                again = partial(_answer_of, request, key)
                results[key] = ask(_first_then(future, again), clients, asked.phrase, needs=asked.needs, **asked.where)
        return results

    return answers


def run_in_thread(call: Callable[[], Result]) -> Future[Result]:
    """Run a call in a new daemon thread, so that a client that never answers cannot block process exit."""
    future: Future[Result] = Future()

    def fulfil() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            future.set_exception(error)

    threading.Thread(target=fulfil, name="kpipe-call", daemon=True).start()
    return future


@dataclass(frozen=True)
class RequestText:
    """Description of a request, for errors.

    Args:
        phrase: The request as a phrase, for example ``"describe topic flights"``.
        where: Attributes of the error.
        needs: The operation on topics that the request needs, ``Describe`` by default.
    """

    phrase: str
    where: Mapping[str, Any] = field(default_factory=dict)
    needs: str | None = None


def _answer_of(request: Callable[[], Mapping[Key, Future[Result]]], key: Key) -> Future[Result]:
    return request()[key]


def _longest_s(settings: ConnectionSettings) -> float:
    return settings.request_timeout_s + _GRACE_S


def _first_then(first: Future[Result], again: Callable[[], Future[Result]]) -> Callable[[], Future[Result]]:
    """Return a function that first returns the request already sent, and then sends it again."""
    sent = [first]
    return lambda: sent.pop() if sent else again()


def _is_momentary(exception: BaseException) -> bool:
    return isinstance(exception, KafkaException) and kafka_error(exception).code() in _MOMENTARY


def no_answer(settings: ConnectionSettings, what: str, **where: Any) -> BrokerUnavailableError:
    """Build the error for a call without an answer."""
    message = f"cannot {what} at {settings.bootstrap_servers}: no answer within {settings.request_timeout_s:g} s"
    also = "" if settings.oauth_token_url is None else " and the token endpoint (oauth_token_url)"
    return BrokerUnavailableError(
        message, fix=f"check that the brokers{also} are running and reachable, then run again", **where
    )


def not_delivered(settings: ConnectionSettings, what: str, left: int, **where: Any) -> DeliveryError:
    """Build the error for records that the brokers did not acknowledge within the deadline."""
    message = f"{left:,} records of {what} were not acknowledged by {settings.bootstrap_servers}"
    return DeliveryError(message, fix="check the brokers, then run again; offsets did not move", **where)

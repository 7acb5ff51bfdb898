"""Broker calls with a deadline, and Kafka's error codes as kpipe's typed errors."""

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
from kpipe_platform.kafka.client.clients import REFUSALS, Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings

Key = TypeVar("Key")
Result = TypeVar("Result")

# How much longer than the request's own timeout the future is waited for, seconds: librdkafka answers by
# itself at its timeout, so this only guards against a client that never answers.
_GRACE_S = 2.0

_AUTHORIZATION = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
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
"""What brokers answer for a moment after their start, after that of a topic, or when a leader moves."""
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
# What a broker says of one record, or of a batch that holds such a record; anything else is not the record's fault.
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
    """The KafkaError inside a KafkaException."""
    error = exception.args[0] if exception.args else None
    return error if isinstance(error, KafkaError) else KafkaError(KafkaError._FAIL, str(exception))


def translate(error: KafkaError | KafkaException, settings: ConnectionSettings, what: str, **where: Any) -> KpipeError:
    """Kafka's error as kpipe's: terminal or transient by type, saying what and where and how to mend it.

    Args:
        error: What a client raised or reported.
        settings: The connection, for its servers and for redaction.
        what: What was tried, as a phrase: ``"describe topic flights"``.
        **where: Attributes of the new error, for example topic and partition.
    """
    if isinstance(error, KafkaException):
        error = kafka_error(error)
    code = error.code()
    text = settings.redact(error.str() or error.name())
    message = f"cannot {what} at {settings.bootstrap_servers}: {text} ({error.name()})"
    where = {**where, "code": error.name()}
    if code in REFUSALS:
        return AuthenticationFailedError(
            message, fix="check security_protocol, sasl_* and ssl_* of KafkaConnection", **where
        )
    if code in _AUTHORIZATION:
        return AuthorizationFailedError(message, fix="ask for the ACL that this call needs", **where)
    if code in _UNKNOWN_TOPIC:
        return TopicNotFoundError(message, fix="create the topic, or correct its name", **where)
    if code in FENCED_CODES:
        return FencedError(message, fix="nothing: a newer run owns this partition now", **where)
    if code in _UNAVAILABLE:
        return BrokerUnavailableError(
            message,
            fix="check that the brokers run and that bootstrap_servers and the network path are right, then run again",
            **where,
        )
    if code == KafkaError._FATAL:
        # Of the client, which the next run makes anew.
        return TransientError(message, fix="run again: that begins with a new client", **where)
    kind = TransientError if error.retriable() else TerminalError
    return kind(message, **where)


def ask(request: Callable[[], Future[Result]], clients: Clients, what: str, **where: Any) -> Result:
    """Send a request and await its answer within the connection's deadline.

    A broker that has just started, or a coordinator that moves, refuses for a moment; such a refusal is asked again
    until the deadline.

    Args:
        request: Sends the request.
        clients: Who asks, for the deadline and for why the brokers refuse.
        what: What is asked, as a phrase.
        **where: Attributes of an error.

    Raises:
        KpipeError: The answer, or no answer, as a typed error.
    """
    settings = clients.settings
    retrying = until_deadline(settings, retry_if_exception(_is_momentary))
    try:
        return retrying(lambda: request().result(timeout=_longest_s(settings)))
    except KafkaException as exception:
        refusal = clients.refusal() if kafka_error(exception).code() in _UNAVAILABLE else None
        raise translate(refusal or exception, settings, what, **where) from exception
    except FutureTimeoutError as exception:
        raise no_answer(settings, what, **where) from exception


def until_deadline(settings: ConnectionSettings, retry: retry_base) -> Retrying:
    """Retries with a short exponential wait until the connection's deadline; then the last exception is raised.

    Args:
        settings: The connection.
        retry: Which outcomes are tried again.
    """
    return Retrying(
        retry=retry,
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=stop_after_delay(settings.request_timeout_s),
        reraise=True,
    )


def ask_each(
    request: Callable[[], Mapping[Key, Future[Result]]], clients: Clients, what: Callable[[Key], Asked]
) -> Callable[[], dict[Key, Result]]:
    """Send one request for many things, each of which has an answer of its own.

    The request is under way when this returns, so that others can be sent beside it. Where the answer of one thing is a
    refusal for the moment, that one is asked again by itself.

    Args:
        request: Sends the request.
        clients: As for `ask`.
        what: What is asked of one thing, for an error.

    Returns:
        What awaits the answers; it raises as `ask`.
    """
    settings = clients.settings
    sent = request()

    def answers() -> dict[Key, Result]:
        found = {}
        for key, future in sent.items():
            try:
                # Without the retries of `ask`: to make them ready takes longer than a thousand partitions' answers.
                found[key] = future.result(timeout=_longest_s(settings))
            except (KafkaException, FutureTimeoutError) as exception:
                asked = what(key)
                if isinstance(exception, FutureTimeoutError):
                    raise no_answer(settings, asked.phrase, **asked.where) from exception
                again = partial(_answer_of, request, key)
                found[key] = ask(_first_then(future, again), clients, asked.phrase, **asked.where)
        return found

    return answers


def beside(call: Callable[[], Result]) -> Future[Result]:
    """Make a call in a thread of its own.

    Not one that a process waits for at its end: a client that never answers must not hold it.
    """
    future: Future[Result] = Future()

    def fulfil() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            future.set_exception(error)

    threading.Thread(target=fulfil, name="kpipe-call", daemon=True).start()
    return future


@dataclass(frozen=True)
class Asked:
    """What is asked, for an error.

    Args:
        phrase: ``"describe topic flights"``.
        where: Attributes of the error.
    """

    phrase: str
    where: Mapping[str, Any] = field(default_factory=dict)


def _answer_of(request: Callable[[], Mapping[Key, Future[Result]]], key: Key) -> Future[Result]:
    return request()[key]


def _longest_s(settings: ConnectionSettings) -> float:
    return settings.request_timeout_s + _GRACE_S


def _first_then(first: Future[Result], again: Callable[[], Future[Result]]) -> Callable[[], Future[Result]]:
    """A request that was sent already, and how to send it again."""
    sent = [first]
    return lambda: sent.pop() if sent else again()


def _is_momentary(exception: BaseException) -> bool:
    return isinstance(exception, KafkaException) and kafka_error(exception).code() in _MOMENTARY


def no_answer(settings: ConnectionSettings, what: str, **where: Any) -> BrokerUnavailableError:
    """The error for a call that nobody answered."""
    message = f"cannot {what} at {settings.bootstrap_servers}: no answer within {settings.request_timeout_s:g} s"
    return BrokerUnavailableError(message, fix="check that the brokers run and are reachable, then run again", **where)


def not_delivered(settings: ConnectionSettings, what: str, left: int, **where: Any) -> DeliveryError:
    """The error for records that the brokers did not acknowledge within the deadline."""
    message = f"{left:,} records of {what} were not acknowledged by {settings.bootstrap_servers}"
    return DeliveryError(message, fix="check the brokers; offsets are unmoved, so run again", **where)


def served(call: Callable[[], int]) -> int:
    """Serve a producer's delivery reports, by its ``poll`` or ``flush``.

    Raises:
        KafkaException: A fatal error of the producer. The client sets it as the exception and then calls back for each
            record all the same, so that Python finds an exception behind a callback that returned: a SystemError.
    """
    try:
        return call()
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise

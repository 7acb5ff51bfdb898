"""The common base of kpipe's transactions, in which outputs and a group's offsets commit together or not at all.

The guarantee depends on the order of the steps:

1. Take over the transactional id, which fences earlier owners and aborts their open transactions.
2. Compare the group's offset with the expected one. This comparison is the lock; step 1 makes it final.
3. Begin (`CommitStep.BEGIN`), and produce.
4. Add the offsets (`CommitStep.ADD_OFFSETS`).
5. Commit (`CommitStep.COMMIT`), or abort.

Source: KIP-98 and KIP-447.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from tenacity import Retrying, retry_if_exception

from kpipe_platform.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    FencedError,
    KpipeError,
    TransactionTimedOutError,
)
from kpipe_platform.kafka.client._compat import denied_cause, producer_fatal_cause
from kpipe_platform.kafka.client.calls import FENCED_CODES, kafka_error, translate
from kpipe_platform.kafka.client.clients import Clients, Closable, new_client
from kpipe_platform.kafka.client.settings import ConnectionSettings

logger = logging.getLogger(__name__)

# A commit waits for the transaction log and for markers in every participating partition, which takes seconds on a
# busy cluster. After this deadline, the next run determines the outcome by comparing the group's offset.
_COMMIT_DEADLINE_S = 60.0

_TIMED_OUT_CODES = FENCED_CODES | {
    KafkaError.INVALID_TXN_STATE,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError._STATE,
}


class CommitStep(Enum):
    """A request of an open transaction; its value is the phrase for error messages."""

    BEGIN = "begin the transaction"
    ADD_OFFSETS = "add offsets to the transaction"
    COMMIT = "commit the transaction"


class OffsetTransaction(Closable):
    """A transaction that commits a group's offsets, with or without outputs.

    Args:
        clients: Clients to use.
        group: Consumer group whose offsets it commits.
        where: What it commits, for messages: topics, partitions and offsets.
        timeout_s: Transaction timeout, seconds; the broker aborts a transaction that is open for longer.
        clock: Monotonic clock in seconds; injected for tests.
    """

    owner: ClassVar[str]
    """What runs the transaction, as a word for messages."""
    timed_out_fix: ClassVar[str]
    """How to fix a transaction timeout."""
    fenced_fix: ClassVar[str]
    """What to do after a newer owner took over."""

    def __init__(
        self, clients: Clients, group: str, where: str, *, timeout_s: float, clock: Callable[[], float]
    ) -> None:
        self._clients, self._settings = clients, clients.settings
        self._group, self._where = group, where
        self._timeout_s = timeout_s
        self._clock = clock
        self._producer: Producer | None = None
        self._began_at: float | None = None
        self._committed_topics: str | None = None

    @property
    def producer(self) -> Producer:
        """The transactional producer; available only between ``open`` and ``close``."""
        if self._producer is None:
            msg = f"the transaction of {self._where} is not open; call open() first"
            raise RuntimeError(msg)
        return self._producer

    @property
    def is_open(self) -> bool:
        """True between ``begin`` and the commit or ``abort``."""
        return self._began_at is not None

    def begin(self) -> None:
        """Begin the transaction. Call it as late as possible, because the transaction timeout starts here."""
        self.request(CommitStep.BEGIN, self.producer.begin_transaction)
        self._began_at = self._clock()

    def _commit_offsets(self, offsets: list[TopicPartition]) -> None:
        """Add offsets, with their commit metadata, and commit.

        Raises:
            FencedError: A newer owner took over; nothing of this transaction is visible.
            TransactionTimedOutError: The transaction was open for longer than its timeout.
            CommitUnknownError: The commit got no response, so it is unknown whether it succeeded.
            BrokerUnavailableError: The offsets could not be added; nothing was committed.
        """
        group = self._clients.consumer(self._group).consumer_group_metadata()
        if offsets:
            self._committed_topics = ", ".join(dict.fromkeys(each.topic for each in offsets))
            self.request(
                CommitStep.ADD_OFFSETS,
                lambda: self.producer.send_offsets_to_transaction(offsets, group, _COMMIT_DEADLINE_S),
            )
        try:
            self.request(CommitStep.COMMIT, lambda: self.producer.commit_transaction(_COMMIT_DEADLINE_S))
        except BrokerUnavailableError as error:
            # The request may have reached the brokers.
            msg = f"{error.message}; whether the transaction committed is unknown"
            fix = "run again: the next run checks the group's offset, so no records are lost or repeated"
            raise CommitUnknownError(msg, fix=fix, **error.attributes) from error
        self._began_at = None

    def abort(self) -> None:
        """Abort the transaction if it is open. A failure is only logged, because the id's next owner aborts it."""
        if self._began_at is None:
            return
        self._began_at = None
        try:
            self.producer.abort_transaction(self._settings.request_timeout_s)
        except KafkaException as exception:
            logger.warning(
                "cannot abort the transaction of %s (%s); the next owner of its transactional id aborts it",
                *(self._where, kafka_error(exception).name()),
            )

    def close(self) -> None:
        """Abort an open transaction and close the producer."""
        try:
            if self._producer is not None:
                self.abort()
        finally:
            producer, self._producer = self._producer, None
            if producer is not None:
                producer.purge()
                del producer

    def request(self, step: CommitStep, call: Callable[[], Any]) -> None:
        """Make one request of the protocol. Each step passes here, so tests inject their faults here."""
        # Committing a partition's offset needs the right to read its topic.
        needs = {"needs": "Read", "topic": self._committed_topics} if step is CommitStep.ADD_OFFSETS else {}
        _retried(call, lambda error: self.error(error, step.value, **needs), self._clock)

    def error(
        self, error: KafkaError | KafkaException, what: str, *, needs: str | None = None, topic: str | None = None
    ) -> KpipeError:
        """Convert a client error to a kpipe error, and distinguish a timed-out transaction from a fenced one.

        Args:
            error: The error that the client raised or reported.
            what: The action that failed, as a phrase: ``"write outputs"``.
            needs: The operation on topics that the action needs, to name a missing ACL.
            topic: The topic of the action, if it is known.
        """
        if isinstance(error, KafkaException):
            error = kafka_error(error)
        if error.code() == KafkaError._FATAL:
            error = producer_fatal_cause(self.producer, error)
        elif self.is_open:
            error = denied_cause(self.producer, error)
        open_for_s = None if self._began_at is None else self._clock() - self._began_at
        if error.code() in _TIMED_OUT_CODES and open_for_s is not None and open_for_s >= self._timeout_s:
            msg = (
                f"the transaction of {self._where} was open for {open_for_s:.1f} s, longer than its timeout of "
                f"{self._timeout_s:g} s, so the broker aborted it"
            )
            return TransactionTimedOutError(
                msg, fix=self.timed_out_fix, transaction_timeout_s=self._timeout_s, group=self._group
            )
        if error.code() in FENCED_CODES:
            msg = f"a newer {self.owner} took over {self._where} of group {self._group} while this one tried to {what}"
            return FencedError(msg, fix=self.fenced_fix, group=self._group)
        where = {"group": self._group, **({} if topic is None else {"topic": topic})}
        return translate(error, self._settings, f"{what} for {self._where}", needs=needs, **where)


def take_over(
    settings: ConnectionSettings,
    transactional_id: str,
    *,
    known_topic: str | None = None,
    timeout_s: float | None = None,
    producer_settings: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Producer:
    """Return a producer that owns a transactional id. Earlier owners are fenced, and their open transaction is aborted.

    Args:
        settings: The connection.
        transactional_id: The id to take over.
        known_topic: A topic that exists; it often makes the takeover half a second faster.
        timeout_s: Transaction timeout, seconds; None for librdkafka's default, one minute.
        producer_settings: Further librdkafka producer properties.
        clock: Monotonic clock in seconds.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline.
        AuthorizationFailedError: The client is not authorized to use the transactional id.
    """
    config = {
        **settings.for_librdkafka(),
        # Topics are created only from their declarations, never by a metadata request.
        "allow.auto.create.topics": False,
        **(producer_settings or {}),
        "transactional.id": transactional_id,
    }
    if timeout_s is not None:
        timeout_ms = int(timeout_s * 1000)
        config["transaction.timeout.ms"] = timeout_ms
        # librdkafka refuses a request timeout that exceeds the transaction timeout.
        config["socket.timeout.ms"] = min(int(settings.for_librdkafka()["socket.timeout.ms"]), timeout_ms)
    producer = new_client(Producer, config, settings)
    deadline = clock() + settings.request_timeout_s
    if known_topic is not None:
        # Without a connection, librdkafka's coordinator lookup fails and is retried only after half a second.
        # Ignore other errors here, because the next call reports them more precisely.
        with suppress(KafkaException):
            for _ in range(2):
                # Twice: the first response names the brokers, and the bootstrap connection closes.
                producer.list_topics(known_topic, timeout=settings.request_timeout_s)
    _retried(
        lambda: producer.init_transactions(max(deadline - clock(), 0.1)),
        lambda error: translate(
            error, settings, f"take over transactional id {transactional_id}", transactional_id=transactional_id
        ),
        clock,
        settings.request_timeout_s,
    )
    return producer


def abort_lingering(settings: ConnectionSettings, transactional_id: str) -> None:
    """Fence the owner of a transactional id and abort its open transaction, if there is one. Then release the id.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline.
        AuthorizationFailedError: The client is not authorized to use the transactional id.
    """
    logger.warning(
        "fencing the owner of transactional id %s and aborting its open transaction, if any", transactional_id
    )
    take_over(settings, transactional_id).close()


def _retried(
    call: Callable[[], Any],
    typed: Callable[[KafkaError], KpipeError],
    clock: Callable[[], float],
    deadline_s: float = _COMMIT_DEADLINE_S,
) -> None:
    """Make a transactional call, and retry it while the error is transient and the transaction is still usable.

    Args:
        call: The call. It waits for the brokers itself, so a retry starts without a delay.
        typed: Converts the client's error to the error to raise.
        clock: Monotonic clock in seconds.
        deadline_s: No retry starts later than this, seconds.
    """
    end = clock() + deadline_s
    retrying = Retrying(retry=retry_if_exception(_is_retriable), stop=lambda _: clock() >= end, reraise=True)
    try:
        retrying(call)
    except KafkaException as exception:
        raise typed(kafka_error(exception)) from exception


def _is_retriable(exception: BaseException) -> bool:
    """Return whether the transaction is still usable after a failed call."""
    if not isinstance(exception, KafkaException):
        return False
    error = kafka_error(exception)
    return error.retriable() and not error.txn_requires_abort()

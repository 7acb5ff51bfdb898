"""The transaction that commits a slice's offsets, with or without its outputs.

The guarantee depends on the order of the steps: fence, compare, begin, produce, add offsets, commit. Comparing the
group's offset is the lock; fencing makes the comparison final.

Source: KIP-98 and KIP-447; seeds/001 on transactions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from tenacity import Retrying, retry_if_exception

from kpipe_platform.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    FencedError,
    KpipeError,
    OffsetConflictError,
    TransactionTimedOutError,
)
from kpipe_platform.kafka.admin.groups import fetch_offsets
from kpipe_platform.kafka.client._compat import producer_fatal_cause
from kpipe_platform.kafka.client.calls import FENCED_CODES, kafka_error, translate
from kpipe_platform.kafka.client.clients import Clients, new_client
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.slices import PlannedRange, Slice

logger = logging.getLogger(__name__)

# A commit waits for the transaction log and for markers in every participating partition, which takes seconds on a
# busy cluster. After this deadline, the next run determines the outcome by comparing the group's offset.
COMMIT_DEADLINE_S = 60.0

_TIMED_OUT_CODES = FENCED_CODES | {
    KafkaError.INVALID_TXN_STATE,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError._STATE,
}


class SliceTransaction:
    """One slice's transaction.

    Args:
        settings: The connection.
        slice_: The planned slice.
        timeout_s: Transaction timeout, seconds; the broker aborts a transaction that is open for longer.
        producer_settings: Further librdkafka producer properties (batching, compression).
        clock: Monotonic clock in seconds; injected for tests.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        slice_: Slice,
        *,
        timeout_s: float,
        producer_settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._slice = slice_
        self._timeout_s = timeout_s
        self._producer_settings = dict(producer_settings or {})
        self._clock = clock
        self._clients = Clients(settings)
        self._producer: Producer | None = None
        self._began_at: float | None = None

    @property
    def producer(self) -> Producer:
        """The transactional producer; available only between ``open`` and ``close``."""
        if self._producer is None:
            msg = "the transaction is not open"
            raise RuntimeError(msg)
        return self._producer

    def open(self) -> None:
        """Fence every earlier owner of these partitions and abort its open transactions.

        Raises:
            BrokerUnavailableError: No answer within the deadline.
            AuthorizationFailedError: The transactional id may not be used.
        """
        self._producer = self._initialised(self._slice.transactional_id)
        # Own id first: if two layouts race for one partition, this order leaves at most one of them unfenced.
        for other in self._slice.fence:
            logger.info("fencing %s, which committed %s before", other, self._slice)
            self._initialised(other).close()

    def _initialised(self, transactional_id: str) -> Producer:
        return initialised(
            self._settings,
            transactional_id,
            known_topic=self._slice.ranges[0].range.topic if self._slice.ranges else None,
            timeout_s=self._timeout_s,
            producer_settings=self._producer_settings,
            clock=self._clock,
        )

    @property
    def is_open(self) -> bool:
        """True between ``begin`` and ``commit`` or ``abort``."""
        return self._began_at is not None

    def committed_earlier(self) -> list[SliceCounts] | None:
        """Compare the group's offsets with the plan. This comparison is the lock of the protocol.

        Returns:
            None if the slice is not committed yet; the counts of each range if an earlier attempt committed it.

        Raises:
            OffsetConflictError: Another run moved an offset.
            BrokerUnavailableError: No answer within the deadline.
        """
        if not self._slice.ranges:
            return None
        found = self.read_committed()
        states = []
        for planned, (offset, stored) in zip(self._slice.ranges, found, strict=True):
            ours = stored is not None and is_of(stored, self._slice) and offset == planned.range.end
            if not ours and offset != planned.committed:
                raise conflict(self._slice, planned, offset, stored)
            states.append(stored if ours else None)
        done = [state for state in states if state is not None]
        # One transaction commits all offsets of a slice, so either all are ours or none is.
        return [state.counts for state in done] if len(done) == len(states) else None

    def read_committed(self) -> list[tuple[int | None, CommitMetadata | None]]:
        """Return the group's offset of each range, with its commit metadata."""
        places = [(p.range.topic, p.range.partition) for p in self._slice.ranges]
        found = fetch_offsets(
            self._clients,
            self._slice.group,
            places,
            # Waits for offsets that are pending in an open transaction.
            isolation="read_committed",
            timeout_s=self._settings.request_timeout_s,
        )
        stored = [found[place] for place in places]
        return [(None, None) if each is None else (each.offset, each.metadata) for each in stored]

    def begin(self) -> None:
        """Begin the transaction. Call it as late as possible, because the transaction timeout starts here."""
        self._guard("begin a transaction", self.producer.begin_transaction)
        self._began_at = self._clock()

    def commit(self, counts: Sequence[SliceCounts]) -> None:
        """Add the planned end offsets, with the commit metadata, and commit.

        Args:
            counts: Record counts of each range of the slice.

        Raises:
            FencedError: A newer run took over; nothing that this run wrote is visible.
            TransactionTimedOutError: The transaction was open for longer than its timeout.
            BrokerUnavailableError: The outcome is unknown; the next run determines it by comparing the offsets.
        """
        ends = [planned.range.end for planned in self._slice.ranges]
        self.commit_at(ends, counts, lane=self._slice.lane + 1)

    def commit_at(
        self, ends: Sequence[int], counts: Sequence[SliceCounts], *, lane: int, stopped: bool = False
    ) -> None:
        """Commit these offsets, one for each range; raises the errors of ``commit``.

        Args:
            ends: The offsets to store.
            counts: Record counts of each range.
            lane: Number of committed lanes after this commit.
            stopped: True if the next lane cannot be written.
        """
        slice_ = self._slice
        at_ms = int(time.time() * 1000)
        offsets = [
            TopicPartition(
                planned.range.topic,
                planned.range.partition,
                end,
                metadata=CommitMetadata(
                    planned.topic_id,
                    slice_.run_id,
                    slice_.slice_id,
                    slice_.base_id,
                    planned.range.start,
                    counted,
                    lane,
                    slice_.lanes,
                    stopped,
                    at_ms,
                    planned.partitions,
                ).to_text(),
            )
            for planned, end, counted in zip(slice_.ranges, ends, counts, strict=True)
        ]
        group = self._clients.consumer(slice_.group).consumer_group_metadata()
        if offsets:
            self._guard(
                "add offsets to the transaction",
                lambda: self.producer.send_offsets_to_transaction(offsets, group, COMMIT_DEADLINE_S),
            )
        try:
            self._guard(f"commit {slice_}", lambda: self.producer.commit_transaction(COMMIT_DEADLINE_S))
        except BrokerUnavailableError as error:
            raise commit_unknown(error) from error
        self._began_at = None

    def abort(self) -> None:
        """Abort an open transaction. A failure is only logged, because the next owner's ``open`` aborts it."""
        if self._began_at is None:
            return
        self._began_at = None
        abort_begun(self.producer, self._settings, str(self._slice))

    def close(self) -> None:
        """Abort an open transaction and close the clients."""
        try:
            if self._producer is not None:
                self.abort()
        finally:
            producer, self._producer = self._producer, None
            if producer is not None:
                producer.purge()
                del producer
            self._clients.close()

    def error(self, error: KafkaError | KafkaException, what: str) -> KpipeError:
        """Convert a client error to a kpipe error, and distinguish a timed-out transaction from a fenced one."""
        if isinstance(error, KafkaException):
            error = kafka_error(error)
        if error.code() == KafkaError._FATAL:
            error = producer_fatal_cause(self.producer, error)
        open_for_s = None if self._began_at is None else self._clock() - self._began_at
        if error.code() in _TIMED_OUT_CODES and open_for_s is not None and open_for_s >= self._timeout_s:
            msg = (
                f"the transaction of {self._slice} was open for {open_for_s:.1f} s, longer than its timeout of "
                f"{self._timeout_s:g} s, so the broker aborted it"
            )
            return TransactionTimedOutError(
                msg,
                fix="lower max_records, or raise transaction_timeout_s of the KafkaDestination; then run again",
                transaction_timeout_s=self._timeout_s,
                group=self._slice.group,
            )
        found = translate(error, self._settings, what, group=self._slice.group)
        if isinstance(found, FencedError):
            msg = f"a newer run took over {self._slice} of group {self._slice.group} while this one tried to {what}"
            return FencedError(
                msg, fix="nothing: this run wrote nothing that a reader can see", group=self._slice.group
            )
        return found

    def _guard(self, what: str, call: Callable[[], Any]) -> None:
        guarded(call, lambda error: self.error(error, what), self._clock)

    def __enter__(self) -> SliceTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def commit_unknown(error: BrokerUnavailableError) -> CommitUnknownError:
    """Build the error for a commit call without an answer: the commit may have reached the brokers."""
    msg = f"{error.message}; whether the transaction committed is not known"
    fix = "run again: the next run compares the group's offset and loses or repeats nothing"
    return CommitUnknownError(msg, fix=fix, **error.attributes)


def read_back(settings: ConnectionSettings, slice_: Slice, *, timeout_s: float) -> list[SliceCounts] | None:
    """Determine the outcome of a slice when its commit got no answer or its process ended.

    Taking over the transactional id first ends a pending commit, either way.

    Args:
        settings: The connection.
        slice_: The slice.
        timeout_s: Transaction timeout, seconds.

    Returns:
        The counts of each range; None if nothing was committed, and nothing can be committed later.

    Raises:
        OffsetConflictError: Another run has moved an offset since, so the outcome cannot be determined.
        BrokerUnavailableError: No answer within the deadline.
    """
    with SliceTransaction(settings, slice_, timeout_s=timeout_s) as transaction:
        with suppress(FencedError):
            # A terminated run may take over its own ids at the same time.
            transaction.open()
        return transaction.committed_earlier()


def is_of(stored: CommitMetadata, slice_: Slice) -> bool:
    """Return whether an attempt of this slice stored the offset."""
    return stored.run_id == slice_.run_id and stored.slice_id == slice_.slice_id


def conflict(
    slice_: Slice, planned: PlannedRange, offset: int | None, stored: CommitMetadata | None
) -> OffsetConflictError:
    """Build the error for a committed offset that differs from the planned one."""
    expected = "no offset" if planned.committed is None else f"offset {planned.committed}"
    where = f"{planned.range.topic}/{planned.range.partition}"
    by = f" by run {stored.run_id}" if stored is not None else ""
    msg = (
        f"group {slice_.group} was at {expected} of {where} when this run planned {planned.range}, and is now at "
        f"{'no offset' if offset is None else offset}{by}"
    )
    return OffsetConflictError(
        msg,
        fix="nothing was written by this run; another run took the slice. Run again for what is left",
        group=slice_.group,
        topic=planned.range.topic,
        partition=planned.range.partition,
        expected=planned.committed,
        found=offset,
    )


def initialised(
    settings: ConnectionSettings,
    transactional_id: str,
    *,
    known_topic: str | None = None,
    timeout_s: float | None = None,
    producer_settings: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Producer:
    """Return a transactional producer that owns its id; every earlier owner is fenced.

    Args:
        settings: The connection.
        transactional_id: The id to take over.
        known_topic: A topic that exists; it often makes the takeover half a second faster.
        timeout_s: Transaction timeout, seconds; None for librdkafka's default, one minute.
        producer_settings: Further librdkafka producer properties.
        clock: Monotonic clock in seconds.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        AuthorizationFailedError: The transactional id may not be used.
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
    guarded(
        lambda: producer.init_transactions(max(deadline - clock(), 0.1)),
        lambda error: translate(error, settings, f"take over transactional id {transactional_id}"),
        clock,
        settings.request_timeout_s,
    )
    return producer


def guarded(
    call: Callable[[], Any],
    typed: Callable[[KafkaError], KpipeError],
    clock: Callable[[], float],
    deadline_s: float = COMMIT_DEADLINE_S,
) -> None:
    """Make a transactional call, and retry it while the error is transient and the transaction is still usable.

    Args:
        call: The call. It waits for the brokers itself, so a retry starts without a delay.
        typed: Converts the client's error to the error to raise.
        clock: Monotonic clock in seconds.
        deadline_s: No retry starts later than this, seconds.
    """
    end = clock() + deadline_s
    retrying = Retrying(retry=retry_if_exception(_can_go_on), stop=lambda _: clock() >= end, reraise=True)
    try:
        retrying(call)
    except KafkaException as exception:
        raise typed(kafka_error(exception)) from exception


def _can_go_on(exception: BaseException) -> bool:
    """Return whether the transaction is still usable after a failed call."""
    if not isinstance(exception, KafkaException):
        return False
    error = kafka_error(exception)
    return error.retriable() and not error.txn_requires_abort()


def abort_begun(producer: Producer, settings: ConnectionSettings, what: str) -> None:
    """Abort a transaction. A failure is only logged, because the id's next owner aborts the transaction."""
    try:
        producer.abort_transaction(settings.request_timeout_s)
    except KafkaException as exception:
        logger.warning("could not abort the transaction of %s: %s", what, kafka_error(exception).name())


def abort_lingering(settings: ConnectionSettings, transactional_id: str) -> None:
    """Abort the transaction that an earlier owner left open, by taking over its transactional id and releasing it.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    logger.warning("aborting what the last owner of transactional id %s left open", transactional_id)
    initialised(settings, transactional_id).close()


def store_offsets(transaction: SliceTransaction, counts: Sequence[SliceCounts]) -> Sequence[SliceCounts]:
    """Compare and then commit a slice's offsets, in a transaction that contains only the offsets.

    Args:
        transaction: A transaction opened at plan time, so any later owner fences it.
        counts: Record counts of the slice, by range.

    Returns:
        The committed counts: those of an earlier attempt if it committed the slice.
    """
    earlier = transaction.committed_earlier()
    if earlier is not None:
        return earlier
    transaction.begin()
    transaction.commit(counts)
    return counts

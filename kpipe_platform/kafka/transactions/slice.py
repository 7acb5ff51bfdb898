"""The transaction that moves a slice's offsets, with or without its outputs inside.

The order of the steps is the promise: fence, compare, begin, produce, offsets, commit. The compare of the group's
offset is the lock; fencing makes the compare final.

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
from kpipe_platform.kafka.client.calls import FENCED_CODES, kafka_error, translate
from kpipe_platform.kafka.client.clients import Clients, new_client
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.slices import PlannedRange, Slice

logger = logging.getLogger(__name__)

# A commit waits for the transaction log and for markers in every partition that took part; on a busy cluster
# that is seconds. Past this the outcome is left to the next run's compare.
COMMIT_DEADLINE_S = 60.0

# A client that is past mending asks nobody before it says so, seconds.
_ANSWERED_S = 1.0

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
        timeout_s: Transaction timeout, seconds: the broker aborts a transaction that is open for longer.
        producer_settings: Further librdkafka producer properties (batching, compression).
        clock: Monotonic seconds; injected for tests.
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
        """The transactional producer; only between ``open`` and ``close``."""
        if self._producer is None:
            msg = "the transaction is not open"
            raise RuntimeError(msg)
        return self._producer

    def open(self) -> None:
        """Fence every older owner of these partitions and abort what it left open.

        Raises:
            BrokerUnavailableError: No answer within the deadline.
            AuthorizationFailedError: The transactional id may not be used.
        """
        self._producer = self._initialised(self._slice.transactional_id)
        # The own id first: with that order, of two layouts racing for one partition at most one stays unfenced.
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
        """Compare the group's offsets with the plan: the lock of the protocol.

        Returns:
            None when the slice is still to be done; the counts of each range when an earlier attempt of this slice
            committed.

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
        # All offsets of a slice move in one transaction, so either all are ours or none is.
        return [state.counts for state in done] if len(done) == len(states) else None

    def read_committed(self) -> list[tuple[int | None, CommitMetadata | None]]:
        """The group's offset of each range, with what stands beside it."""
        places = [(p.range.topic, p.range.partition) for p in self._slice.ranges]
        found = fetch_offsets(
            self._clients,
            self._slice.group,
            places,
            # Stable offsets: one that is pending in an open transaction is waited for.
            isolation="read_committed",
            timeout_s=self._settings.request_timeout_s,
        )
        stored = [found[place] for place in places]
        return [(None, None) if each is None else (each.offset, each.metadata) for each in stored]

    def begin(self) -> None:
        """Begin; as late as possible, because the broker's timeout runs from here."""
        self._guard("begin a transaction", self.producer.begin_transaction)
        self._began_at = self._clock()

    def commit(self, counts: Sequence[SliceCounts]) -> None:
        """Add the planned ends, with the commit metadata, and commit.

        Args:
            counts: Counted records of each range of the slice.

        Raises:
            FencedError: A newer run took over; nothing of this one is visible.
            TransactionTimedOutError: The transaction was open for longer than its timeout.
            BrokerUnavailableError: The outcome is not known; the next run's compare tells.
        """
        ends = [planned.range.end for planned in self._slice.ranges]
        self.commit_at(ends, counts, lane=self._slice.lane + 1)

    def commit_at(
        self, ends: Sequence[int], counts: Sequence[SliceCounts], *, lane: int, stopped: bool = False
    ) -> None:
        """Commit with these offsets, one for each range; raises as ``commit``.

        Args:
            ends: The offsets to store.
            counts: Counted records of each range.
            lane: Lanes of the slice that are then committed.
            stopped: The next lane cannot be written.
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
        """Abort, if begun. A failure is only logged: the next owner's ``open`` aborts what is left."""
        if self._began_at is None:
            return
        self._began_at = None
        abort_begun(self.producer, self._settings, str(self._slice))

    def close(self) -> None:
        """Abort what is open and let the clients go."""
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
        """A client's error as kpipe's, telling a timed-out transaction from a fenced one."""
        if isinstance(error, KafkaException):
            error = kafka_error(error)
        if error.code() == KafkaError._FATAL:
            error = self._why_fatal(error)
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

    def _why_fatal(self, error: KafkaError) -> KafkaError:
        """What a client that takes no more records is fatally ill of: it says so when it is asked to abort."""
        try:
            self.producer.abort_transaction(_ANSWERED_S)
        except KafkaException as exception:
            return kafka_error(exception)
        return error

    def _guard(self, what: str, call: Callable[[], Any]) -> None:
        guarded(call, lambda error: self.error(error, what), self._clock)

    def __enter__(self) -> SliceTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def commit_unknown(error: BrokerUnavailableError) -> CommitUnknownError:
    """The error of a commit call that got no answer: it may have reached the brokers all the same."""
    msg = f"{error.message}; whether the transaction committed is not known"
    fix = "run again: the next run compares the group's offset and loses or repeats nothing"
    return CommitUnknownError(msg, fix=fix, **error.attributes)


def read_back(settings: ConnectionSettings, slice_: Slice, *, timeout_s: float) -> list[SliceCounts] | None:
    """What a slice did whose end is not known: its commit got no answer, or whoever made it is gone.

    The transactional id is taken over first. That ends the commit one way or the other.

    Args:
        settings: The connection.
        slice_: The slice.
        timeout_s: Transaction timeout, seconds.

    Returns:
        The counts of each range; None where nothing was committed, and nothing will be.

    Raises:
        OffsetConflictError: Another run has moved an offset since, so that nobody knows.
        BrokerUnavailableError: No answer within the deadline.
    """
    with SliceTransaction(settings, slice_, timeout_s=timeout_s) as transaction:
        with suppress(FencedError):
            # A terminated run takes its ids over itself, at the same time.
            transaction.open()
        return transaction.committed_earlier()


def is_of(stored: CommitMetadata, slice_: Slice) -> bool:
    """Whether an offset was stored by an attempt at this slice."""
    return stored.run_id == slice_.run_id and stored.slice_id == slice_.slice_id


def conflict(
    slice_: Slice, planned: PlannedRange, offset: int | None, stored: CommitMetadata | None
) -> OffsetConflictError:
    """The error of a compare that found another offset than the planned one."""
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
    """A transactional producer that owns its id: every older owner is fenced.

    Args:
        settings: The connection.
        transactional_id: The id to own.
        known_topic: A topic that exists; with it the id is often owned half a second sooner.
        timeout_s: Transaction timeout, seconds; None: librdkafka's own, one minute.
        producer_settings: Further librdkafka producer properties.
        clock: Monotonic seconds.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
        AuthorizationFailedError: The transactional id may not be used.
    """
    config = {
        **settings.for_librdkafka(),
        # Topics are made where they are declared, never by asking for them.
        "allow.auto.create.topics": False,
        **(producer_settings or {}),
        "transactional.id": transactional_id,
    }
    if timeout_s is not None:
        timeout_ms = int(timeout_s * 1000)
        config["transaction.timeout.ms"] = timeout_ms
        # librdkafka refuses a request timeout beyond the transaction's own.
        config["socket.timeout.ms"] = min(int(settings.for_librdkafka()["socket.timeout.ms"]), timeout_ms)
    producer = new_client(Producer, config, settings)
    deadline = clock() + settings.request_timeout_s
    if known_topic is not None:
        # Without a connection librdkafka's search for the coordinator fails, and is made again after half a second.
        # What else is wrong with the brokers the next call says better.
        with suppress(KafkaException):
            for _ in range(2):
                # Twice: the first answer names the brokers, and ends the connection that it came by.
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
    """Make a call of a transaction, again while its failure is transient and the transaction can go on.

    Args:
        call: What to do. It waits for the brokers itself, so it is made again at once.
        typed: The error to raise for the client's.
        clock: Monotonic seconds.
        deadline_s: No further call begins later than this, seconds.
    """
    end = clock() + deadline_s
    retrying = Retrying(retry=retry_if_exception(_can_go_on), stop=lambda _: clock() >= end, reraise=True)
    try:
        retrying(call)
    except KafkaException as exception:
        raise typed(kafka_error(exception)) from exception


def _can_go_on(exception: BaseException) -> bool:
    """Whether the transaction is still usable after a call of it failed."""
    if not isinstance(exception, KafkaException):
        return False
    error = kafka_error(exception)
    return error.retriable() and not error.txn_requires_abort()


def abort_begun(producer: Producer, settings: ConnectionSettings, what: str) -> None:
    """Abort a transaction. A failure is only logged: the id's next owner aborts what is left."""
    try:
        producer.abort_transaction(settings.request_timeout_s)
    except KafkaException as exception:
        logger.warning("could not abort the transaction of %s: %s", what, kafka_error(exception).name())


def abort_lingering(settings: ConnectionSettings, transactional_id: str) -> None:
    """Take over a transactional id, which aborts whatever an older owner left open, and let it go again.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    logger.warning("aborting what the last owner of transactional id %s left open", transactional_id)
    initialised(settings, transactional_id).close()


def store_offsets(transaction: SliceTransaction, counts: Sequence[SliceCounts]) -> Sequence[SliceCounts]:
    """Move a slice's offsets in a transaction of their own, after the compare.

    Args:
        transaction: Opened at plan time, so that any later owner fences it.
        counts: What the slice did, by range.

    Returns:
        The counts that stand committed.
    """
    earlier = transaction.committed_earlier()
    if earlier is not None:
        return earlier
    transaction.begin()
    transaction.commit(counts)
    return counts

"""The transaction of a redrive: it writes the records and the group's offset of their partition, or neither.

The steps are the same as in `kpipe_platform.kafka.transactions.slice`: fence, compare the stored offset, begin,
produce, send offsets, commit. The comparison of the group's offset and commit metadata acts as the lock. The
transactional id is the one that ``kpipe offsets set`` also fences.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from kpipe_platform.dead_letters.redrive.stored_offset import StoredOffset, read_stored_offset
from kpipe_platform.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    FencedError,
    KpipeError,
    OffsetConflictError,
    TransactionTimedOutError,
)
from kpipe_platform.kafka.client._compat import MAX_PURGED, PURGED_CODES, serve_reports
from kpipe_platform.kafka.client.calls import FENCED_CODES, REFUSED_CODES, kafka_error, not_delivered, translate
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.model.slices import dotted_id, transactional_id
from kpipe_platform.kafka.transactions.slice import COMMIT_DEADLINE_S, abort_begun, commit_unknown, guarded, initialised

logger = logging.getLogger(__name__)

# Seconds to wait for the acknowledgements of a batch.
_DELIVERY_S = 60.0
_BATCH_BYTES = 1_000_000


class RefusedError(Exception):
    """The brokers refuse a record of the batch; nothing of the batch was written."""


class _PurgedError(Exception):
    """The client purged the batch while it recovered from an earlier failure."""


class RedriveTransaction:
    """Sends the dead letters of one partition in batches, each in its own transaction.

    Args:
        clients: Clients to use.
        group: The consumer group that stores the progress.
        topic: The dead-letter topic.
        partition: Its partition.
        timeout_s: Transaction timeout, seconds.
        clock: Returns monotonic time in seconds.
    """

    def __init__(
        self,
        clients: Clients,
        group: str,
        topic: str,
        partition: int,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients, self._settings = clients, clients.settings
        self._group, self._topic, self._partition = group, topic, partition
        self._timeout_s = timeout_s
        self._clock = clock
        self._producer: Producer | None = None
        self._batch_bytes = _BATCH_BYTES
        self._began_at: float | None = None
        self._failures: list[KafkaError] = []
        self._stored: StoredOffset | None = None

    @property
    def transactional_id(self) -> str:
        """The transactional id: ``{group}/{topic}/{partition}``."""
        return transactional_id(self._group, [self._range])

    @property
    def _range(self) -> OffsetRange:
        return OffsetRange(self._topic, self._partition, 0, 0)

    def open(self) -> StoredOffset | None:
        """Fence every older redrive of this partition, abort its open transaction, and read the group's offset.

        Raises:
            BrokerUnavailableError: The brokers did not respond within the deadline.
            AuthorizationFailedError: The client is not authorized to use the transactional id or the group.
        """
        self._producer = initialised(
            self._settings,
            self.transactional_id,
            timeout_s=self._timeout_s,
            producer_settings={
                # The brokers check record sizes, not the client. `batch.size` keeps batches of small records within
                # the topics' limits.
                "message.max.bytes": 1_000_000_000,
                "batch.size": self._batch_bytes,
                "compression.type": "lz4",
                "linger.ms": 5,
                # For records without a partition: the same choice as the Java client.
                "partitioner": "murmur2_random",
            },
            clock=self._clock,
        )
        # Fence a running redrive of an earlier kpipe version, which used another id.
        initialised(self._settings, dotted_id(self._group, [self._range])).close()
        self._stored = read_stored_offset(self._clients, self._group, self._topic, self._partition)
        return self._stored

    def send(self, records: Sequence[KafkaRecord], offset: int, text: str, *, batch_bytes: int = _BATCH_BYTES) -> None:
        """Write records and move the group's offset, both or neither.

        Args:
            records: The records to write; may be empty.
            offset: The group's new offset.
            text: The commit metadata.
            batch_bytes: The smallest size limit of the records' topics, in bytes.

        Raises:
            RefusedError: The brokers refuse a record; nothing was written.
            OffsetConflictError: Another redrive, or ``kpipe offsets set``, moved the group's offset.
            FencedError: A newer redrive of this partition took over.
            BrokerUnavailableError: The brokers are unavailable.
            CommitUnknownError: The commit request got no response, and it is unknown whether the commit succeeded. The
                next redrive reads the committed offset.
        """
        if batch_bytes < self._batch_bytes:
            self._batch_bytes = batch_bytes
            self._reopen()
        self._compare()
        for purged in range(MAX_PURGED + 1):
            try:
                self._send_once(records, offset, text)
            except _PurgedError:
                if purged < MAX_PURGED:
                    continue
                raise not_delivered(self._settings, f"dead letters of {self._topic}", len(records)) from None
            except CommitUnknownError as error:
                self._read_back(StoredOffset(offset, text), error)
            break
        self._stored = StoredOffset(offset, text)

    def _read_back(self, wanted: StoredOffset, error: CommitUnknownError) -> None:
        """Fence the transactional id, which completes or aborts the commit, and check whether the commit succeeded.

        Raises:
            CommitUnknownError: The commit did not succeed, or its outcome is unknown.
        """
        self._close_producer()
        try:
            found = self.open()
        except KpipeError as other:
            raise error from other
        if found != wanted:
            raise error
        logger.warning("a commit got no answer; the group's offset says that it took place: %s", wanted.offset)

    def _reopen(self) -> None:
        """Open a new producer with the current settings. Check that the group's offset did not change meanwhile."""
        before = self._stored
        self._close_producer()
        self.open()
        self._check(before)

    def _compare(self) -> None:
        before = self._stored
        self._stored = read_stored_offset(self._clients, self._group, self._topic, self._partition)
        self._check(before)

    def _check(self, before: StoredOffset | None) -> None:
        if self._stored == before:
            return
        places = ["no offset" if each is None else f"offset {each.offset}" for each in (before, self._stored)]
        msg = (
            f"group {self._group} was at {places[0]} of {self._topic}/{self._partition}, and is now at {places[1]}, or "
            "has other progress beside it"
        )
        raise OffsetConflictError(
            msg,
            fix="nothing of this batch was written; another redrive took it. Run again for what is left",
            group=self._group,
            topic=self._topic,
            partition=self._partition,
            expected=None if before is None else before.offset,
            found=None if self._stored is None else self._stored.offset,
        )

    def _send_once(self, records: Sequence[KafkaRecord], offset: int, text: str) -> None:
        self._failures.clear()
        self._guard("begin a transaction", self._own.begin_transaction)
        self._began_at = self._clock()
        try:
            for record in records:
                self._produce(record)
            self._flush()
            if self._failures:
                raise self._failed()
            moved = [TopicPartition(self._topic, self._partition, offset, metadata=text)]
            group = self._clients.consumer(self._group).consumer_group_metadata()
            self._guard(
                "add offsets to the transaction",
                lambda: self._own.send_offsets_to_transaction(moved, group, COMMIT_DEADLINE_S),
            )
            try:
                self._guard("commit the transaction", lambda: self._own.commit_transaction(COMMIT_DEADLINE_S))
            except BrokerUnavailableError as error:
                raise commit_unknown(error) from error
            self._began_at = None
        finally:
            self._abort()

    @property
    def _own(self) -> Producer:
        if self._producer is None:
            msg = "the transaction is not open"
            raise RuntimeError(msg)
        return self._producer

    def _produce(self, record: KafkaRecord) -> None:
        placement: dict[str, Any] = {}
        if record.partition is not None:
            placement["partition"] = record.partition
        if record.timestamp_ms is not None:
            placement["timestamp"] = record.timestamp_ms
        while not self._failures:
            try:
                self._own.produce(
                    record.topic or "",
                    value=record.value,
                    key=record.key,
                    headers=cast(Any, list(record.headers) or None),
                    on_delivery=self._on_delivery,
                    **placement,
                )
            except BufferError:
                self._served(lambda: self._own.poll(0.02))
            except KafkaException as exception:
                self._failures.append(kafka_error(exception))
            else:
                self._served(lambda: self._own.poll(0))
                return

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _served(self, call: Callable[[], int]) -> int:
        """Serve delivery reports, and record an exception of the client as a failure."""
        try:
            return serve_reports(call)
        except KafkaException as exception:
            self._failures.append(kafka_error(exception))
        return 0

    def _flush(self) -> None:
        deadline = self._clock() + _DELIVERY_S
        left = len(self._own)
        while left and not self._failures:
            if self._clock() > deadline:
                raise not_delivered(self._settings, f"dead letters of {self._topic}", left)
            left = self._served(lambda: self._own.flush(1.0))

    def _failed(self) -> Exception:
        # If one batch fails, the queued ones fail too. A refusal, if there is one, is the cause.
        error = next((e for e in self._failures if e.code() in REFUSED_CODES), None)
        if error is not None:
            return RefusedError(f"{error.str()} ({error.name()})")
        # After a fatal error the queued records fail too, with a less specific code than the first.
        error = next((e for e in self._failures if e.code() in FENCED_CODES), self._failures[0])
        if error.code() in PURGED_CODES:
            return _PurgedError()
        return self._typed(error, "write records")

    def _abort(self) -> None:
        """Abort the transaction if one is open. A failure is only logged, because the next `open` aborts it."""
        if self._began_at is None:
            return
        self._began_at = None
        abort_begun(self._own, self._settings, f"{self._topic}/{self._partition}")

    def _guard(self, what: str, call: Callable[[], Any]) -> None:
        guarded(call, lambda error: self._typed(error, what), self._clock)

    def _typed(self, error: KafkaError, what: str) -> KpipeError:
        where = f"{self._topic}/{self._partition}"
        open_for_s = None if self._began_at is None else self._clock() - self._began_at
        found = translate(error, self._settings, f"{what} of {where}", group=self._group)
        if not isinstance(found, FencedError):
            return found
        if open_for_s is not None and open_for_s >= self._timeout_s:
            msg = (
                f"the transaction of {where} was open for {open_for_s:.1f} s, longer than its timeout of "
                f"{self._timeout_s:g} s, so the broker aborted it"
            )
            return TransactionTimedOutError(
                msg, fix="send fewer records at once, or raise the timeout; then run again", group=self._group
            )
        msg = f"a newer redrive took over {where} of group {self._group} while this one tried to {what}"
        return FencedError(msg, fix="nothing: the newer redrive goes on from what is committed", group=self._group)

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            del producer

    def close(self) -> None:
        """Close the producer. An open transaction was aborted before."""
        self._close_producer()

    def __enter__(self) -> RedriveTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""The transaction of a redrive: it writes the records and the group's offset of their partition, or neither.

See `kpipe_platform.kafka.transactions.base` for the steps. The redrive compares the group's offset and its commit
metadata. The transactional id is the one that ``kpipe offsets set`` also fences.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from kpipe_platform.dead_letters.redrive.stored_offset import StoredOffset, read_stored_offset
from kpipe_platform.errors import CommitUnknownError, KpipeError, OffsetConflictError
from kpipe_platform.kafka.client._compat import MAX_PURGED, PURGED_CODES, denied_cause
from kpipe_platform.kafka.client.calls import FENCED_CODES, REFUSED_CODES, kafka_error, not_delivered
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.producer import (
    ANY_PARTITION,
    NOW,
    AckedProducer,
    GiveUpError,
    Message,
)
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.model.slices import dotted_id, transactional_id
from kpipe_platform.kafka.transactions.base import OffsetTransaction, take_over

logger = logging.getLogger(__name__)

# Seconds to wait for the acknowledgements of a batch.
_DELIVERY_S = 60.0
_BATCH_BYTES = 1_000_000


class RejectedError(Exception):
    """The brokers rejected a record of the batch; nothing of the batch was written."""


class _PurgedError(Exception):
    """The client purged the batch while it recovered from an earlier failure."""


class RedriveTransaction(OffsetTransaction):
    """Sends the dead letters of one partition in batches, each in its own transaction.

    Args:
        clients: Clients to use.
        group: The consumer group that stores the progress.
        topic: The dead-letter topic.
        partition: Its partition.
        timeout_s: Transaction timeout, seconds.
        clock: Returns monotonic time in seconds.
    """

    owner = "redrive"
    timed_out_fix = "lower batch_records (--batch), or raise transaction_timeout_s; then redrive again"
    fenced_fix = "no action is needed: the newer redrive continues from the committed offset"

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
        super().__init__(clients, group, f"{topic}/{partition}", timeout_s=timeout_s, clock=clock)
        self._topic, self._partition = topic, partition
        self._batch_bytes = _BATCH_BYTES
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
        self._producer = take_over(
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
                "delivery.report.only.error": True,
                # For records without a partition: the same choice as the Java client.
                "partitioner": "murmur2_random",
            },
            clock=self._clock,
        )
        # Fence a running redrive of an earlier kpipe version, which used another id.
        take_over(self._settings, dotted_id(self._group, [self._range])).close()
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
            RejectedError: The brokers rejected a record; nothing was written.
            OffsetConflictError: Another redrive, or ``kpipe offsets set``, moved the group's offset.
            FencedError: A newer redrive of this partition took over.
            BrokerUnavailableError: The brokers are unavailable.
            CommitUnknownError: The commit got no response, so it is unknown whether it succeeded. The next redrive
                reads the committed offset.
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
                raise not_delivered(self._settings, f"the redrive of {self._where}", len(records)) from None
            except CommitUnknownError as error:
                self._read_back(StoredOffset(offset, text), error)
            break
        self._stored = StoredOffset(offset, text)

    def _read_back(self, wanted: StoredOffset, error: CommitUnknownError) -> None:
        """Fence the transactional id, which completes or aborts the commit, and check whether the commit succeeded.

        Raises:
            CommitUnknownError: The commit did not succeed, or its outcome is unknown.
        """
        self.close()
        try:
            found = self.open()
        except KpipeError as other:
            raise error from other
        if found != wanted:
            raise error
        logger.warning(
            "a commit got no response but succeeded: group %s is at offset %d of %s",
            *(self._group, wanted.offset, self._where),
        )

    def _reopen(self) -> None:
        """Open a new producer with the current settings. Check that the group's offset did not change meanwhile."""
        before = self._stored
        self.close()
        self.open()
        self._check(before)

    def _compare(self) -> None:
        before = self._stored
        self._stored = read_stored_offset(self._clients, self._group, self._topic, self._partition)
        self._check(before)

    def _check(self, before: StoredOffset | None) -> None:
        if self._stored == before:
            return
        expected, now = ("no offset" if each is None else f"offset {each.offset}" for each in (before, self._stored))
        msg = f"group {self._group} was at {expected} of {self._where} and is now at {now}"
        if expected == now:
            msg += " with different progress in its commit metadata"
        raise OffsetConflictError(
            msg,
            fix="redrive again for the remaining dead letters; another redrive took over, and this one wrote nothing",
            group=self._group,
            topic=self._topic,
            partition=self._partition,
            expected=None if before is None else before.offset,
            found=None if self._stored is None else self._stored.offset,
        )

    def _send_once(self, records: Sequence[KafkaRecord], offset: int, text: str) -> None:
        self.begin()
        producer = AckedProducer(self.producer)
        try:
            try:
                for record in records:
                    producer.send_all(record.topic or "", [_message(record)])
                left = producer.flush(_DELIVERY_S)
            except GiveUpError:
                raise self._failure(producer, producer.failures) from None
            except KafkaException as exception:
                raise self._failure(producer, [*producer.failures, kafka_error(exception)]) from exception
            if left:
                raise not_delivered(self._settings, f"the redrive of {self._where}", left)
            self._commit_offsets([TopicPartition(self._topic, self._partition, offset, metadata=text)])
        finally:
            self.abort()

    def _failure(self, producer: AckedProducer, failures: Sequence[KafkaError]) -> Exception:
        # If one batch fails, the queued ones fail too. A rejection, if there is one, is the cause.
        error = next((e for e in failures if e.code() in REFUSED_CODES), None)
        if error is not None:
            return RejectedError(f"{error.str()} ({error.name()})")
        # After a fatal error the queued records fail too, with a less specific code than the first.
        error = next((e for e in failures if e.code() in FENCED_CODES), failures[0])
        error = denied_cause(self.producer, error)
        if error.code() in PURGED_CODES:
            return _PurgedError()
        return self.error(error, "write records", needs="Write", topic=producer.failed_topic_names)


def _message(record: KafkaRecord) -> Message:
    partition = ANY_PARTITION if record.partition is None else record.partition
    timestamp = NOW if record.timestamp_ms is None else record.timestamp_ms
    return record.key, record.value, partition, timestamp, list(record.headers) or None

"""The transaction that commits a slice's offsets, with or without its outputs.

See `kpipe_platform.kafka.transactions.base` for the steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Producer, TopicPartition

from kpipe_platform.errors import FencedError, OffsetConflictError
from kpipe_platform.kafka.admin.groups import fetch_offsets
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.kafka.transactions.base import OffsetTransaction, take_over

logger = logging.getLogger(__name__)


class SliceTransaction(OffsetTransaction):
    """One slice's transaction.

    Args:
        settings: The connection.
        slice_: The planned slice.
        timeout_s: Transaction timeout, seconds; the broker aborts a transaction that is open for longer.
        producer_settings: Further librdkafka producer properties (batching, compression).
        clock: Monotonic clock in seconds; injected for tests.
    """

    owner = "run"
    timed_out_fix = "lower max_records, or raise transaction_timeout_s of the KafkaDestination; then run again"
    fenced_fix = "no action is needed: consumers with isolation.level=read_committed see no output of this run"

    def __init__(
        self,
        settings: ConnectionSettings,
        slice_: Slice,
        *,
        timeout_s: float,
        producer_settings: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(Clients(settings), slice_.group, str(slice_), timeout_s=timeout_s, clock=clock)
        self._slice = slice_
        self._producer_settings = dict(producer_settings or {})

    def open(self) -> None:
        """Fence every earlier owner of these partitions and abort its open transactions.

        Raises:
            BrokerUnavailableError: The brokers did not respond within the deadline.
            AuthorizationFailedError: The client is not authorized to use the transactional id.
        """
        self._producer = self._take_over(self._slice.transactional_id)
        # Own id first: if two layouts race for one partition, this order leaves at most one of them unfenced.
        for other in self._slice.fence:
            logger.info("fencing transactional id %s, an earlier owner of partitions of %s", other, self._slice)
            self._take_over(other).close()

    def _take_over(self, transactional_id: str) -> Producer:
        return take_over(
            self._settings,
            transactional_id,
            known_topic=self._slice.ranges[0].range.topic if self._slice.ranges else None,
            timeout_s=self._timeout_s,
            producer_settings=self._producer_settings,
            clock=self._clock,
        )

    def committed_earlier(self) -> list[SliceCounts] | None:
        """Compare the group's offsets with the plan. This comparison is the lock of the protocol.

        Returns:
            None if the slice is not committed yet; the counts of each range if an earlier attempt committed it.

        Raises:
            OffsetConflictError: Another run moved an offset.
            BrokerUnavailableError: The brokers did not respond within the deadline.
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

    def commit(self, counts: Sequence[SliceCounts]) -> None:
        """Add the planned end offsets, with the commit metadata, and commit.

        Args:
            counts: Record counts of each range of the slice.

        Raises:
            FencedError: A newer run took over; nothing that this run wrote is visible.
            TransactionTimedOutError: The transaction was open for longer than its timeout.
            CommitUnknownError: The outcome is unknown; the next run determines it by comparing the offsets.
            BrokerUnavailableError: The brokers are unavailable; nothing was committed.
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
        self._commit_offsets(offsets)

    def close(self) -> None:
        """Abort an open transaction and close the clients."""
        try:
            super().close()
        finally:
            self._clients.close()


def read_back(settings: ConnectionSettings, slice_: Slice, *, timeout_s: float) -> list[SliceCounts] | None:
    """Determine the outcome of a slice whose commit got no response or whose process ended.

    It first takes over the transactional id, which completes or aborts a pending commit.

    Args:
        settings: The connection.
        slice_: The slice.
        timeout_s: Transaction timeout, seconds.

    Returns:
        The counts of each range; None if nothing was committed, and nothing can be committed later.

    Raises:
        OffsetConflictError: Another run moved an offset since, so the outcome cannot be determined.
        BrokerUnavailableError: The brokers did not respond within the deadline.
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
    by = f", stored by run {stored.run_id}" if stored is not None else ""
    msg = (
        f"group {slice_.group} was at {expected} of {where} when this run planned {planned.range}, and is now at "
        f"{'no offset' if offset is None else f'offset {offset}'}{by}"
    )
    return OffsetConflictError(
        msg,
        fix="run again for the remaining records; another run processed this slice",
        group=slice_.group,
        topic=planned.range.topic,
        partition=planned.range.partition,
        expected=planned.committed,
        found=offset,
    )


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

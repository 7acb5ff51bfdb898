"""A slice in lanes: parts that are written in parallel and committed one after another.

Each lane has its own offset range, transaction and transactional id. A lane commits after the lane before it, so the
group's offset never skips a gap, and a run that ends between two lanes has committed the earlier ones. The first lane
commits under the id of the slice, so two runs conflict there as they do without lanes. Each later lane commits only if
the group's offset is at its start and was stored by its own slice. A run that plans while such lanes may still be
running takes over the offset first; see `settle`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from kpipe_platform.errors import FencedError, OffsetConflictError, TransactionTimedOutError
from kpipe_platform.kafka.admin.groups import Offsets
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata, SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice, lane_ids
from kpipe_platform.kafka.transactions.base import abort_lingering
from kpipe_platform.kafka.transactions.slice import SliceTransaction, conflict, is_of

logger = logging.getLogger(__name__)

# Interval at which a lane checks whether the lane before it has committed.
_POLL_INTERVAL_S = 0.02
_CLAIM_TIMEOUT_S = 60.0


def split(slice_: Slice, lanes: int) -> tuple[Slice, ...]:
    """Split a slice into lanes, in the order of their offsets; each has a share of every range.

    Args:
        slice_: A whole slice.
        lanes: Number of lanes, at most the number of offsets in the slice.
    """
    found = []
    for lane in range(lanes):
        ranges = []
        for planned in slice_.ranges:
            whole = planned.range
            start, end = (whole.start + whole.span * number // lanes for number in (lane, lane + 1))
            part = replace(planned, range=replace(whole, start=start, end=end))
            # Only the first lane reports what happened before the slice.
            ranges.append(part if lane == 0 else replace(part, committed=start, lost=None, resumed=False))
        # The other lanes take over their own ids.
        fence = tuple(f for f in slice_.fence if f not in lane_ids(slice_.base_id, lanes)) if lane == 0 else ()
        found.append(replace(slice_, ranges=tuple(ranges), fence=fence, lane=lane, lanes=lanes))
    return tuple(found)


State = Literal["mine", "wait", "earlier", "stopped"]


@dataclass(frozen=True)
class Turn:
    """Whether a lane may commit.

    Args:
        state: ``mine``: the lane may commit; ``wait``: an earlier lane is still running; ``earlier``: an earlier
            attempt committed this lane; ``stopped``: an earlier lane ended without a commit.
        counts: Record counts of the committed lanes, by range.
        offsets: The group's current offsets, by range.
    """

    state: State
    counts: tuple[SliceCounts, ...]
    offsets: tuple[int | None, ...]


def turn_of(lanes: Sequence[Slice], lane: int, found: Sequence[tuple[int | None, CommitMetadata | None]]) -> Turn:
    """Decide whether a lane may commit. Pure.

    Args:
        lanes: All lanes of the slice.
        lane: Index of the lane.
        found: The group's offset of each range, with its commit metadata.

    Raises:
        OffsetConflictError: Another run moved an offset.
    """
    slice_ = lanes[lane]
    done = 0
    counts, stopped = [], False
    for index, (offset, stored) in enumerate(found):
        first: PlannedRange = lanes[0].ranges[index]
        if stored is None or not is_of(stored, slice_):
            if offset != first.committed:
                raise conflict(slice_, first, offset, stored)
            counts.append(SliceCounts())
            continue
        done, stopped = stored.lane, stored.stopped
        # If the first lane stopped, the group's offset is unchanged, or is the start offset stored for a new group.
        expected = lanes[done - 1].ranges[index].range.end if done else first.range.start
        if offset != expected and (done or offset != first.committed):
            raise conflict(slice_, first, offset, stored)
        counts.append(stored.counts)
    state: State = "mine" if done == lane else "wait"
    if done > lane:
        state = "earlier"
    elif stopped:
        state = "stopped"
    return Turn(state, tuple(counts), tuple(offset for offset, _ in found))


class LaneTransaction(SliceTransaction):
    """One lane's transaction.

    Args:
        settings: The connection.
        lanes: All lanes of the slice.
        lane: Index of this lane.
        timeout_s: Transaction timeout, seconds; also the longest wait for the lane before this one.
        sleep: Sleep function, in seconds; injected for tests.
        others: Further arguments of `SliceTransaction`.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        lanes: Sequence[Slice],
        lane: int,
        *,
        timeout_s: float,
        sleep: Callable[[float], None] = time.sleep,
        **others: Any,
    ) -> None:
        super().__init__(settings, lanes[lane], timeout_s=timeout_s, **others)
        self._lanes, self._sleep = tuple(lanes), sleep

    def turn(self) -> Turn:
        """Check once whether this lane may commit; raises the errors of `turn_of`."""
        return turn_of(self._lanes, self._slice.lane, self.read_committed())

    def await_turn(self) -> Turn:
        """Wait until the lanes before this one have committed, or one of them has stopped.

        Raises:
            OffsetConflictError: Another run moved an offset.
            TransactionTimedOutError: The wait took longer than this lane's transaction timeout.
        """
        end = self._clock() + self._timeout_s
        while (found := self.turn()).state == "wait":
            if self._clock() > end:
                msg = (
                    f"the lanes before {self._slice} of group {self._group} did not commit within {self._timeout_s:g} s"
                )
                raise TransactionTimedOutError(
                    msg,
                    fix=self.timed_out_fix,
                    transaction_timeout_s=self._timeout_s,
                    group=self._slice.group,
                )
            self._sleep(_POLL_INTERVAL_S)
        return found

    def stop(self, turn: Turn) -> None:
        """Abort. If this lane was next to commit, also signal to the later lanes that it ended without a commit."""
        self.abort()
        if turn.state != "mine" or self._slice.lane + 1 == self._slice.lanes:
            return
        starts = [p.range.start for p in self._slice.ranges]
        current = [start if offset is None else offset for start, offset in zip(starts, turn.offsets, strict=True)]
        self.begin()
        self.commit_at(current, turn.counts, lane=self._slice.lane, stopped=True)


def lanes_read_back(settings: ConnectionSettings, lanes: Sequence[Slice]) -> tuple[int, tuple[SliceCounts, ...]]:
    """Determine the outcome of a slice in lanes, as `read_back` does for a whole slice.

    Args:
        settings: The connection.
        lanes: All lanes of the slice.

    Returns:
        The number of committed lanes, and their record counts by range.

    Raises:
        OffsetConflictError: Another run moved an offset since.
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    for lane in lanes:
        with suppress(FencedError):
            abort_lingering(settings, lane.transactional_id)
    with SliceTransaction(settings, lanes[0], timeout_s=_CLAIM_TIMEOUT_S) as transaction:
        found = transaction.read_committed()
    turns = [turn_of(lanes, lane, found) for lane in range(len(lanes))]
    return sum(turn.state == "earlier" for turn in turns), turns[0].counts


def unsettled(offsets: Offsets) -> bool:
    """Return whether lanes of an earlier slice may still be running for one of the partitions."""
    return any(not stored.metadata.is_whole for stored in offsets.values() if stored and stored.metadata)


def settle(settings: ConnectionSettings, group: str, offsets: Offsets, *, run_id: str, slice_id: str) -> None:
    """Take over the offsets of a slice whose lanes are partly committed, so that its other lanes cannot commit.

    The offsets are stored again, unchanged, under this run's id. A lane that checks its turn after that sees offsets
    of another slice and stops. A lane that checked before is fenced next, or has already committed; a plan made after
    this call sees its commit.

    Args:
        settings: The connection.
        group: Consumer group.
        offsets: The group's current offsets.
        run_id: Id of the run that takes over.
        slice_id: Name of the next slice.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    left: dict[tuple[str, int], list[PlannedRange]] = {}
    for (topic, number), found in sorted(offsets.items()):
        if found is None or found.metadata is None or found.metadata.is_whole:
            continue
        stored, at = found.metadata, found.offset
        current = PlannedRange(
            OffsetRange(topic, number, at, at), stored.topic_id, at, at, at, partitions=stored.partitions
        )
        left.setdefault((stored.unit, stored.lanes), []).append(current)
    for (unit, lanes), ranges in left.items():
        logger.info(
            "group %s: taking over from %s, because some of its %d lanes may still be running", group, unit, lanes
        )
        claim = Slice(group, run_id, f"{slice_id}/settled", tuple(ranges), unit=unit)
        with SliceTransaction(settings, claim, timeout_s=_CLAIM_TIMEOUT_S) as transaction:
            transaction.open()
            try:
                transaction.committed_earlier()
            except OffsetConflictError:
                # The next lane has committed in the meantime; the caller reads the offsets again.
                continue
            transaction.begin()
            transaction.commit([SliceCounts()] * len(ranges))
        for other in sorted(lane_ids(unit, lanes)):
            abort_lingering(settings, other)

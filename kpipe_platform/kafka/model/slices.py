"""A slice: the offset ranges that one commit moves, and the transactional ids that it uses."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from kpipe_platform.kafka.model.offsets import OffsetRange


@dataclass(frozen=True)
class PlannedRange:
    """One partition's part of a slice, with the state at plan time.

    Args:
        range: Offsets to read.
        topic_id: Id of the topic at plan time.
        log_start: First readable offset at plan time.
        end: Last stable offset (or log end) at plan time; the range's start if that is past it.
        committed: The group's offset that the commit compares with; None if the group must still have no offset.
        lost: Offsets that retention deleted before they were read; only with ``on_lost_offsets="skip"``.
        resumed: True if the group's offset expired or was deleted, and the range starts where Dagster's last
            materialization ended.
        is_past_stable: True if the offset is between the last stable offset and the log end, where nothing can be
            read until open transactions end.
        renew: True if the group's offset is so old that it is stored again although nothing is read.
        partitions: Number of partitions in the topic when the group started to read this partition; None if unknown.
    """

    range: OffsetRange
    topic_id: str
    log_start: int
    end: int
    committed: int | None
    lost: OffsetRange | None = None
    is_past_stable: bool = False
    renew: bool = False
    resumed: bool = False
    partitions: int | None = None

    @property
    def backlog(self) -> int:
        """Number of offsets after this range, left for later slices."""
        return self.end - self.range.end


@dataclass(frozen=True)
class Slice:
    """The offset ranges of one consumer group that one commit moves.

    Args:
        group: Consumer group.
        run_id: Id of the run that processes the slice.
        slice_id: Name of the slice within the run; the same for every attempt of its tasks.
        ranges: One per Kafka partition, in order.
        fence: Transactional ids to fence: those that committed these partitions before under another layout, and
            those that lanes may have left open.
        unit: Transactional id, if it is not the one derived from these ranges: an id from an earlier version, or the
            id of the slice that this one is part of. None for the id derived from the ranges.
        lane: Index of this lane; 0 for the first.
        lanes: Number of lanes that are written in parallel; 1 for a slice that is written whole.
    """

    group: str
    run_id: str
    slice_id: str
    ranges: tuple[PlannedRange, ...]
    fence: tuple[str, ...] = ()
    unit: str | None = None
    lane: int = 0
    lanes: int = 1

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to read."""
        return all(planned.range.is_empty for planned in self.ranges)

    @property
    def moves_offsets(self) -> bool:
        """True if a commit is needed, even if only to store a new group's first offset or to renew an old one."""
        return any(planned.committed != planned.range.end or planned.renew for planned in self.ranges)

    @property
    def span(self) -> int:
        """Number of offsets in all ranges, an upper bound on the number of records."""
        return sum(planned.range.span for planned in self.ranges)

    @property
    def base_id(self) -> str:
        """Transactional id of the first lane; the same for every slice of the same partitions."""
        return self.unit or transactional_id(self.group, [planned.range for planned in self.ranges])

    @property
    def transactional_id(self) -> str:
        """Transactional id under which this slice, or this lane of it, commits."""
        return lane_id(self.base_id, self.lane)

    @property
    def probe_id(self) -> str:
        """Transactional id for test writes that find refused records; its transactions are always aborted."""
        return f"{self.transactional_id}.probe"

    def rest(self, starts: Sequence[int], committed: Sequence[int | None]) -> Slice:
        """Return the rest of the slice.

        Args:
            starts: New start offset of each range.
            committed: The group's current offset of each range.
        """
        ranges = tuple(
            replace(
                p,
                range=replace(p.range, start=start),
                committed=stored,
                lost=p.lost if start == p.range.start else None,
                resumed=p.resumed and start == p.range.start,
            )
            for p, start, stored in zip(self.ranges, starts, committed, strict=True)
        )
        first, last = ranges[0].range, ranges[-1].range
        name = f"{self.slice_id}/{first.partition}.{first.start}-{last.end}"
        return replace(self, slice_id=name, ranges=ranges, unit=self.base_id)

    def __str__(self) -> str:
        return ", ".join(str(planned.range) for planned in self.ranges)


def transactional_id(group: str, ranges: Iterable[OffsetRange], committed: Container[str] = ()) -> str:
    """Return ``{group}/{topic}/{partition}``, or ``{group}/{topic}/all`` for a slice over several partitions.

    A topic name cannot contain a slash, so no two groups and topics share an id. Earlier versions used dots. Two runs
    of one partition under different ids would not fence each other, so an id with dots stays in use if the last commit
    used it.

    Args:
        group: Consumer group.
        ranges: The slice's ranges; the id contains the first topic in alphabetical order.
        committed: The ids that committed the offsets at which the ranges start.
    """
    ordered = sorted(ranges)
    if not ordered:
        # Outputs without a source: only the asset can name the transaction.
        return f"{group}.out"
    former = dotted_id(group, ordered)
    return former if former in committed else _joined("/", group, ordered)


def dotted_id(group: str, ranges: Iterable[OffsetRange]) -> str:
    """Return the transactional id in the format of earlier versions: ``{group}.{topic}.{partition}``."""
    return _joined(".", group, sorted(ranges))


def _joined(separator: str, group: str, ordered: Sequence[OffsetRange]) -> str:
    numbers = {r.partition for r in ordered}
    last = str(ordered[0].partition) if len(numbers) == 1 else "all"
    return separator.join((group, ordered[0].topic, last))


def lane_id(base: str, lane: int) -> str:
    """Return the transactional id of one lane of a slice."""
    return f"{base}.lane-{lane}" if lane else base


def lane_ids(base: str, lanes: int) -> set[str]:
    """Return the transactional ids of all lanes except the first."""
    return {lane_id(base, lane) for lane in range(1, lanes)}

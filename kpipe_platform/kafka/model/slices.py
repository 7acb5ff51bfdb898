"""A slice: the offset ranges that one commit moves, and the transactional ids under which it does."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from kpipe_platform.kafka.model.offsets import OffsetRange


@dataclass(frozen=True)
class PlannedRange:
    """One partition's part of a slice, with what the plan knew.

    Args:
        range: Offsets to read.
        topic_id: Id of the topic at plan time.
        log_start: First readable offset at plan time.
        end: Last stable offset (or log end) at plan time; the range's start where that lies past it.
        committed: The group's offset that the commit compares with; None: the group must still have none.
        lost: Offsets that retention took before they were read; only with ``on_lost_offsets="skip"``.
        resumed: The group's offset expired or was deleted, and the range begins where Dagster's last materialisation
            ended.
        is_past_stable: The offset lies between the last stable offset and the log's end, where nothing can be read
            before open transactions end.
        renew: The group's offset is so old that it is stored again though nothing is read.
        partitions: Partitions that the topic had when the group began in this one; None: not known.
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
        """Offsets behind this range that wait for a later slice."""
        return self.end - self.range.end


@dataclass(frozen=True)
class Slice:
    """The offset ranges that one commit moves, of one group.

    Args:
        group: Consumer group.
        run_id: Who takes the slice.
        slice_id: Name of the slice within the run; the same for every attempt of its tasks.
        ranges: One per Kafka partition, in order.
        fence: Transactional ids that committed these partitions before under another layout, or may have been left
            open by lanes.
        unit: The transactional id, where it is not that of these ranges: an earlier version's, or that of the slice
            of which this one is a part. None: the id of the ranges.
        lane: Which of the lanes this is.
        lanes: Lanes that are written at the same time; 1 for a slice that is written whole.
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
        """True when there is nothing to read."""
        return all(planned.range.is_empty for planned in self.ranges)

    @property
    def moves_offsets(self) -> bool:
        """True when a commit is needed, be it only to store where a new group begins, or to renew an old offset."""
        return any(planned.committed != planned.range.end or planned.renew for planned in self.ranges)

    @property
    def span(self) -> int:
        """Number of offsets in all ranges: an upper bound of the number of records."""
        return sum(planned.range.span for planned in self.ranges)

    @property
    def base_id(self) -> str:
        """Transactional id of the first lane; the same for every slice of the same partitions."""
        return self.unit or transactional_id(self.group, [planned.range for planned in self.ranges])

    @property
    def transactional_id(self) -> str:
        """The id under which this slice, or this lane of it, commits."""
        return lane_id(self.base_id, self.lane)

    @property
    def probe_id(self) -> str:
        """The id under which refused records are tried, in transactions that are always aborted."""
        return f"{self.transactional_id}.probe"

    def rest(self, starts: Sequence[int], committed: Sequence[int | None]) -> Slice:
        """What is left of the slice from some offsets on, one for each range, where the group stands now."""
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
    """``{group}/{topic}/{partition}``; ``{group}/{topic}/all`` for a slice over several partitions.

    A topic's name has no slash, so that no two groups and topics share an id. Earlier versions wrote dots, and two runs
    of one partition under two ids would not fence each other: where the last commit was under such an id, it stays.

    Args:
        group: Consumer group.
        ranges: The slice's ranges; the first topic in alphabetical order is named.
        committed: The ids that committed the offsets at which the ranges begin.
    """
    ordered = sorted(ranges)
    if not ordered:
        # Outputs without a source: nothing but the asset itself names the transaction.
        return f"{group}.out"
    former = dotted_id(group, ordered)
    return former if former in committed else _joined("/", group, ordered)


def dotted_id(group: str, ranges: Iterable[OffsetRange]) -> str:
    """The transactional id by the rule of earlier versions: ``{group}.{topic}.{partition}``."""
    return _joined(".", group, sorted(ranges))


def _joined(separator: str, group: str, ordered: Sequence[OffsetRange]) -> str:
    numbers = {r.partition for r in ordered}
    last = str(ordered[0].partition) if len(numbers) == 1 else "all"
    return separator.join((group, ordered[0].topic, last))


def lane_id(base: str, lane: int) -> str:
    """Transactional id of one lane of a slice."""
    return f"{base}.lane-{lane}" if lane else base


def lane_ids(base: str, lanes: int) -> set[str]:
    """Transactional ids of the lanes behind the first one."""
    return {lane_id(base, lane) for lane in range(1, lanes)}

"""Report: what became of slices, added up. Totals are exact, and a summary does not grow with the slices."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kpipe_platform.errors import PartitionsFailedError
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.slices.run.latency import Latencies
from kpipe_platform.slices.values import Unit
from kpipe_platform.spark.sink.spec import FaultSample, PreviewRow
from kpipe_platform.spark.stage.notes import RuleCount

logger = logging.getLogger(__name__)

# Rows of a table in the metadata; Dagster stores the whole of it with every event.
TABLE_ROWS = 100
PREVIEW_ROWS = 5
# Reasons hold values of records, so there may be as many as dead letters. Past this many the rare ones go together.
_REASONS = 1_000
_OTHERS = "(reasons of fewer records)"


@dataclass(frozen=True)
class IsolationCost:
    """The cost of finding the records that a stage fails on.

    Args:
        calls: Calls of the stage on parts of the slice.
        records: Records that it fails on.
        duration_s: Seconds from the first failure to the end of the search.
    """

    calls: int
    records: int
    duration_s: float

    def __add__(self, other: IsolationCost) -> IsolationCost:
        """Both together."""
        return IsolationCost(self.calls + other.calls, self.records + other.records, self.duration_s + other.duration_s)


@dataclass(frozen=True)
class SliceReport:
    """What became of one slice.

    Args:
        slice: The plan.
        counts: Counted records by range.
        counted_output: False where another IO manager stored the output and nobody counted it.
        reasons: Dead letters and skipped records by reason.
        samples: The first of them.
        rules: What each rule found, by name.
        preview: The first written records.
        columns: Name and type of each column of the stage's output.
        steps_s: Seconds by step.
        duration_s: Seconds of the whole slice.
        isolation: The cost of finding the records that the stage fails on; None where it did not fail.
        lanes: Lanes that the slice was written in; 1: in one transaction.
        metadata: What the stage added to the metadata of its asset.
    """

    slice: Slice
    counts: Sequence[SliceCounts]
    counted_output: bool = True
    reasons: Mapping[str, int] = field(default_factory=dict)
    samples: Sequence[FaultSample] = ()
    rules: Mapping[str, RuleCount] = field(default_factory=dict)
    preview: Sequence[PreviewRow] = ()
    columns: Sequence[tuple[str, str]] = ()
    steps_s: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0
    isolation: IsolationCost | None = None
    lanes: int = 1
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> SliceCounts:
        """The counts of all ranges together."""
        return sum(self.counts, SliceCounts())


@dataclass(frozen=True)
class Row:
    """One Kafka partition's part of one slice.

    Args:
        planned: Its plan.
        counts: Its counted records.
        duration_s: Seconds of the slice.
    """

    planned: PlannedRange
    counts: SliceCounts
    duration_s: float


@dataclass
class Moved:
    """Where a partition's offset was and is.

    Args:
        start: First offset of the run.
        end: End of its last slice.
        topic_id: Id of the topic then.
    """

    start: int
    end: int
    topic_id: str


@dataclass
class RunSummary:
    """Adds up the slices of a run, or of one Kafka partition in it.

    Attributes:
        slices: Slices, or parts of slices, that were added.
        total: Counted records.
        counted_output: False where another IO manager stored an output and nobody counted it.
        duration_s: Seconds of all slices; without those of waiting between them.
        steps_s: Seconds by step.
        last: The last slice; None before the first.
        moved: The offsets of each partition.
        reasons: Dead letters and skipped records by reason.
        rules: What each rule found, by name.
        lanes: The most lanes that a slice was written in.
        preview: The first written records.
        columns: Name and type of each column of the stage's output.
        lost: The first ranges that retention took, as text.
        resumed: The first ranges that begin where Dagster's last materialization ended.
        latencies: Produce to commit, of slices that followed the stream.
        metadata: What the stage added to the metadata of its asset; of several slices, the last value of each name.
        isolation: The cost of finding the records that the stage fails on; None where it did not fail.
        busy: The last rows of slices that had something to read.
        idle: The last rows of those that had nothing.
    """

    slices: int = 0
    total: SliceCounts = field(default_factory=SliceCounts)
    counted_output: bool = True
    duration_s: float = 0.0
    steps_s: dict[str, float] = field(default_factory=dict)
    last: SliceReport | None = None
    moved: dict[Partition, Moved] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    rules: dict[str, RuleCount] = field(default_factory=dict)
    lanes: int = 1
    preview: list[PreviewRow] = field(default_factory=list)
    columns: Sequence[tuple[str, str]] = ()
    lost: list[str] = field(default_factory=list)
    resumed: list[OffsetRange] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)
    metadata: dict[str, Any] = field(default_factory=dict)
    isolation: IsolationCost | None = None
    busy: deque[Row] = field(default_factory=partial(deque, maxlen=TABLE_ROWS))
    idle: deque[Row] = field(default_factory=partial(deque, maxlen=TABLE_ROWS))

    @classmethod
    def of(cls, reports: Iterable[SliceReport]) -> RunSummary:
        """The summary of some slices, in order."""
        made = cls()
        for report in reports:
            made.add(report)
        return made

    def committed(self, report: SliceReport) -> None:
        """Log a slice that a run has committed, and add it where it says something.

        A run that catches up ends with the slice that did it, not with an empty one after it; one that lost offsets,
        or the group's own, says so though nothing is left to read.
        """
        total, ranges = report.total, report.slice.ranges
        logger.info(
            "slice done: %s: read %s, written %s, dead letters %s, skipped %s, in %.2f s",
            *(report.slice, total.read, total.written, total.dead_lettered, total.skipped, report.duration_s),
        )
        is_empty = all(planned.range.is_empty for planned in ranges)
        if not is_empty or not self.slices or any(planned.lost or planned.resumed for planned in ranges):
            self.add(report)

    def add(self, report: SliceReport) -> None:
        """Add a slice, or a part of one, that is committed."""
        self.slices += 1
        self.last = report
        self.total += report.total
        self.counted_output = self.counted_output and report.counted_output
        self.duration_s += report.duration_s
        for step, seconds in report.steps_s.items():
            self.steps_s[step] = self.steps_s.get(step, 0.0) + seconds
        self.lanes = max(self.lanes, report.lanes)
        self.preview += report.preview[: PREVIEW_ROWS - len(self.preview)]
        self.columns = report.columns or self.columns
        self.metadata |= report.metadata
        for name, count in report.rules.items():
            self.rules[name] = count + self.rules[name] if name in self.rules else count
        self._add_reasons(report.reasons)
        if report.isolation is not None:
            self.isolation = report.isolation + self.isolation if self.isolation else report.isolation
        self._add_ranges(report)

    def _add_reasons(self, reasons: Mapping[str, int]) -> None:
        for reason, count in reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        if len(self.reasons) > _REASONS:
            rare = sorted(self.reasons, key=lambda r: (r == _OTHERS, -self.reasons[r]))[_REASONS // 2 :]
            self.reasons[_OTHERS] = sum(self.reasons.pop(reason) for reason in rare)

    def _add_ranges(self, report: SliceReport) -> None:
        for planned in report.slice.ranges:
            r = planned.range
            found = self.moved.setdefault((r.topic, r.partition), Moved(r.start, r.end, planned.topic_id))
            found.end, found.topic_id = r.end, planned.topic_id
            if planned.lost and len(self.lost) < TABLE_ROWS:
                self.lost.append(str(planned.lost))
            if planned.resumed and len(self.resumed) < TABLE_ROWS:
                self.resumed.append(planned.range)
        # Outputs without a source are counted too, under no range.
        for planned, counts in zip(report.slice.ranges, report.counts, strict=False):
            rows = self.idle if planned.range.is_empty else self.busy
            rows.append(Row(planned, counts, report.duration_s))


@dataclass
class PartitionResult:
    """What a run did with one unit.

    Args:
        unit: The unit.
        summary: The slices that are committed.
        error: Why it stopped early; None where it did not.
    """

    unit: Unit
    summary: RunSummary = field(default_factory=RunSummary)
    error: Exception | None = None


def partitions_failed(results: Iterable[PartitionResult]) -> Exception:
    """The error of a run over several partitions of which some failed."""
    done, failed = list[int](), dict[int, Exception]()
    for result in results:
        number = result.unit.partition
        if number is not None and result.error is not None:
            failed[number] = result.error
        elif number is not None:
            done.append(number)
    if len(failed) == 1 and not done:
        return next(iter(failed.values()))
    listed = "\n".join(f"    partition {number}: {error}" for number, error in sorted(failed.items()))
    msg = f"{len(failed)} of {len(failed) + len(done)} partitions failed, the others are committed:\n{listed}"
    return PartitionsFailedError(
        msg, fix="fix the cause and run the failed partitions again", errors=failed, done=sorted(done)
    )

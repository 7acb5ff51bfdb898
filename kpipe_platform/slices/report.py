"""Report: results of slices and their sums. Totals are exact. The size of a summary does not grow with the slices."""

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
from kpipe_platform.spark.sink.spec import FaultSample, PreviewRow, first_of_topics, sum_by_topic
from kpipe_platform.spark.stage.notes import RuleCount

logger = logging.getLogger(__name__)

# Maximum rows of a metadata table. Dagster stores the whole table with every event.
TABLE_ROWS = 100
PREVIEW_ROWS = 5
# Reasons contain values of records, so there may be as many reasons as dead letters. Above this number, the rare ones
# are merged.
_REASONS = 1_000
_OTHERS = "(other reasons)"


@dataclass(frozen=True)
class IsolationCost:
    """The cost of finding the records that a stage fails on.

    Args:
        calls: Calls of the stage on parts of the slice.
        records: Records that the stage fails on.
        duration_s: Seconds from the first failure to the end of the search.
    """

    calls: int
    records: int
    duration_s: float

    def __add__(self, other: IsolationCost) -> IsolationCost:
        """Return the sum of both costs."""
        return IsolationCost(self.calls + other.calls, self.records + other.records, self.duration_s + other.duration_s)


@dataclass(frozen=True)
class SliceReport:
    """The result of one slice.

    Args:
        slice: The plan.
        counts: Counted records by range.
        counted_output: False if another IO manager stored the output, so that written records were not counted.
        reasons: Number of dead letters and skipped records by reason.
        samples: The first dead letters and skipped records.
        rules: Results of each rule, by name.
        preview: The first written records of each topic.
        written: Number of written records by topic; None if it is unknown, because an earlier attempt wrote them.
        columns: Name and type of each column of the stage's output, by topic.
        steps_s: Seconds by step.
        duration_s: Seconds of the whole slice.
        isolation: Cost of finding the records that the stage fails on; None if it did not fail.
        lanes: Number of lanes in which the slice was written; 1: in one transaction.
        metadata: Metadata that the stage added, by topic and name; topic None: that of all outputs.
    """

    slice: Slice
    counts: Sequence[SliceCounts]
    counted_output: bool = True
    reasons: Mapping[str, int] = field(default_factory=dict)
    samples: Sequence[FaultSample] = ()
    rules: Mapping[str, RuleCount] = field(default_factory=dict)
    preview: Sequence[PreviewRow] = ()
    written: Mapping[str, int] | None = field(default_factory=dict)
    columns: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    steps_s: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0
    isolation: IsolationCost | None = None
    lanes: int = 1
    metadata: Mapping[tuple[str | None, str], Any] = field(default_factory=dict)

    @property
    def total(self) -> SliceCounts:
        """The sum of the counts of all ranges."""
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
    """The offsets of a partition before and after a run.

    Args:
        start: First offset of the run.
        end: End of its last slice.
        topic_id: Id of the topic at that time.
    """

    start: int
    end: int
    topic_id: str


@dataclass
class RunSummary:
    """The sum of the slices of a run, or of one Kafka partition in a run.

    Attributes:
        slices: Number of slices, or parts of slices, that were added.
        total: Counted records.
        counted_output: False if another IO manager stored an output, so that written records were not counted.
        duration_s: Seconds of all slices, without the waits between them.
        steps_s: Seconds by step.
        last: The last slice; None before the first.
        moved: The offsets of each partition before and after the run.
        reasons: Number of dead letters and skipped records by reason.
        rules: Results of each rule, by name.
        lanes: Largest number of lanes of a slice.
        preview: The first written records of each topic.
        written: Number of written records by topic; None if it is unknown for one of the slices.
        columns: Name and type of each column of the stage's output, by topic.
        lost: The first ranges that retention deleted before they were read, as text.
        resumed: The first ranges that start where Dagster's last materialization ended.
        latencies: Produce-to-commit latencies of slices that followed the stream.
        metadata: As in ``SliceReport``. The last slice's value of each name wins.
        isolation: Cost of finding the records that the stage fails on; None if it did not fail.
        busy: The last rows with records to read.
        idle: The last rows of empty ranges.
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
    written: dict[str, int] | None = field(default_factory=dict)
    columns: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    resumed: list[OffsetRange] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)
    metadata: dict[tuple[str | None, str], Any] = field(default_factory=dict)
    isolation: IsolationCost | None = None
    busy: deque[Row] = field(default_factory=partial(deque, maxlen=TABLE_ROWS))
    idle: deque[Row] = field(default_factory=partial(deque, maxlen=TABLE_ROWS))

    @classmethod
    def of(cls, reports: Iterable[SliceReport]) -> RunSummary:
        """Return the summary of slices in their order."""
        made = cls()
        for report in reports:
            made.add(report)
        return made

    def committed(self, report: SliceReport) -> None:
        """Log a committed slice, and add it unless it is empty and adds no information.

        An empty slice is added if it is the first one, if it lost offsets, or if it resumed from Dagster's last
        materialization. An empty slice at the end of a run that caught up is not added.
        """
        total, ranges = report.total, report.slice.ranges
        logger.info(
            "slice committed: %s: read %s, written %s, dead letters %s, skipped %s, in %.2f s",
            *(report.slice, total.read, total.written, total.dead_lettered, total.skipped, report.duration_s),
        )
        is_empty = all(planned.range.is_empty for planned in ranges)
        if not is_empty or not self.slices or any(planned.lost or planned.resumed for planned in ranges):
            self.add(report)

    def add(self, report: SliceReport) -> None:
        """Add a committed slice, or a committed part of one."""
        self.slices += 1
        self.last = report
        self.total += report.total
        self.counted_output = self.counted_output and report.counted_output
        self.duration_s += report.duration_s
        for step, seconds in report.steps_s.items():
            self.steps_s[step] = self.steps_s.get(step, 0.0) + seconds
        self.lanes = max(self.lanes, report.lanes)
        self.preview = first_of_topics([*self.preview, *report.preview], PREVIEW_ROWS)
        self.written = sum_by_topic(self.written, report.written)
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
            moved = self.moved.setdefault((r.topic, r.partition), Moved(r.start, r.end, planned.topic_id))
            moved.end, moved.topic_id = r.end, planned.topic_id
            if planned.lost and len(self.lost) < TABLE_ROWS:
                self.lost.append(str(planned.lost))
            if planned.resumed and len(self.resumed) < TABLE_ROWS:
                self.resumed.append(planned.range)
        # Outputs without a source have counts but no range.
        for planned, counts in zip(report.slice.ranges, report.counts, strict=False):
            rows = self.idle if planned.range.is_empty else self.busy
            rows.append(Row(planned, counts, report.duration_s))


@dataclass
class PartitionResult:
    """The result of one unit of a run.

    Args:
        unit: The unit.
        summary: The committed slices.
        error: Error that stopped the unit early; None if there was none.
    """

    unit: Unit
    summary: RunSummary = field(default_factory=RunSummary)
    error: Exception | None = None


def partitions_failed(results: Iterable[PartitionResult]) -> Exception:
    """Return the error of a run in which one or more partitions failed."""
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
    msg = f"{len(failed)} of {len(failed) + len(done)} partitions failed; the others are committed:\n{listed}"
    return PartitionsFailedError(
        msg, fix="fix the cause and run the failed partitions again", errors=failed, done=sorted(done)
    )

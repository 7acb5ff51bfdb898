"""What a run did, added up slice by slice: totals are exact, and its size does not grow with the slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe_platform.io_managers.latency import Latencies
from kpipe_platform.io_managers.staged import IsolationCost, SliceReport
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.kafka.offsets import OffsetRange, Partition
from kpipe_platform.kafka.slices import PlannedRange
from kpipe_platform.spark.stage_notes import RuleCount
from kpipe_platform.spark.writer_spec import PreviewRow

# Rows of a table in the metadata; Dagster stores the whole of it with every event.
TABLE_ROWS = 100
PREVIEW_ROWS = 5
# Reasons hold values of records, so there may be as many as dead letters. Past this many the rare ones go together.
_REASONS = 1_000
_OTHERS = "(reasons of fewer records)"


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


class Tally:
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
        resumed: The first ranges that begin where Dagster's last materialisation ended.
        latencies: Produce to commit, of slices that followed the stream.
        metadata: What the stage added to the metadata of its asset; of several slices, the last value of each name.
    """

    def __init__(self) -> None:
        self.slices = 0
        self.total = SliceCounts()
        self.counted_output = True
        self.duration_s = 0.0
        self.steps_s: dict[str, float] = {}
        self.last: SliceReport | None = None
        self.moved: dict[Partition, Moved] = {}
        self.reasons: dict[str, int] = {}
        self.rules: dict[str, RuleCount] = {}
        self.lanes = 1
        self.preview: list[PreviewRow] = []
        self.columns: Sequence[tuple[str, str]] = ()
        self.lost: list[str] = []
        self.resumed: list[OffsetRange] = []
        self.latencies = Latencies()
        self.metadata: dict[str, Any] = {}
        self.isolation: IsolationCost | None = None
        self._busy: deque[Row] = deque(maxlen=TABLE_ROWS)
        self._idle: deque[Row] = deque(maxlen=TABLE_ROWS)

    @classmethod
    def of(cls, reports: Iterable[SliceReport]) -> Tally:
        """The tally of some slices, in order."""
        made = cls()
        for report in reports:
            made.add(report)
        return made

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

    @property
    def rows(self) -> list[Row]:
        """The last rows. Partitions that had nothing new would hide those that had, so they stand here only alone."""
        return list(self._busy or self._idle)

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
            rows = self._idle if planned.range.is_empty else self._busy
            rows.append(Row(planned, counts, report.duration_s))

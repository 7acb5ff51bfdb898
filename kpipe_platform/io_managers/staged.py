"""A slice on its way through the house: what its stage returned, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.dead_letters import Retry, Segment
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.spark.frames import SliceFrames
from kpipe_platform.spark.stage_notes import RuleCount, StageNotes
from kpipe_platform.spark.writer_spec import FaultSample, PreviewRow


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

    @property
    def lag(self) -> int:
        """Offsets that waited behind the slice when it was planned."""
        return sum(planned.backlog for planned in self.slice.ranges)


@dataclass(frozen=True)
class LanesReport:
    """What became of a slice in lanes.

    Args:
        done: The part that is committed; None where there is none.
        rest: What is left, to be taken in one transaction; None where nothing is.
        error: Why the rest is not to be taken now.
    """

    done: SliceReport | None
    rest: Slice | None
    error: Exception | None


@dataclass(frozen=True)
class Staged:
    """A slice whose stage was called.

    Args:
        slice: The plan.
        reads: The slice's sources by input name.
        output: What the stage returned; None where every record of the slice is among the notes' faults.
        notes: What its rules and row functions set aside.
        segments: What the slice went through until now, for the envelopes of its dead letters.
        retries: Attempts that failed before.
    """

    slice: Slice
    reads: Mapping[str, tuple[KafkaTopic, SliceFrames]]
    output: Any
    notes: StageNotes
    segments: tuple[Segment, ...] = ()
    retries: tuple[Retry, ...] = ()

    @property
    def frames(self) -> list[SliceFrames]:
        """The frames of all sources."""
        return [frames for _, frames in self.reads.values()]

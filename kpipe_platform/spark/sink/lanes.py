"""The driver's side of a slice in lanes: one Spark job whose tasks write at the same time."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.spark.sink.job import merged, outcomes_of, write_rows
from kpipe_platform.spark.sink.rows import WriterRows, slice_rows, with_end
from kpipe_platform.spark.sink.spec import Outcome, WriterSpec
from kpipe_platform.spark.sink.task.lane import run_lane
from kpipe_platform.spark.sink.task.writer import OUTCOME_SCHEMA
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.notes import StageNotes

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class LaneRows:
    """What is to be written of one lane.

    Args:
        output: Rows of ``output_rows``.
        frames: The lane's source.
        notes: What the stage set aside in it.
        spec: What to do; its slice is the lane.
    """

    output: WriterRows | None
    frames: list[SliceFrames]
    notes: StageNotes
    spec: WriterSpec


@dataclass(frozen=True)
class LanesOutcome:
    """What became of the lanes.

    Args:
        done: How many of them are committed, from the first one on.
        outcome: What these did together; None where there are none.
        error: Why the next one failed; None where it only has to be written in another way.
    """

    done: int
    outcome: Outcome | None
    error: Exception | None = None


def write_lanes(whole: Slice, lanes: Sequence[LaneRows]) -> LanesOutcome:
    """Write the lanes of a slice at the same time; they commit one after another.

    Args:
        whole: The slice.
        lanes: Its lanes, in order.

    Raises:
        RecordFaultError: A limit is set, a record failed, and the action is to stop; nothing is written.
        DeadLetterLimitError: More records failed than the limit allows; nothing is written.
        StageFailedError: The stage raised; nothing is committed.
        KpipeError: Anything else that Spark failed on.
    """
    _refuse_over_limit(whole, lanes)
    specs = [replace(lane.spec, started_ms=int(time.time() * 1000)) for lane in lanes]
    rows = [with_end(slice_rows(lane.output, lane.frames, lane.spec.slice, lane.notes)) for lane in lanes]
    ordered = (
        functools.reduce(DataFrame.union, [each.frame.withColumn("lane", F.lit(i)) for i, each in enumerate(rows)])
        .repartitionById(len(lanes), "lane")
        .sortWithinPartitions(*rows[0].order)
        .select("key", "value", "note", *rows[0].extra)
    )
    # Barrier mode starts all lanes or none: one that waits for its turn must not hold the slot of the one before it.
    outcomes = outcomes_of(ordered.mapInArrow(_writer(specs), OUTCOME_SCHEMA, barrier=True), whole)
    done = 0
    while done < len(outcomes) and outcomes[done].status in ("committed", "committed_earlier"):
        done += 1
    together = None
    if done:
        together = functools.reduce(merged, outcomes[:done])
        # Each lane counts those before it too.
        together.counts = outcomes[done - 1].counts
    return LanesOutcome(done, together, _error(outcomes[done:]))


def _refuse_over_limit(whole: Slice, lanes: Sequence[LaneRows]) -> None:
    """The limit is for the whole slice, and a lane cannot take back what those before it committed."""
    spec = replace(lanes[0].spec, slice=whole, mode="count", topic=None)
    can_fault = any(lane.notes.faults or any(f.can_fault for f in lane.frames) for lane in lanes)
    if spec.limit.ratio is None or not can_fault:
        return
    rows = [slice_rows(None, lane.frames, whole, lane.notes).frame for lane in lanes]
    write_rows(WriterRows(functools.reduce(DataFrame.union, rows)), spec)


def _error(ended: Sequence[Outcome]) -> Exception | None:
    """Why the lanes ended that did not commit: the first one's reason, unless it only waited for another."""
    return None if not ended or ended[0].status == "stopped" else ended[0].failure


def _writer(specs: Sequence[WriterSpec]) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101  # runs in a task
        yield from run_lane(specs, context.partitionId(), batches)

    return write

"""The driver's side of writing a slice in lanes: one Spark job whose tasks write in parallel."""

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
    """The rows of one lane and how to write them.

    Args:
        output: Rows of ``output_rows``.
        frames: The lane's sources.
        notes: Records that the stage set aside in the lane.
        spec: The writer's instructions; its slice is the lane.
    """

    output: WriterRows | None
    frames: list[SliceFrames]
    notes: StageNotes
    spec: WriterSpec


@dataclass(frozen=True)
class LanesOutcome:
    """The result of writing a slice in lanes.

    Args:
        done: Number of committed lanes, counted from the first lane.
        outcome: Combined outcome of the committed lanes; None if there are none.
        error: Error of the first lane that did not commit; None if the rest only needs to be written another way.
    """

    done: int
    outcome: Outcome | None
    error: Exception | None = None


def write_lanes(whole: Slice, lanes: Sequence[LaneRows]) -> LanesOutcome:
    """Write the lanes of a slice in parallel. They commit in order.

    Args:
        whole: The slice.
        lanes: Its lanes, in order.

    Raises:
        RecordFaultError: A limit is set, a record failed, and the action is to stop; nothing is written.
        DeadLetterLimitError: More records failed than the limit allows; nothing is written.
        StageFailedError: The stage raised an exception; nothing is committed.
        KpipeError: The Spark job failed for another reason.
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
    # Barrier mode starts all lanes or none: a lane that waits for its turn must not occupy the slot of an earlier lane.
    outcomes = outcomes_of(ordered.mapInArrow(_writer(specs), OUTCOME_SCHEMA, barrier=True), whole)
    done = 0
    while done < len(outcomes) and outcomes[done].status in ("committed", "committed_earlier"):
        done += 1
    together = None
    if done:
        together = functools.reduce(merged, outcomes[:done])
        # The counts of each lane include those of all lanes before it.
        together.counts = outcomes[done - 1].counts
    return LanesOutcome(done, together, _error(outcomes[done:]))


def _refuse_over_limit(whole: Slice, lanes: Sequence[LaneRows]) -> None:
    """Check the limit for the whole slice before writing, since a lane cannot undo the commits of earlier lanes."""
    spec = replace(lanes[0].spec, slice=whole, mode="count", outputs=())
    can_fault = any(lane.notes.faults or any(f.can_fault for f in lane.frames) for lane in lanes)
    if spec.limit.ratio is None or not can_fault:
        return
    rows = [slice_rows(None, lane.frames, whole, lane.notes).frame for lane in lanes]
    write_rows(WriterRows(functools.reduce(DataFrame.union, rows)), spec)


def _error(ended: Sequence[Outcome]) -> Exception | None:
    """The error of the first lane that did not commit; None if that lane has status ``stopped``."""
    return None if not ended or ended[0].status == "stopped" else ended[0].failure


def _writer(specs: Sequence[WriterSpec]) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101  # runs in a task
        yield from run_lane(specs, context.partitionId(), batches)

    return write

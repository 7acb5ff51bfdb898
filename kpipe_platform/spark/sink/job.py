"""The driver's side of the write: runs the passes over a slice and evaluates their outcomes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform.errors import DestinationRejectedError, KpipeError
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.policies.actions import stops
from kpipe_platform.policies.faults import Component
from kpipe_platform.spark.failures import classify
from kpipe_platform.spark.sink.errors import over_limit, reasons_of, rejected_records, stopped_by_faults
from kpipe_platform.spark.sink.outcome_json import outcome_of_json
from kpipe_platform.spark.sink.rows import WriterRows, fault_rows, slice_rows, stage_rows, with_end
from kpipe_platform.spark.sink.spec import Outcome, WriterSpec, first_of_topics, sum_by_topic
from kpipe_platform.spark.sink.task.writer import OUTCOME_SCHEMA, run_writer
from kpipe_platform.spark.source.cache import RowCache
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.notes import RuleCount, StageNotes

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# If the destination rejects this many records of a slice, the records are not the cause.
_MAX_REJECTED = 100_000
# Passes over one slice: write, find the refused records, write without them. Twice, because a refused record can hide
# another one.
_MAX_PASSES = 6


def write_slice(
    output: WriterRows | None, frames: list[SliceFrames], spec: WriterSpec, notes: StageNotes | None = None
) -> Outcome:
    """Write a slice. Rejected records may require several passes.

    Args:
        output: Rows of ``output_rows``; None to write dead letters only.
        frames: The slice's sources.
        spec: The writer's instructions.
        notes: Records that the stage set aside, and its rule counts.

    Returns:
        The outcome, with status ``committed``, ``committed_earlier``, ``written`` or ``counted``.

    Raises:
        ConfigError: There is nothing to write or count.
        RecordFaultError: A record failed, and the action is to stop.
        DeadLetterLimitError: More records failed than the limit allows.
        DestinationRejectedError: The destination rejects a record, and the action is to stop.
        StageFailedError: The stage raised an exception.
        KpipeError: Any other failure. The committed offsets do not change.
    """
    if output is not None and spec.mode == "transactional" and output.in_order and not output.one_task:
        # With few rows, a sort takes less time than a further job.
        few = bool(frames) and all(source.one_task for source in frames)
        if output.per_record or not few:
            return _write_computed(output, frames, spec, notes)
    return write_rows(slice_rows(output, frames, spec.slice, notes), spec)


def _write_computed(
    output: WriterRows, frames: list[SliceFrames], spec: WriterSpec, notes: StageNotes | None
) -> Outcome:
    """Compute all rows in parallel tasks; a single task then reads them in order, without a sort."""
    spec = replace(spec, started_ms=int(time.time() * 1000))
    for source in frames:
        if output.per_record:
            source.read_once()
        else:
            source.keep()
    # Rows for each record have its counts and faults already; their stage has no notes.
    sources = [] if output.per_record else frames
    cache = RowCache(output.frame)
    cache.keep()
    try:
        with _classified_errors(str(spec.slice)):
            rows, read, has_faults = computed(output, sources)
        faults = [fault_rows(source, rows.beside) for source in sources if source.can_fault and has_faults]
        control = (*faults, *stage_rows(notes, spec.slice, rows.beside))
        return write_rows(replace(rows, control=control, one_task=True), replace(spec, read=read), are_kept=True)
    finally:
        cache.drop()


def write_rows(rows: WriterRows, spec: WriterSpec, *, are_kept: bool = False) -> Outcome:
    """Write rows. Returns and raises as `write_slice` does.

    Args:
        rows: The rows.
        spec: The writer's instructions.
        are_kept: Whether the rows are cached, so that all passes see the same rows.
    """
    for _ in range(_MAX_PASSES):
        outcome = run_pass(rows, spec)
        outcome.raise_error()
        spec = replace(spec, started_ms=None)
        if outcome.status == "disordered":
            logger.info("%s: Spark returned the rows out of order; sorting them", spec.slice)
            rows = replace(rows, one_task=False, in_order=False)
            continue
        if outcome.status == "faults":
            raise stopped_by_faults(spec, outcome)
        if outcome.status == "over_limit":
            raise over_limit(spec, outcome)
        if outcome.status not in ("rejected", "broker_rejected"):
            return _within_limit(spec, outcome)
        if outcome.status == "rejected" and stops(spec.policies.action(Component.DESTINATION)):
            raise rejected_records(spec, outcome.rejected)
        if not are_kept:
            # Recomputed rows may differ (a current time, a UUID, their order), so the next pass might not contain the
            # rows that this pass rejected. The checkpoint gives all later passes the same rows. A cache is not enough:
            # Spark looks it up by plan, and `union` flattens a plan of nested unions.
            with _classified_errors(str(spec.slice)):
                rows, are_kept = replace(rows, frame=rows.frame.localCheckpoint()), True
            if outcome.status == "rejected":
                continue
        if outcome.status == "broker_rejected":
            logger.info("%s: the brokers rejected a batch; finding the rejected records", spec.slice)
            outcome = run_pass(rows, replace(spec, mode="find_refused"))
            outcome.raise_error()
        spec = _without(spec, outcome)
    msg = f"{spec.slice}: the destination still rejects records after {_MAX_PASSES} passes"
    raise DestinationRejectedError(msg, fix="see the reasons in the log", reasons=reasons_of(spec.rejected))


def run_pass(rows: WriterRows, spec: WriterSpec) -> Outcome:
    """Run one Spark job over the rows: one writer task in offset order, or parallel tasks in mode ``parallel``."""
    started_ms = spec.started_ms or int(time.time() * 1000)
    spec = replace(spec, started_ms=started_ms, after_input=rows.one_task, per_record=rows.per_record)
    ordered = (with_end(rows) if spec.mode == "transactional" else rows).frame
    # In rows that are not sorted, -1 keeps the control rows before the outputs.
    control = [each.withColumn("ord", F.lit(-1)) if rows.in_order else each for each in rows.control]
    ordered = reduce(DataFrame.union, [*control, ordered])
    checked: tuple[str, ...] = ()
    if spec.mode != "parallel":
        ordered = ordered.coalesce(1) if rows.one_task else ordered.repartition(1)
        if rows.in_order:
            checked = ("ord",)
        else:
            # Sort even if the rows arrive in order: the writer then gets its first row after the stage made the last.
            ordered = ordered.sortWithinPartitions(*rows.order)
    written = ordered.select("key", "value", "note", *checked, *rows.extra)
    outcome, *others = outcomes_of(written.mapInArrow(_writer(spec), OUTCOME_SCHEMA), spec.slice)
    for other in others:
        outcome = merged(outcome, other)
    return outcome


def outcomes_of(answers: DataFrame, slice_: Slice) -> list[Outcome]:
    """Run the writers and collect their outcomes, in the order of their tasks.

    Raises:
        StageFailedError: The stage raised an exception.
        KpipeError: The Spark job failed for another reason.
    """
    with _classified_errors(str(slice_)):
        collected = answers.collect()
    return [outcome_of_json(answer["outcome"]) for answer in collected]


def computed(rows: WriterRows, frames: list[SliceFrames]) -> tuple[WriterRows, dict[int, int], bool]:
    """Compute rows that are cached, and count the records of the sources, in one job.

    Returns:
        The rows, the number of records read from each range, and whether any of them does not decode. If no row has
        headers, the ``headers`` column is dropped, because Spark and the writer would process it for each row.
    """
    has_headers = "headers" in rows.extra
    null = F.lit(None)
    # Sources first: their tasks fill the cache that the outputs are made from.
    parts = [source.counts().select("src", "records", "faults", null.cast("bigint")) for source in frames]
    most = rows.frame.agg((F.max(F.size("headers")) if has_headers else F.count(F.lit(1))).alias("most"))
    parts.append(most.select(null.cast("int"), null.cast("bigint"), null.cast("bigint"), "most"))
    collected = reduce(DataFrame.union, parts).collect()
    counts = [row for row in collected if row[0] is not None]
    (most_headers,) = (row[3] for row in collected if row[0] is None)
    read = {row[0]: row[1] for row in counts}
    if has_headers and not most_headers:
        others = tuple(name for name in rows.extra if name != "headers")
        rows = replace(rows, frame=rows.frame.drop("headers"), extra=others)
    return rows, read, any(row[2] for row in counts)


def evaluate(output: object, where: str) -> None:
    """Compute every row of a stage's output and discard it. Does nothing if the output is not a Spark DataFrame.

    Raises:
        StageFailedError: The stage raised an exception.
        KpipeError: The Spark job failed for another reason.
    """
    if not isinstance(output, DataFrame):
        return
    with _classified_errors(where):
        output.write.format("noop").mode("overwrite").save()


@contextmanager
def _classified_errors(where: str) -> Iterator[None]:
    """Convert the exception of a failed Spark job to a typed error."""
    try:
        yield
    except KpipeError:
        raise
    except Exception as error:  # Classic Spark and Spark Connect raise different exception classes
        raise classify(error, where) from error


def _writer(spec: WriterSpec) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from run_writer(spec, batches)

    return write


_SEVERITY = (
    "committed",
    "committed_earlier",
    "written",
    "counted",
    "rejected",
    "broker_rejected",
    "over_limit",
    "faults",
    "error",
)


def merged(one: Outcome, other: Outcome, status: str | None = None) -> Outcome:
    """Combine two outcomes. The result has the more severe status unless ``status`` is given."""
    worst = max((one, other), key=lambda o: _SEVERITY.index(o.status))
    none = SliceCounts()
    ranges = sorted({*one.counts, *other.counts})
    steps = {*one.steps_s, *other.steps_s}
    reasons = {*one.reasons, *other.reasons}
    return Outcome(
        status=status or worst.status,
        counts={src: one.counts.get(src, none) + other.counts.get(src, none) for src in ranges},
        faults=one.faults + other.faults,
        samples=(one.samples + other.samples)[:10],
        reasons={reason: one.reasons.get(reason, 0) + other.reasons.get(reason, 0) for reason in reasons},
        rules=_both_rules(one.rules, other.rules),
        rejected={**one.rejected, **other.rejected},
        preview=first_of_topics(one.preview + other.preview, 10),
        written=sum_by_topic(one.written, other.written),
        error=worst.error,
        steps_s={step: max(one.steps_s.get(step, 0.0), other.steps_s.get(step, 0.0)) for step in steps},
    )


def _both_rules(one: dict[str, RuleCount], other: dict[str, RuleCount]) -> dict[str, RuleCount]:
    together = {name: one[name] + count for name, count in other.items() if name in one}
    return {**one, **other, **together}


def _within_limit(spec: WriterSpec, outcome: Outcome) -> Outcome:
    """Check the limit over all parallel writers, since each of them counts only its own records."""
    total = outcome.total
    if spec.mode == "parallel" and not spec.limit.allows(total.dead_lettered + total.skipped, total.read):
        raise over_limit(spec, outcome)
    return outcome


def _without(spec: WriterSpec, outcome: Outcome) -> WriterSpec:
    """The spec for the next pass. Raises if the policy is to stop or too many records are rejected."""
    everything = {**spec.rejected, **outcome.rejected}
    if stops(spec.policies.action(Component.DESTINATION)) or len(everything) > _MAX_REJECTED:
        raise rejected_records(spec, everything)
    return replace(spec, rejected=everything)

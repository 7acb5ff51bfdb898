"""The driver's side of the write: rows for the writer task, the passes over a slice, and what they mean."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform.codecs import Codec, DecodeFault, RawCodec, TextCodec
from kpipe_platform.errors import ConfigError, DestinationRejectedError, KpipeError, RecordFaultError
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.spark.columns import (
    HEADERS_TYPE,
    as_key,
    as_timestamp_ms,
    column_type,
    encoded_value,
)
from kpipe_platform.spark.failures import classify
from kpipe_platform.spark.reader import SliceFrames
from kpipe_platform.spark.writer_spec import (
    KIND_COUNT,
    KIND_FAULT,
    KIND_OUTPUT,
    FaultSample,
    Outcome,
    Rejected,
    WriterSpec,
)
from kpipe_platform.spark.writer_task import OUTCOME_SCHEMA, run_writer

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# A slice of which the destination will not take this many records has another problem than its records.
_MAX_REJECTED = 100_000
# Passes over one slice: write, find the refused, write without them; twice, for refusals that hide behind others.
_MAX_PASSES = 6


def output_rows(output: DataFrame, slice_: Slice, codec: Codec, *, key: str | None, timestamp: str | None) -> DataFrame:
    """A stage's output as rows for the writer.

    Args:
        output: What the stage returned.
        slice_: The slice, to know each row's range by its ``_kafka``.
        codec: Codec of the destination's values.
        key: Column of the record key; None: the column ``key`` (raw, text), else the source record's key.
        timestamp: Column of the record timestamp; None: the column ``timestamp`` (raw, text), else the time of the
            write.

    Columns:
        kind (tinyint), src (int, null where unknown), src_offset (bigint, likewise), key, value (binary), headers
        (array, never null), partition (int, nullable), timestamp_ms (bigint, nullable), timestamp_type (int, null),
        component (string, null), ord and ord2 (bigint): the order within the slice.

    Raises:
        ConfigError: The columns do not fit the codec or the topic.
    """
    kept = "_kafka" in output.columns
    loose = isinstance(codec, RawCodec | TextCodec)
    own = set(output.columns) if loose else set()
    value = encoded_value(codec, output)
    key = key or ("key" if "key" in own else "_kafka.key" if kept else None)
    timestamp = timestamp or ("timestamp" if "timestamp" in own else None)
    null = F.lit(None)
    row_id = F.monotonically_increasing_id()
    headers: Column = F.array().cast(HEADERS_TYPE)
    if "headers" in own:
        headers = F.coalesce(F.col("headers").cast(HEADERS_TYPE), headers)
    elif kept:
        headers = F.coalesce(F.col("_kafka.headers"), headers)
    return output.select(
        F.lit(KIND_OUTPUT).cast("tinyint").alias("kind"),
        (_range_of(slice_) if kept else null).cast("int").alias("src"),
        (F.col("_kafka.offset") if kept else null).cast("bigint").alias("src_offset"),
        (as_key(F.col(key), column_type(output, key)) if key else null.cast("binary")).alias("key"),
        value.alias("value"),
        headers.alias("headers"),
        (F.col("partition") if "partition" in own else null).cast("int").alias("partition"),
        (
            as_timestamp_ms(F.col(timestamp), column_type(output, timestamp), timestamp)
            if timestamp
            else null.cast("bigint")
        ).alias("timestamp_ms"),
        null.cast("int").alias("timestamp_type"),
        null.cast("string").alias("component"),
        (F.col("_kafka.offset") if kept else row_id).cast("bigint").alias("ord"),
        row_id.alias("ord2"),
    )


def _range_of(slice_: Slice) -> Column:
    ranges = [planned.range for planned in slice_.ranges]
    if len(ranges) == 1:
        return F.lit(0)
    index = F.create_map(*[F.lit(v) for i, r in enumerate(ranges) for v in (f"{r.topic}/{r.partition}", i)])
    return index[F.concat_ws("/", F.col("_kafka.topic"), F.col("_kafka.partition").cast("string"))]


def fault_rows(frames: SliceFrames) -> DataFrame:
    """Records that do not decode, with the columns of ``output_rows``."""
    return frames.faults().select(
        F.lit(KIND_FAULT).cast("tinyint").alias("kind"),
        "src",
        F.col("offset").alias("src_offset"),
        "key",
        "value",
        "headers",
        F.lit(None).cast("int").alias("partition"),
        "timestamp_ms",
        F.col("timestamp_type").cast("int").alias("timestamp_type"),
        "component",
        F.col("offset").alias("ord"),
        F.col("offset").alias("ord2"),
    )


def count_rows(frames: SliceFrames) -> DataFrame:
    """Records read by range, with the columns of ``output_rows``; the count stands in src_offset."""
    null = F.lit(None)
    # Before every offset, so that the writer knows the count before it writes.
    first = F.lit(-1).cast("bigint")
    return frames.counts().select(
        F.lit(KIND_COUNT).cast("tinyint").alias("kind"),
        "src",
        F.col("records").alias("src_offset"),
        null.cast("binary").alias("key"),
        null.cast("binary").alias("value"),
        F.array().cast(HEADERS_TYPE).alias("headers"),
        null.cast("int").alias("partition"),
        null.cast("bigint").alias("timestamp_ms"),
        null.cast("int").alias("timestamp_type"),
        null.cast("string").alias("component"),
        first.alias("ord"),
        first.alias("ord2"),
    )


def write_slice(output: DataFrame | None, frames: list[SliceFrames], spec: WriterSpec) -> Outcome:
    """Write a slice, in as many passes as its rejections need.

    Args:
        output: Rows of ``output_rows``; None to write dead letters only.
        frames: The slice's sources.
        spec: What to do.

    Returns:
        The outcome, with status ``committed``, ``committed_earlier`` or ``written``.

    Raises:
        RecordFaultError: A record failed, and the action is to stop.
        DestinationRejectedError: The destination will not take a record, and the action is to stop.
        StageFailedError: The stage raised.
        KpipeError: Anything else that went wrong; offsets are unmoved.
    """
    rows = output
    for part in frames:
        extra = [count_rows(part)] + ([fault_rows(part)] if part.can_fault else [])
        for more in extra:
            rows = more if rows is None else rows.unionByName(more)
    if rows is None:
        msg = "there is neither an output nor a source to write"
        raise ConfigError(msg, fix="read from a Kafka topic asset")
    first: Outcome | None = None
    for _ in range(_MAX_PASSES):
        outcome = run_pass(rows, spec)
        outcome.raise_error()
        if outcome.status == "faults":
            raise stopped_by_faults(spec, outcome)
        if outcome.status == "broker_rejected":
            logger.info("%s: the brokers refused a batch; looking for the records", spec.slice)
            outcome = run_pass(rows, replace(spec, mode="probe"))
            outcome.raise_error()
            spec = _without(spec, outcome.rejected)
        elif outcome.status == "rejected":
            spec = _without(spec, outcome.rejected)
            if spec.mode == "idempotent":
                # Everything else is written already.
                first, spec = outcome, replace(spec, only_rejected=True)
        else:
            return (
                outcome
                if first is None
                else _merged(first, replace(outcome, counts=_only_dead(outcome)), outcome.status)
            )
    msg = f"{spec.slice}: the destination still refuses records after {_MAX_PASSES} passes"
    raise DestinationRejectedError(msg, fix="see the reasons in the log", reasons=_reasons(spec.rejected))


def run_pass(rows: DataFrame, spec: WriterSpec) -> Outcome:
    """One Spark job over the rows: one writer task in offset order, or parallel ones at least once."""
    if spec.mode != "idempotent":
        rows = rows.repartition(1).sortWithinPartitions("ord", "ord2")
    rows = rows.drop("ord", "ord2")
    try:
        answers = rows.mapInArrow(_writer(spec), OUTCOME_SCHEMA).collect()
    except KpipeError:
        raise
    except Exception as error:  # Spark raises its own tree on classic and another on Connect
        raise classify(error, str(spec.slice)) from error
    outcomes = [pickle.loads(bytes(answer["outcome"])) for answer in answers]  # noqa: S301  # our own
    outcome = outcomes[0]
    for other in outcomes[1:]:
        outcome = _merged(outcome, other)
    return outcome  # type: ignore[no-any-return]


def _writer(spec: WriterSpec) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from run_writer(spec, batches)

    return write


_SEVERITY = ("committed", "committed_earlier", "written", "rejected", "broker_rejected", "faults", "error")


def _merged(one: Outcome, other: Outcome, status: str | None = None) -> Outcome:
    """Two outcomes as one; the graver status counts unless one is given."""
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
        rejected={**one.rejected, **other.rejected},
        preview=(one.preview + other.preview)[:10],
        error=worst.error,
        steps_s={step: max(one.steps_s.get(step, 0.0), other.steps_s.get(step, 0.0)) for step in steps},
    )


def _only_dead(outcome: Outcome) -> dict[int, SliceCounts]:
    """The counts of a second pass that wrote dead letters only: the first one counted what was read."""
    return {src: replace(counts, read=0) for src, counts in outcome.counts.items()}


def _without(spec: WriterSpec, rejected: dict[Rejected, Any]) -> WriterSpec:
    """The spec for the next pass, or the error when the policy says stop."""
    everything = {**spec.rejected, **rejected}
    if spec.action in (FaultAction.STOP, FaultAction.RETHROW) or len(everything) > _MAX_REJECTED:
        where, fault = next(iter(everything.items()))
        at = "an output record"
        if isinstance(where, tuple):
            planned = spec.slice.ranges[where[0]].range
            at = f"the output of {planned.topic}/{planned.partition} offset {where[1]}"
        msg = f"{spec.slice}: topic {spec.topic!r} will not take {len(everything):,} record(s); {at}: {fault.message}"
        raise DestinationRejectedError(
            msg,
            fix="change the stage or the topic's settings, or dead-letter them: on_fault=FaultAction.DEAD_LETTER",
            reasons=_reasons(everything),
        )
    return replace(spec, rejected=everything)


def _reasons(rejected: dict[Rejected, Any]) -> dict[str, int]:
    reasons: dict[str, int] = {}
    for fault in rejected.values():
        reasons[fault.kind] = reasons.get(fault.kind, 0) + 1
    return reasons


def stopped_by_faults(spec: WriterSpec, outcome: Outcome) -> Exception:
    """The error of a run that a failed record stops, by the action."""
    samples: list[FaultSample] = outcome.samples
    if spec.action is FaultAction.RETHROW and samples:
        fault = samples[0].fault
        return DecodeFault(str(samples[0]), kind=fault.kind, field=fault.field)
    listed = "\n".join(f"    {sample}" for sample in samples)
    msg = f"{outcome.faults:,} record(s) of {spec.slice} failed; the first:\n{listed}"
    return RecordFaultError(
        msg,
        fix="mend the records or the schema; or set on_fault=FaultAction.DEAD_LETTER (or SKIP) for such records",
        faults=outcome.faults,
        samples=samples,
        slice=str(spec.slice),
    )

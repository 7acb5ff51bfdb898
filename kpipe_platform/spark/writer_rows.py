"""Everything that the writer task writes or counts, as rows with the same columns."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform.codecs import Codec, RawCodec, TextCodec
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.spark.columns import (
    HEADERS_TYPE,
    as_key,
    as_timestamp_ms,
    column_type,
    encoded_value,
)
from kpipe_platform.spark.reader import SliceFrames
from kpipe_platform.spark.writer_spec import KIND_COUNT, KIND_FAULT, KIND_NOTED, KIND_OUTPUT, KIND_RULE


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
        note (string, null), ord and ord2 (bigint): the order within the slice.

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
        (_range_of(slice_, F.col("_kafka.topic"), F.col("_kafka.partition")) if kept else null)
        .cast("int")
        .alias("src"),
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
        null.cast("string").alias("note"),
        (F.col("_kafka.offset") if kept else row_id).cast("bigint").alias("ord"),
        row_id.alias("ord2"),
    )


def _range_of(slice_: Slice, topic: Column, partition: Column) -> Column:
    ranges = [planned.range for planned in slice_.ranges]
    if len(ranges) == 1:
        return F.lit(0)
    index = F.create_map(*[F.lit(v) for i, r in enumerate(ranges) for v in (f"{r.topic}/{r.partition}", i)])
    return index[F.concat_ws("/", topic, partition.cast("string"))]


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
        F.col("component").alias("note"),
        F.col("offset").alias("ord"),
        F.col("offset").alias("ord2"),
    )


def noted_rows(faults: DataFrame, slice_: Slice) -> DataFrame:
    """Records that the stage set aside (``StageNotes.faults``), with the columns of ``output_rows``."""
    return _bare_rows(
        faults,
        KIND_NOTED,
        src=_range_of(slice_, F.col("topic"), F.col("partition")),
        src_offset=F.col("offset"),
        note=F.col("note"),
        order=F.col("offset"),
    )


def count_rows(frames: SliceFrames) -> DataFrame:
    """Records read by range, with the columns of ``output_rows``; the count stands in src_offset."""
    return _bare_rows(
        frames.counts(),
        KIND_COUNT,
        src=F.col("src"),
        src_offset=F.col("records"),
        note=F.lit(None).cast("string"),
        order=None,
    )


def rule_rows(counts: DataFrame) -> DataFrame:
    """What rules found (``StageNotes.counts``), with the columns of ``output_rows``."""
    null = F.lit(None)
    return _bare_rows(counts, KIND_RULE, src=null, src_offset=null, note=F.col("note"), order=None)


def _bare_rows(
    frame: DataFrame, kind: int, *, src: Column, src_offset: Column, note: Column, order: Column | None
) -> DataFrame:
    """Rows without a record, with the columns of ``output_rows``."""
    null = F.lit(None)
    # Before every offset, so that the writer knows the count before it writes.
    order = F.lit(-1) if order is None else order
    return frame.select(
        F.lit(kind).cast("tinyint").alias("kind"),
        src.cast("int").alias("src"),
        src_offset.cast("bigint").alias("src_offset"),
        null.cast("binary").alias("key"),
        null.cast("binary").alias("value"),
        F.array().cast(HEADERS_TYPE).alias("headers"),
        null.cast("int").alias("partition"),
        null.cast("bigint").alias("timestamp_ms"),
        null.cast("int").alias("timestamp_type"),
        note.cast("string").alias("note"),
        order.cast("bigint").alias("ord"),
        order.cast("bigint").alias("ord2"),
    )

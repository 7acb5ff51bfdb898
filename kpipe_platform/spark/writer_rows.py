"""Everything that the writer task writes or counts, as rows with the same columns."""

from __future__ import annotations

from collections.abc import Sequence

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
from kpipe_platform.spark.writer_spec import KIND_COUNT, KIND_FAULT, KIND_NOTED, KIND_RULE


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
        key, value (binary); note (binary, null: JSON of what is no output, see ``fault_rows``); ord and ord2 (bigint):
        the order within the slice. And, only where an output can have them, since each column costs the shuffle and
        the writer as much as the next: src_offset (bigint), src (int; absent where the slice has one range), headers
        (array, never null), partition (int, nullable), timestamp_ms (bigint, nullable).

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
    columns = [
        (as_key(F.col(key), column_type(output, key)) if key else null.cast("binary")).alias("key"),
        value.alias("value"),
        null.cast("binary").alias("note"),
        (F.col("_kafka.offset") if kept else row_id).cast("bigint").alias("ord"),
        row_id.alias("ord2"),
    ]
    if kept:
        columns.append(F.col("_kafka.offset").cast("bigint").alias("src_offset"))
        if len(slice_.ranges) != 1:
            place = _range_of(slice_, F.col("_kafka.topic"), F.col("_kafka.partition"))
            columns.append(place.cast("int").alias("src"))
    if kept or "headers" in own:
        headers = F.col("headers").cast(HEADERS_TYPE) if "headers" in own else F.col("_kafka.headers")
        columns.append(F.coalesce(headers, F.array().cast(HEADERS_TYPE)).alias("headers"))
    if "partition" in own:
        columns.append(F.col("partition").cast("int").alias("partition"))
    if timestamp:
        moment = as_timestamp_ms(F.col(timestamp), column_type(output, timestamp), timestamp)
        columns.append(moment.alias("timestamp_ms"))
    return output.select(*columns)


def together(parts: Sequence[DataFrame]) -> DataFrame:
    """Rows of several kinds as one frame: with the columns of the first, which the others have or do without.

    A column that is missing is null, but headers are an empty array: null arrays make Spark's Arrow writer quadratic.
    """
    first, *others = parts
    for part in others:
        missing = {
            field.name: (F.array() if field.name == "headers" else F.lit(None)).cast(field.dataType)
            for field in first.schema.fields
            if field.name not in part.columns
        }
        # A Connect client refuses to add no columns at all.
        whole = part.withColumns(missing) if missing else part
        first = first.union(whole.select(*first.columns))
    return first


def _range_of(slice_: Slice, topic: Column, partition: Column) -> Column:
    ranges = [planned.range for planned in slice_.ranges]
    if len(ranges) == 1:
        return F.lit(0)
    index = F.create_map(*[F.lit(v) for i, r in enumerate(ranges) for v in (f"{r.topic}/{r.partition}", i)])
    return index[F.concat_ws("/", topic, partition.cast("string"))]


def fault_rows(frames: SliceFrames) -> DataFrame:
    """Records that do not decode: key and value as they are, ord, ord2, and the rest as JSON in ``note``."""
    return _noted(
        frames.faults(),
        KIND_FAULT,
        ("src", "offset", "headers", "timestamp_ms", "timestamp_type", "component"),
        order=F.col("offset"),
        key=F.col("key"),
        value=F.col("value"),
    )


def noted_rows(faults: DataFrame, slice_: Slice) -> DataFrame:
    """Records that the stage set aside (``StageNotes.faults``), as JSON in ``note``."""
    src = _range_of(slice_, F.col("topic"), F.col("partition")).cast("int").alias("src")
    return _noted(faults.select(src, "offset", "note"), KIND_NOTED, ("src", "offset", "note"), order=F.col("offset"))


def count_rows(frames: SliceFrames) -> DataFrame:
    """Records read by range, as JSON in ``note``."""
    return _noted(frames.counts(), KIND_COUNT, ("src", "records"))


def rule_rows(counts: DataFrame) -> DataFrame:
    """What rules found (``StageNotes.counts``), as JSON in ``note``."""
    return _noted(counts, KIND_RULE, ("note",))


def _noted(
    frame: DataFrame,
    kind: int,
    names: Sequence[str],
    *,
    order: Column | None = None,
    key: Column | None = None,
    value: Column | None = None,
) -> DataFrame:
    """Rows that are no outputs: key, value, note, ord, ord2."""
    null = F.lit(None).cast("binary")
    # Before every offset, so that the writer knows the count before it writes.
    order = (F.lit(-1) if order is None else order).cast("bigint")
    # Binary values become base64.
    note = F.to_json(F.struct(F.lit(kind).alias("kind"), *names), {"ignoreNullFields": "false"})
    return frame.select(
        (null if key is None else key).alias("key"),
        (null if value is None else value).alias("value"),
        note.cast("binary").alias("note"),
        order.alias("ord"),
        order.alias("ord2"),
    )

"""The writer's input: outputs, faults and counts of a slice as rows with the same columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.spark.column_cache import reused
from kpipe_platform.spark.columns import HEADERS_TYPE
from kpipe_platform.spark.sink.encode import Routing, encoded_columns
from kpipe_platform.spark.sink.plans import reads_only
from kpipe_platform.spark.sink.single_pass import BAD, MADE, SRC, rows_per_record
from kpipe_platform.spark.sink.spec import (
    KIND_COUNT,
    KIND_END,
    KIND_FAULT,
    KIND_NOTED,
    KIND_RULE,
    MISFIT_NOTE,
    NO_OUTPUT,
)
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.notes import StageNotes

# The largest bigint, greater than any offset or row number.
_AFTER_ALL = 2**63 - 1

# Optional columns, with their types.
_EXTRA = {
    "ord2": "bigint",
    "dest": "int",
    "src_offset": "bigint",
    "src": "int",
    "headers": HEADERS_TYPE,
    # Wider than Kafka's int, so that an invalid partition is a fault of its record only and does not fail the cast.
    "partition": "bigint",
    "timestamp_ms": "bigint",
}


@dataclass(frozen=True)
class WriterRows:
    """Rows for the writer.

    Args:
        frame: Columns as in ``output_rows``.
        control: Frames of rows that are not outputs, with the same columns. They come before ``frame``, so that the
            writer has counts and dead letters before it writes an output.
        extra: Names of the optional columns.
        placed: Whether ``ord`` is the source offset; ``ord2`` then orders the outputs of one record. Otherwise
            ``ord`` is a row number.
        one_task: Whether one task makes all rows, so that they need no shuffle. Otherwise parallel tasks make them.
        per_record: Whether there is exactly one row for each record read, with its output, its fault or neither.
        in_order: Whether the outputs need no sort, because each Spark partition and the sequence of partitions are in
            order. A stage can change the order, so the writer checks it.
    """

    frame: DataFrame
    control: tuple[DataFrame, ...] = ()
    extra: tuple[str, ...] = ()
    placed: bool = False
    one_task: bool = False
    per_record: bool = False
    in_order: bool = False

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that define the order of the rows in the slice."""
        return ("ord", "ord2") if self.placed else ("ord",)

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns besides those that all rows have."""
        return (*self.order[1:], *self.extra)


def output_rows(
    output: DataFrame,
    slice_: Slice,
    topics: Sequence[KafkaTopic],
    *,
    routing: Routing | None = None,
    source: SliceFrames | None = None,
) -> WriterRows:
    """Convert a stage's output to rows for the writer.

    Args:
        output: What the stage returned, with the columns of ``with_keys``.
        slice_: The slice, to find each row's range from its ``_kafka``.
        topics: The destination topic, or several, of which ``routing`` chooses one for each row.
        routing: Column that names the topic of each row. None: there is one topic.
        source: The slice's only source, if single-pass writing is allowed; None uses the general path.

    Columns:
        key, value (binary, nullable). note (binary, nullable): null for an output that fits its topic's schema,
        ``MISFIT_NOTE`` and the reason for one that does not, ``NO_OUTPUT`` for a record without an output, and JSON
        for a record that does not decode. ord (bigint): the order within the slice.
        Only if an output can have them, because each column adds to the cost of the shuffle and of the writer: ord2
        (bigint: the order of the outputs of one record), dest (int: index of the topic; null if ``routing`` names
        none), src_offset (bigint), src (int; absent if the slice has one range), headers (array, never null),
        partition (bigint, nullable), timestamp_ms (bigint, nullable).

    Raises:
        ConfigError: The columns do not fit the codec or the topic.
    """
    single = None if source is None else rows_per_record(output, source)
    schema = output.schema
    kept = "_kafka" in schema.names
    row_id = F.monotonically_increasing_id()
    encoded = encoded_columns(schema, topics, routing)
    key_bytes, value = encoded.pop("key"), encoded.pop("value")
    misfit = encoded.pop("misfit", None)
    note = F.lit(None).cast("binary") if misfit is None else F.concat(F.lit(MISFIT_NOTE), misfit.cast("binary"))
    if single is not None:
        key_bytes, value, note = _beside_faults(key_bytes, value, note)
    placed = kept and single is None
    columns = [
        key_bytes.alias("key"),
        value.alias("value"),
        note.alias("note"),
        *([F.col("_kafka.offset").alias("ord"), row_id.alias("ord2")] if placed else [row_id.alias("ord")]),
    ]
    extra: dict[str, Column] = {}
    if kept:
        extra["src_offset"] = F.col("_kafka.offset")
    if len(slice_.ranges) != 1:
        if single is not None:
            extra["src"] = F.col(SRC)
        elif kept:
            extra["src"] = _range_of(slice_, F.col("_kafka.topic"), F.col("_kafka.partition"))
    extra |= encoded
    columns += [column.cast(_EXTRA[name]).alias(name) for name, column in extra.items()]
    if source is None or single is None:
        in_order = not placed or len(slice_.ranges) == 1
        return WriterRows(output.select(*columns), extra=tuple(extra), placed=placed, in_order=in_order)
    # One task reads plain copies as fast as it would receive them from parallel tasks.
    one_task = source.one_task or single.is_copy
    made = single.frame.select(*columns)
    return WriterRows(made, extra=tuple(extra), one_task=one_task, per_record=True, in_order=True)


def rows_of_topics(each: Sequence[WriterRows]) -> WriterRows:
    """Combine the rows for several topics, in the order of the topics. The rows of each topic keep their order."""
    if len(each) == 1:
        return each[0]
    names = {name for rows in each for name in rows.extra}
    extra = tuple(name for name in _EXTRA if name in names)
    placed = any(rows.placed for rows in each)
    frames = []
    for number, rows in enumerate(each):
        order = [F.col("ord"), *([F.col("ord2" if rows.placed else "ord").alias("ord2")] if placed else [])]
        columns = [F.col(name) if name in rows.extra else _absent(name) for name in extra]
        dest = F.lit(number).cast(_EXTRA["dest"]).alias("dest")
        frames.append(rows.frame.select("key", "value", "note", *order, *columns, dest))
    return WriterRows(reduce(DataFrame.union, frames), extra=(*extra, "dest"), placed=placed)


def _absent(name: str) -> Column:
    """An empty output column. Headers are an empty array: null arrays make Spark's Arrow writer quadratic."""
    return (F.array() if name == "headers" else F.lit(None)).cast(_EXTRA[name]).alias(name)


def _beside_faults(key: Column, value: Column, note: Column) -> tuple[Column, Column, Column]:
    """Merge a record's fault into the key, value and note columns of its output."""
    made, bad = F.col(MADE), F.col(BAD)
    fault = _note(KIND_FAULT, F.col(SRC).alias("src"), F.lit(1).alias("records"), *_fault_fields(bad))
    return (
        F.when(made, key).otherwise(bad["key"]),
        F.when(made, value).otherwise(bad["value"]),
        F.when(made, note).otherwise(F.when(bad.isNotNull(), fault.cast("binary")).otherwise(F.lit(NO_OUTPUT))),
    )


def _fault_fields(bad: Column) -> list[Column]:
    return [bad[name].alias(name) for name in _FAULT_FIELDS]


def slice_rows(
    output: WriterRows | None, frames: Sequence[SliceFrames], slice_: Slice, notes: StageNotes | None
) -> WriterRows:
    """Combine all rows of a slice that the writer writes or counts. They must be sorted.

    Raises:
        ConfigError: There is neither an output nor a source.
    """
    if output is not None and output.per_record:
        for source in frames:
            source.read_once()
        return output
    beside = () if output is None else output.beside
    for source in frames:
        # Up to three parts read the slice's rows: the output, the count and the search for faults.
        source.keep()
    parts = [row for source in frames for row in _source_rows(source, beside)]
    parts += stage_rows(notes, slice_, beside)
    if output is not None:
        parts.append(output.frame)
    if not parts:
        msg = "there is no output and no source to write"
        raise ConfigError(msg, fix="read from a Kafka topic asset")
    together = reduce(DataFrame.union, parts)
    small = bool(frames) and all(source.small for source in frames)
    # A small slice is cached only for isolation. It needs a shuffle, so that a failing stage does not take the
    # writer's Python worker with it.
    kept = any(source.cache.is_kept for source in frames)
    one_task = small and not kept and reads_only(together, [source.decoded for source in frames])
    if output is None:
        return WriterRows(together, one_task=one_task)
    return replace(output, frame=together, one_task=one_task, in_order=False)


def stage_rows(notes: StageNotes | None, slice_: Slice, beside: tuple[str, ...]) -> list[DataFrame]:
    """Records that the stage set aside, and the counts of its rules."""
    if notes is None:
        return []
    faults = [noted_rows(faults, slice_, beside) for faults in notes.faults]
    return [*faults, *(rule_rows(counts, beside) for counts in notes.counts)]


def with_end(rows: WriterRows) -> WriterRows:
    """Add a row that sorts after all others. It proves to the writer that no row is missing.

    A Python worker cannot distinguish the end of its input from a failure of the task that produces it. Without this
    row, a writer could commit half of a slice.
    """
    end = rows.frame.sparkSession.range(1).select(*_end_columns(rows.beside))
    return replace(rows, frame=rows.frame.union(end))


@reused
def _end_columns(beside: tuple[str, ...]) -> Sequence[Column]:
    return _aside(_note(KIND_END), beside, order=F.lit(_AFTER_ALL))


def _source_rows(source: SliceFrames, beside: tuple[str, ...]) -> list[DataFrame]:
    if source.small:
        return [record_rows(source, beside)]
    return [count_rows(source, beside), *([fault_rows(source, beside)] if source.can_fault else [])]


def _range_of(slice_: Slice, topic: Column, partition: Column) -> Column:
    ranges = [planned.range for planned in slice_.ranges]
    if len(ranges) == 1:
        return F.lit(0)
    index = F.create_map(*[F.lit(v) for i, r in enumerate(ranges) for v in (f"{r.topic}/{r.partition}", i)])
    return index[F.concat_ws("/", topic, partition.cast("string"))]


_FAULT_FIELDS = ("offset", "headers", "timestamp_ms", "timestamp_type", "component")


def fault_rows(frames: SliceFrames, beside: tuple[str, ...]) -> DataFrame:
    """Records that do not decode: original key and value, ``ord``, and all other fields as JSON in ``note``."""
    note = _note(KIND_FAULT, "src", *_FAULT_FIELDS)
    columns = _aside(note, beside, order=F.col("offset"), key=F.col("key"), value=F.col("value"))
    return frames.faults().select(*columns)


def record_rows(frames: SliceFrames, beside: tuple[str, ...]) -> DataFrame:
    """One row for each record, for the count. A record that does not decode has a row as in ``fault_rows``."""
    return frames.decoded.select(*_record_columns(frames.can_fault, beside))


@reused
def _record_columns(can_fault: bool, beside: tuple[str, ...]) -> Sequence[Column]:
    count = _note(KIND_COUNT, "src", F.lit(1).alias("records"))
    if not can_fault:
        return _aside(count, beside)
    bad = F.col("bad")
    fault = _note(KIND_FAULT, "src", F.lit(1).alias("records"), *_fault_fields(bad))
    return _aside(
        F.when(bad.isNull(), count).otherwise(fault),
        beside,
        order=F.coalesce(bad["offset"], F.lit(-1)),
        key=bad["key"],
        value=bad["value"],
    )


def noted_rows(faults: DataFrame, slice_: Slice, beside: tuple[str, ...]) -> DataFrame:
    """Records that the stage set aside (``StageNotes.faults``), as JSON in ``note``."""
    src = _range_of(slice_, F.col("topic"), F.col("partition")).cast("int").alias("src")
    return faults.select(*_aside(_note(KIND_NOTED, src, "offset", "note"), beside, order=F.col("offset")))


def count_rows(frames: SliceFrames, beside: tuple[str, ...]) -> DataFrame:
    """Number of records read from each range, as JSON in ``note``."""
    return frames.counts().select(*_aside(_note(KIND_COUNT, "src", "records"), beside))


def rule_rows(counts: DataFrame, beside: tuple[str, ...]) -> DataFrame:
    """Counts of the rules (``StageNotes.counts``), as JSON in ``note``."""
    return counts.select(*_aside(_note(KIND_RULE, "note"), beside))


def _note(kind: int, *fields: Column | str) -> Column:
    # ``to_json`` encodes binary values as base64.
    return F.to_json(F.struct(F.lit(kind).alias("kind"), *fields), {"ignoreNullFields": "false"})


def _aside(
    note: Column,
    beside: tuple[str, ...],
    *,
    order: Column | None = None,
    key: Column | None = None,
    value: Column | None = None,
) -> Sequence[Column]:
    """Columns of rows that are not outputs: key, value, note, ord, and empty output columns.

    Args:
        note: The note, JSON text.
        beside: Names of the further columns of the outputs, which are empty.
        order: Value of ``ord``. Default: -1, before every offset, so that the writer has a count before it writes.
        key: The record's key.
        value: The record's value.
    """
    null = F.lit(None)
    order = (F.lit(-1) if order is None else order).cast("bigint")
    return [
        (null if key is None else key).cast("binary").alias("key"),
        (null if value is None else value).cast("binary").alias("value"),
        note.cast("binary").alias("note"),
        order.alias("ord"),
        *map(_absent, beside),
    ]

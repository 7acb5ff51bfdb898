"""Encode a stage's output for its topics: keys, values, headers, partitions and timestamps as column expressions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.wire import KEY_HEADER
from kpipe_platform.spark.columns import (
    HEADERS_TYPE,
    MISFIT,
    SINK_COLUMNS,
    as_key,
    as_timestamp_ms,
    column_at,
    encoded_value,
    key_of,
    misfit_of,
    passed_tombstone,
    source_key,
    without_header,
)
from kpipe_platform.spark.failures import root_cause

_KEY = "_kpipe_key_"
# Maximum number of characters of a topic's name that the fault of a record shows.
_SHOWN = 100


@dataclass(frozen=True)
class Routing:
    """The topic of each row.

    Args:
        by: Column that names it.
        names: The column's values, in the order of the topics.
    """

    by: str
    names: tuple[str, ...]


def with_keys(output: DataFrame, topics: Sequence[KafkaTopic]) -> DataFrame:
    """Add a column for the key of each topic that makes its keys by an expression.

    The column is part of the stage's plan, so that an expression that does not work row by row is found there.

    Raises:
        ConfigError: An expression does not fit the output.
    """
    for topic in topics:
        if topic.key_expression is None:
            continue
        try:
            made = output.withColumn(_key_name(topic), F.expr(topic.key_expression))
            # In a struct, Spark refuses an expression that makes several rows of one.
            output.withColumn(_key_name(topic), F.struct(F.expr(topic.key_expression))).schema  # noqa: B018
        except (AnalysisException, ParseException) as error:
            msg = (
                f"topic {topic.name!r}: key_expression={topic.key_expression!r} does not fit the stage's output "
                f"({', '.join(output.columns)}): {root_cause(error)}"
            )
            raise ConfigError(msg, fix="use columns of the output, and functions of single rows") from error
        output = made
    return output


def key_of_topic(topic: KafkaTopic) -> str | None:
    """Return the column of the output that is the key of a topic's records, with those of ``with_keys``."""
    return topic.key_column if topic.key_expression is None else _key_name(topic)


def _key_name(topic: KafkaTopic) -> str:
    # The name depends on the expression, so topics with the same settings share their columns.
    return _KEY + hashlib.sha256(str(topic.key_expression).encode()).hexdigest()[:12]


def value_fields(output: T.StructType, topic: KafkaTopic, by: str | None = None) -> T.StructType:
    """Return the columns of an output that are the value of a topic's records, and ``_kafka``.

    Args:
        output: Schema of the output.
        topic: The topic.
        by: Column that names the topic of each row. A topic with a schema then gets the columns that it declares, since
            other topics may need others.
    """
    codec = topic.value_codec
    declared = set(codec.fields.names if codec.is_struct else SINK_COLUMNS)
    apart: set[str | None] = {topic.timestamp_column, topic.headers_column, topic.partition_column, by}
    if declared:
        apart.add(topic.key_column)
        if by is not None:
            apart |= {*output.names} - {"_kafka", MISFIT}
    apart -= declared
    return T.StructType([f for f in output if f.name not in apart and not f.name.startswith(_KEY)])


def declared_fields(topics: Sequence[KafkaTopic]) -> T.StructType:
    """Return the fields that the topics declare. They decide how pandas and Arrow columns are converted."""
    fields = {field.name.lower(): field for topic in topics for field in topic.value_codec.fields}
    return T.StructType(list(fields.values()))


def refuse_unused(output: T.StructType, topics: Sequence[KafkaTopic], by: str) -> None:
    """Refuse a column that no topic gets.

    Args:
        output: Schema of the output.
        topics: The topics.
        by: Column that names the topic of each row.

    Raises:
        ConfigError: There is such a column.
    """
    used: set[str | None] = {
        "_kafka",
        by,
        *(name for topic in topics for name in value_fields(output, topic, by).names),
    }
    for topic in topics:
        if topic.key_expression is not None:
            # It may use any column.
            return
        used |= {topic.key_column, topic.timestamp_column, topic.headers_column, topic.partition_column}
    roots = {name.split(".")[0] for name in used if name is not None}
    unused = [name for name in output.names if name not in used | roots]
    if unused:
        msg = f"the stage's output has columns that no topic declares: {', '.join(map(repr, unused))}"
        raise ConfigError(msg, fix="drop them, or declare them in the schema of a topic", columns=unused)


def encoded_columns(
    output: T.StructType, topics: Sequence[KafkaTopic], routing: Routing | None = None
) -> dict[str, Column]:
    """Encode an output.

    Args:
        output: Schema of the output, with the columns of ``with_keys``.
        topics: The topics, of which ``routing`` chooses one for each row.
        routing: Column that names the topic of each row. None: there is one topic.

    Returns:
        Columns by name: key, value, and those of misfit, headers, partition, timestamp_ms and dest that the outputs
        can have.

    Raises:
        ConfigError: The columns do not fit the codec or the topic.
    """
    if routing is None:
        (topic,) = topics
        return _columns(output, topic, None)
    dest, misfit = _routed(output, routing)
    # Topics that differ only in their names share their columns.
    numbers: dict[KafkaTopic, list[int]] = {}
    for number, topic in enumerate(topics):
        numbers.setdefault(replace(topic, name="any", create=None), []).append(number)
    made = [
        (numbers[same], _columns(output, replace(same, name=topics[numbers[same][0]].name), routing.by))
        for same in numbers
    ]
    names = dict.fromkeys(name for _, columns in made for name in columns)
    chosen = {name: _chosen(dest, [(numbers, columns.get(name)) for numbers, columns in made]) for name in names}
    fits = chosen.get("misfit", F.lit(None).cast("string"))
    return {**chosen, "misfit": F.when(dest.isNull(), misfit).otherwise(fits), "dest": dest}


def _routed(output: T.StructType, routing: Routing) -> tuple[Column, Column]:
    """Return the index of each row's topic, null if there is none, and the reason for that."""
    column, kind = column_at(output, routing.by)
    if not isinstance(kind, T.StringType | T.NullType):
        msg = f"column {routing.by!r} is {kind.simpleString()}, but it names the topic of each row"
        raise ConfigError(
            msg, fix="cast it to string, or name another column in KafkaTopics(by=...)", column=routing.by
        )
    column = column.cast("string")
    indexes = F.create_map(*[F.lit(v) for number, name in enumerate(routing.names) for v in (name, number)])
    shown = F.coalesce(F.concat(F.lit("'"), F.substring(column, 1, _SHOWN), F.lit("'")), F.lit("null"))
    known = ", ".join(map(repr, routing.names[:10])) + (", ..." if len(routing.names) > 10 else "")
    reason = F.concat(F.lit(f"column {routing.by!r} is "), shown, F.lit(f", which is none of its topics: {known}"))
    return F.try_element_at(indexes, column), reason


def _chosen(dest: Column, columns: Sequence[tuple[list[int], Column | None]]) -> Column:
    """Choose a column by the row's topic. A row without a topic has the first one, so that its dead letter has data."""
    (_, first), *others = columns
    rest = F.lit(None) if first is None else first
    if not others:
        return rest
    chosen: Column | None = None
    for numbers, column in others:
        value = F.lit(None) if column is None else column
        chosen = F.when(dest.isin(numbers), value) if chosen is None else chosen.when(dest.isin(numbers), value)
    assert chosen is not None  # noqa: S101  # there are others
    return chosen.otherwise(rest)


def _columns(output: T.StructType, topic: KafkaTopic, by: str | None) -> dict[str, Column]:
    codec = topic.value_codec
    fields = value_fields(output, topic, by)
    kept = "_kafka" in output.names
    own = set() if codec.is_struct else set(output.names)
    declared = key_of_topic(topic)
    key = "key" if "key" in own else source_key(output) if kept else None
    key_bytes, key_misfit = F.lit(None).cast("binary"), None
    if declared:
        key_bytes, key_misfit = key_of(topic.key_codec, *column_at(output, declared))
    elif key:
        key_bytes = as_key(*column_at(output, key))
    if declared and kept:
        # A tombstone has no value columns from which a key could be made, so it keeps its own key.
        own_key = as_key(*column_at(output, source_key(output)))
        key_bytes = F.coalesce(key_bytes, F.when(passed_tombstone(codec, fields), own_key))
    columns = {"key": key_bytes, "value": encoded_value(codec, fields)}
    misfits = [each for each in (misfit_of(codec, fields), key_misfit) if each is not None]
    if misfits:
        columns["misfit"] = F.coalesce(*misfits)
    headers = topic.headers_column or ("headers" if "headers" in own else "_kafka.headers" if kept else None)
    if headers:
        columns["headers"] = F.coalesce(_as_headers(*column_at(output, headers), headers), F.array().cast(HEADERS_TYPE))
        if declared and headers == "_kafka.headers" and not _is_bytes(topic.key_codec, column_at(output, declared)[1]):
            # The id describes the source's key, which is written for a passed tombstone only.
            own_id = F.when(passed_tombstone(codec, fields), columns["headers"])
            columns["headers"] = F.coalesce(own_id, without_header(columns["headers"], KEY_HEADER))
    partition = topic.partition_column or ("partition" if "partition" in own else None)
    if partition:
        columns["partition"] = _as_partition(*column_at(output, partition), partition)
    timestamp = topic.timestamp_column or ("timestamp" if "timestamp" in own else None)
    if timestamp:
        columns["timestamp_ms"] = as_timestamp_ms(*column_at(output, timestamp), timestamp)
    return columns


def _as_headers(column: Column, kind: T.DataType, name: str) -> Column:
    """Convert a column to headers.

    Raises:
        ConfigError: It is neither an array of structs of a key and a value nor a map.
    """
    if isinstance(kind, T.NullType) or (isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.NullType)):
        # A pandas column without a header gets one of these types.
        return F.lit(None).cast(HEADERS_TYPE)
    if isinstance(kind, T.MapType) and _is_text(kind.keyType) and _is_data(kind.valueType):
        return F.map_entries(column).cast(HEADERS_TYPE)
    element = kind.elementType if isinstance(kind, T.ArrayType) else None
    if isinstance(element, T.StructType) and sorted(element.names) == ["key", "value"]:
        # A cast goes by the positions of the fields.
        if element.names != ["key", "value"]:
            column = F.transform(column, lambda e: F.struct(e["key"].alias("key"), e["value"].alias("value")))
        if _is_text(element["key"].dataType) and _is_data(element["value"].dataType):
            return column.cast(HEADERS_TYPE)
    msg = f"headers column {name!r} is {kind.simpleString()}"
    raise ConfigError(msg, fix=f"use {HEADERS_TYPE}, or map<string,binary>", column=name)


def _is_bytes(codec: Codec, kind: T.DataType) -> bool:
    return isinstance(codec, RawCodec) and isinstance(kind, T.BinaryType)


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType | T.NullType)


def _is_data(kind: T.DataType) -> bool:
    return isinstance(kind, T.BinaryType | T.StringType | T.NullType)


def _as_partition(column: Column, kind: T.DataType, name: str) -> Column:
    """Convert a column to partition numbers.

    Raises:
        ConfigError: It is not an integer.
    """
    if not isinstance(kind, T.IntegralType | T.NullType):
        msg = f"partition column {name!r} is {kind.simpleString()}"
        raise ConfigError(msg, fix="use an integer, or cast it: col.cast('int')", column=name)
    return column.cast("bigint")

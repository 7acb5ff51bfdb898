"""Codecs as Spark column expressions: bytes to columns and back."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonCodec, RawCodec, TextCodec
from kpipe_platform.codecs.schema import ArrayType, Field, MapType, StructType
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.reused import reused

CORRUPT = "_kpipe_corrupt"
"""Field in which from_json leaves a record that it cannot read."""

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
SINK_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
"""What a raw or text output may hold beside ``_kafka``; the names are those of Spark's own Kafka sink."""


def parsed(codec: Codec, data: Column) -> Column:
    """What Spark makes of the bytes, in one expression: to be evaluated once and used by the functions below.

    A JSON record is read as the only element of an array, because ``from_json`` reads the first object of a text and
    silently drops whatever follows it.
    """
    if isinstance(codec, JsonCodec):
        text = F.concat(F.lit('{"v":['), data.cast("string"), F.lit("]}"))
        schema = f"v ARRAY<STRUCT<{codec.spark_schema}>>, {CORRUPT} STRING"
        return F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})
    if isinstance(codec, TextCodec):
        return data.cast("string")
    return data


def value_of(codec: Codec, parsed: Column) -> Column:
    """The decoded value as one column: a struct for JSON, a string for text, the bytes for raw."""
    return F.get(parsed["v"], 0) if isinstance(codec, JsonCodec) else parsed


def is_fault(codec: Codec, data: Column, parsed: Column) -> Column | None:
    """True where ``data`` is not null and does not decode; None for a codec that takes any bytes.

    Args:
        codec: The codec.
        data: The bytes.
        parsed: What ``parsed`` made of them.
    """
    if isinstance(codec, RawCodec):
        return None
    bad = ~F.is_valid_utf8(data.cast("string"))
    if isinstance(codec, JsonCodec):
        value = value_of(codec, parsed)
        bad = bad | value.isNull() | parsed[CORRUPT].isNotNull() | (F.size(parsed["v"]) != 1)
        for missing in _missing(codec.fields, value):
            bad = bad | missing
    return data.isNotNull() & F.coalesce(bad, F.lit(True))


def _missing(fields: Iterable[Field], parent: Column) -> list[Column]:
    """One condition per required field, true where the parent is there and the field is null."""
    found = []
    for field in fields:
        column = parent[field.name]
        if field.required:
            found.append(column.isNull())
        found += _missing_inside(field.type, column)
    return found


def _missing_inside(kind: object, column: Column) -> list[Column]:
    if isinstance(kind, StructType):
        return [column.isNotNull() & c for c in _missing(kind.fields, column)]
    if isinstance(kind, ArrayType):
        element = kind.element
        return [F.exists(column, lambda e: _any(element, e))] if _has_required(element) else []
    if isinstance(kind, MapType) and _has_required(kind.value):
        value = kind.value
        return [F.exists(F.map_values(column), lambda e: _any(value, e))]
    return []


def _any(kind: object, element: Column) -> Column:
    condition = F.lit(False)
    for missing in _missing_inside(kind, element):
        condition = condition | F.coalesce(missing, F.lit(False))
    return condition


def _has_required(kind: object) -> bool:
    if isinstance(kind, StructType):
        return any(field.required or _has_required(field.type) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_required(kind.element)
    return isinstance(kind, MapType) and _has_required(kind.value)


def value_columns(codec: Codec, value: Column) -> list[Column]:
    """The decoded value spread into the columns that a stage sees."""
    if isinstance(codec, JsonCodec):
        return [value[field.name].alias(field.name) for field in codec.fields]
    return [value.alias("value")]


@reused
def encoded_value(codec: Codec, output: T.StructType) -> Column:
    """The value bytes of a stage's output with this schema.

    Raises:
        ConfigError: The columns do not fit the codec.
    """
    names = [name for name in output.names if name != "_kafka"]
    if isinstance(codec, JsonCodec):
        if not names:
            msg = f"the stage's output has no column beside _kafka: {output.names}"
            raise ConfigError(msg, fix="return at least one column for the JSON value")
        options = {"ignoreNullFields": "false" if codec.include_nulls else "true"}
        encoded = F.to_json(F.struct(*[F.col(_quoted(name)) for name in names]), options).cast("binary")
        if "_kafka" in output.names:
            # A tombstone has no value to decode; all its value columns are null, and it must leave as a tombstone.
            all_null = F.lit(True)
            for name in names:
                all_null = all_null & F.col(_quoted(name)).isNull()
            encoded = F.when(F.col("_kafka.tombstone") & all_null, F.lit(None)).otherwise(encoded)
        return encoded
    unknown = [name for name in names if name not in SINK_COLUMNS]
    if unknown or "value" not in names:
        msg = (
            f"the stage's output for codec {codec.name!r} needs a column 'value' and may hold "
            f"{', '.join(SINK_COLUMNS)} and _kafka; it holds {', '.join(output.names)}"
        )
        raise ConfigError(msg, fix="select these columns, or use JsonCodec() to write every column", columns=unknown)
    kind = output["value"].dataType
    if not isinstance(kind, T.BinaryType | T.StringType | T.NullType):
        msg = f"column 'value' is {kind.simpleString()}; codec {codec.name!r} writes binary or string"
        raise ConfigError(msg, fix="cast it, or use JsonCodec()", column="value")
    return F.col("value").cast("binary")


def as_key(column: Column, kind: T.DataType) -> Column:
    """A column as the bytes of a record key: bytes stay, structs become JSON, anything else its text."""
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.MapType | T.ArrayType):
        return F.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def as_timestamp_ms(column: Column, kind: T.DataType, name: str) -> Column:
    """A column as milliseconds since 1970.

    Raises:
        ConfigError: It is neither a timestamp, nor a date, nor a number of milliseconds.
    """
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType | T.DateType):
        return F.unix_millis(column.cast("timestamp"))
    if isinstance(kind, T.LongType | T.IntegerType):
        return column.cast("long")
    msg = f"timestamp column {name!r} is {kind.simpleString()}"
    raise ConfigError(msg, fix="use a timestamp, a date, or a bigint of milliseconds since 1970", column=name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def column_type(schema: T.StructType, path: str) -> T.DataType:
    """Type of a column, or of a field in a struct column by its dotted path.

    Raises:
        ConfigError: There is no such column.
    """
    kind: T.DataType = schema
    for part in path.split("."):
        if not isinstance(kind, T.StructType) or part not in kind.fieldNames():
            msg = f"column {path!r} is not in the stage's output ({', '.join(schema.names)})"
            raise ConfigError(msg, fix="return this column, or name another one in KafkaTopic(...)", column=path)
        kind = kind[part].dataType
    return kind

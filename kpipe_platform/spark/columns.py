"""Columns that a stage gets from a topic's codec, and the columns that are written to Kafka for a stage's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, RawCodec, TextCodec
from kpipe_platform.codecs.base import Part, any_of
from kpipe_platform.codecs.json.columns import WRITTEN
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.batches import parse_batches, write_batches
from kpipe_platform.spark.column_cache import reused

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
MISFIT = "_kpipe_misfit"
"""Column (string) of an output made from KafkaRecords: why a record does not fit its topic; null if it fits."""

KEY_BYTES = "key_bytes"
"""Further field of ``_kafka``: the key's bytes, if the key codec is not RawCodec or TextCodec."""

SINK_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
"""Allowed columns of an output whose value is a single column, besides ``_kafka``: those of Spark's Kafka sink."""


def framed(codec: Codec, data: Column, headers: Column, part: Part) -> Column:
    """The bytes to decode, as `Codec.framed`."""
    name = codec.id_header(part)
    if name is None:
        return data
    frames = F.filter(headers, lambda header: (header["key"] == name) & header["value"].isNotNull())
    # Most topics have no such header.
    return F.when(F.size(frames) > 0, F.concat(F.element_at(frames, -1)["value"], data)).otherwise(data)


def without_header(headers: Column, name: str | None) -> Column:
    """The headers without those of a name. An id of a schema describes bytes that an output does not have."""
    return headers if name is None else F.filter(headers, lambda header: ~header["key"].eqNullSafe(name))


def parsed(codec: Codec, data: Column) -> Column:
    """Parse bytes in one expression. Evaluate it once: `Codec.value` and `Codec.fault` take its result."""
    parse = codec.parse(data)
    return parse_batches(codec, data) if parse is None else parse


def value_columns(codec: Codec, value: Column) -> list[Column]:
    """The columns of the decoded value that a stage gets."""
    if codec.is_struct:
        return [value[field.name].alias(field.name) for field in codec.fields]
    return [value.alias("value")]


@reused
def encoded_value(codec: Codec, output: T.StructType) -> Column:
    """Encode a stage's output to value bytes.

    Args:
        codec: Codec of the destination's values.
        output: Schema of the output.

    Raises:
        ConfigError: The columns do not fit the codec.
    """
    names = _value_names(output)
    if codec.is_struct:
        if not names:
            msg = f"the stage's output has no column except _kafka: {output.names}"
            raise ConfigError(msg, fix="return at least one column for the value")
        encoded = _written(codec, _struct(names), _struct_type(names, output))
        if "_kafka" in output.names:
            encoded = F.when(passed_tombstone(codec, output), F.lit(None)).otherwise(encoded)
        return encoded
    unknown = [name for name in names if name not in SINK_COLUMNS]
    if unknown or "value" not in names:
        msg = (
            f"the stage's output for codec {codec.name!r} must have a column 'value' and may have "
            f"{', '.join(SINK_COLUMNS)} and _kafka; it has {', '.join(output.names)}"
        )
        raise ConfigError(msg, fix="select these columns, or use JsonCodec() to write every column", columns=unknown)
    return _written(codec, F.col("value"), output["value"].dataType)


def _written(codec: Codec, value: Column, kind: T.DataType) -> Column:
    written = codec.write(value, kind)
    return write_batches(codec, value)["data"] if written is None else written


def _refused(codec: Codec, value: Column, kind: T.DataType) -> Column | None:
    return write_batches(codec, value)["misfit"] if codec.write(value, kind) is None else codec.misfit(value, kind)


def value_type(output: T.StructType) -> T.StructType:
    """The columns of an output that make up the value."""
    return _struct_type(_value_names(output), output)


def key_type(output: T.StructType, key: str | None) -> T.DataType | None:
    """Type of an output's key column; None without one.

    Raises:
        ConfigError: The output has no such column.
    """
    return None if key is None else column_at(output, key)[1]


def _value_names(output: T.StructType) -> list[str]:
    return [name for name in output.names if name not in ("_kafka", MISFIT)]


def _struct(names: list[str]) -> Column:
    return F.struct(*[F.col(_quoted(name)).alias(name) for name in names])


def _struct_type(names: list[str], output: T.StructType) -> T.StructType:
    return T.StructType([output[name] for name in names])


def passed_tombstone(codec: Codec, output: T.StructType) -> Column:
    """A condition that is true for a tombstone that the stage passed unchanged. It must be written as a tombstone.

    The output must have ``_kafka``. All value columns of a tombstone are null, because it has no value to decode.
    """
    names = [name for name in output.names if name != "_kafka"] if codec.is_struct else ["value"]
    return F.col("_kafka.tombstone") & ~any_of(F.col(_quoted(name)).isNotNull() for name in names)


@reused
def misfit_of(codec: Codec, output: T.StructType) -> Column | None:
    """A string column with the reason why an output does not fit the codec's schema; null if it fits.

    `kpipe_platform.spark.sink.output_schema` compares names and types before a job runs. This column covers nulls in
    NOT NULL fields, and strings that are longer than their VARCHAR or CHAR.

    Args:
        codec: Codec of the destination's values.
        output: Schema of the output.

    Returns:
        The column; None if every output with this schema fits.
    """
    if MISFIT in output.names:
        return F.col(MISFIT)
    reasons = [
        F.when(broken, F.lit(text))
        for field in codec.fields
        if field.name in output.names
        for broken, text in _broken(field, F.col(_quoted(field.name)), output[field.name].dataType, field.name)
    ]
    names = _value_names(output)
    own = (
        _refused(codec, _struct(names), _struct_type(names, output))
        if codec.is_struct
        else _refused(codec, F.col("value"), output["value"].dataType)
    )
    if own is not None:
        reasons.append(own)
    if not reasons:
        return None
    misfit = F.coalesce(*reasons)
    if "_kafka" not in output.names:
        return misfit
    return F.when(F.coalesce(~passed_tombstone(codec, output), F.lit(True)), misfit)


def _broken(field: T.StructField, column: Column, returned: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    """Conditions that are true if a value violates its declaration, each with the reason as text."""
    if not field.nullable:
        yield column.isNull(), f"{path!r} is null, declared NOT NULL"
    yield from _broken_inside(field.dataType, column, returned, path)


def _broken_inside(kind: T.DataType, column: Column, returned: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    if isinstance(kind, T.StructType) and isinstance(returned, T.StructType):
        for field in kind:
            inside = _broken(field, column[field.name], returned[field.name].dataType, f"{path}.{field.name}")
            yield from ((column.isNotNull() & broken, text) for broken, text in inside)
    elif isinstance(kind, T.ArrayType) and isinstance(returned, T.ArrayType):
        yield from _broken_element(kind.elementType, column, returned.elementType, f"{path}[]")
    elif isinstance(kind, T.MapType) and isinstance(returned, T.MapType):
        yield from _broken_element(kind.valueType, F.map_values(column), returned.valueType, f"{path}[]")
    elif isinstance(kind, T.VarcharType | T.CharType) and isinstance(returned, T.StringType):
        yield F.length(column) > kind.length, f"{path!r} is longer than its {kind.simpleString().upper()}"


def _broken_element(kind: T.DataType, values: Column, returned: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    def test(number: int) -> Callable[[Column], Column]:
        return lambda element: F.coalesce(list(_broken_inside(kind, element, returned, path))[number][0], F.lit(False))

    for number, (_, text) in enumerate(_broken_inside(kind, F.lit(None), returned, path)):
        yield F.exists(values, test(number)), text


def source_key(output: T.StructType) -> str:
    """Path of the source record's key bytes in an output with ``_kafka``."""
    kafka = output["_kafka"].dataType
    return f"_kafka.{KEY_BYTES}" if isinstance(kafka, T.StructType) and KEY_BYTES in kafka.names else "_kafka.key"


def as_key(column: Column, kind: T.DataType) -> Column:
    """Convert a column to record key bytes: binary stays, nested types become JSON, anything else its text."""
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.MapType | T.ArrayType):
        return F.to_json(column, WRITTEN).cast("binary")
    return column.cast("string").cast("binary")


def key_of(codec: Codec, column: Column, kind: T.DataType) -> tuple[Column, Column | None]:
    """Encode the key column of an output.

    Returns:
        The bytes, and why a key cannot be encoded (None if every key can be).

    Raises:
        ConfigError: The codec does not encode this type.
    """
    if isinstance(codec, RawCodec | TextCodec):
        return as_key(column, kind), None
    if codec.is_struct and not isinstance(kind, T.StructType | T.NullType):
        msg = f"the key column is {kind.simpleString()}, but the key codec {codec.name!r} writes a struct"
        raise ConfigError(msg, fix="return a struct: F.struct(...) in the stage, or use another key_codec")
    problem = _refused(codec, column, kind)
    return (
        F.when(column.isNotNull(), _written(codec, column, kind)),
        None if problem is None else F.when(column.isNotNull(), F.concat(F.lit("key: "), problem)),
    )


def as_timestamp_ms(column: Column, kind: T.DataType, name: str) -> Column:
    """Convert a column to milliseconds since the epoch.

    Args:
        column: The column.
        kind: Its type.
        name: Its name, for the message.

    Raises:
        ConfigError: It is not a timestamp, a date, or an integer of milliseconds.
    """
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType | T.DateType):
        return F.unix_millis(column.cast("timestamp"))
    if isinstance(kind, T.LongType | T.IntegerType | T.NullType):
        # NullType is included because a pandas column that has only nulls gets this type.
        return column.cast("long")
    msg = f"timestamp column {name!r} is {kind.simpleString()}"
    raise ConfigError(msg, fix="use a timestamp, a date, or a bigint of milliseconds since 1970", column=name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def column_at(schema: T.StructType, path: str) -> tuple[Column, T.DataType]:
    """Find a column, or a struct field by its dotted path, and its type.

    Raises:
        ConfigError: The schema has no such column.
    """
    # A column whose name contains dots takes precedence over a path.
    parts = [path] if path in schema.names else path.split(".")
    kind: T.DataType = schema
    for part in parts:
        if not isinstance(kind, T.StructType) or part not in kind.fieldNames():
            msg = f"column {path!r} is not in the stage's output ({', '.join(schema.names)})"
            raise ConfigError(msg, fix="return this column, or name another one in KafkaTopic(...)", column=path)
        kind = kind[part].dataType
    return F.col(".".join(map(_quoted, parts))), kind

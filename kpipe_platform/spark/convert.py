"""DataFrames to and from what a user's function may ask for: pandas, pyarrow, polars, records."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from kpipe_platform.codecs import Codec, JsonCodec
from kpipe_platform.codecs.schema import (
    EPOCH_UNITS,
    ArrayType,
    DataType,
    Field,
    MapType,
    ScalarType,
    StructType,
    to_ddl,
)
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.records import KafkaRecord
from kpipe_platform.spark.exact import MISFITS, check_exact, exact_array, exact_cast
from kpipe_platform.spark.row_results import frame_of, records_of

if TYPE_CHECKING:
    import pandas as pd

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_KAFKA = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("headers", _HEADERS),
        ("tombstone", pa.bool_()),
    ]
)
_RECORD_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.int64()),
    ]
)
_ARROW = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(EPOCH_UNITS, pa.timestamp("us", "UTC")),
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_TIMESTAMP_TYPES: dict[int, Any] = {0: "create_time", 1: "log_append_time"}


def requested_form(annotation: object) -> str:
    """What an input's annotation asks for: spark, pandas, pyarrow, polars or records.

    Raises:
        ConfigError: Nothing that a topic can be loaded as.
    """
    if annotation in (None, Any, typing.Any, object) or _is(annotation, "pyspark.", "DataFrame"):
        return "spark"
    if _is(annotation, "pandas.", "DataFrame"):
        return "pandas"
    if _is(annotation, "pyarrow.", "Table"):
        return "pyarrow"
    if _is(annotation, "polars.", "DataFrame"):
        return "polars"
    if typing.get_origin(annotation) in (list, Sequence) and typing.get_args(annotation) == (KafkaRecord,):
        return "records"
    msg = f"a topic cannot be loaded as {annotation!r}"
    raise ConfigError(
        msg,
        fix="annotate pyspark.sql.DataFrame, pandas.DataFrame, pyarrow.Table, polars.DataFrame or list[KafkaRecord]",
    )


def _is(annotation: object, package: str, name: str) -> bool:
    return (
        isinstance(annotation, type) and annotation.__name__ == name and f"{annotation.__module__}.".startswith(package)
    )


def to_form(frame: DataFrame, form: str, codec: Codec) -> Any:
    """A slice's good records in the form that was asked for.

    Args:
        frame: What a stage would see.
        form: A result of ``requested_form``.
        codec: Codec of the values; decides what ``KafkaRecord.value`` is.

    Raises:
        ConfigError: polars is not installed, or cannot hold a column.
    """
    if form == "spark":
        return frame
    if form == "polars":
        _refuse_maps(frame)
    table: pa.Table = frame.toArrow()
    if form == "pyarrow":
        return table
    if form == "pandas":
        return frame_of(table)
    if form == "polars":
        return _polars().from_arrow(table)
    return [_record(row, codec) for row in records_of(table)]


def _refuse_maps(frame: DataFrame) -> None:
    maps = [field.name for field in frame.schema.fields if "map<" in field.dataType.simpleString()]
    if maps:
        msg = f"polars has no type for the MAP in {', '.join(map(repr, maps))}"
        raise ConfigError(
            msg,
            fix="annotate pandas.DataFrame, pyarrow.Table or list[KafkaRecord], or leave the field out of the schema",
            columns=maps,
        )


def _record(row: dict[str, Any], codec: Codec) -> KafkaRecord:
    kafka = row.pop("_kafka")
    value: Any = row if isinstance(codec, JsonCodec) else row["value"]
    key = kafka["key"]
    return KafkaRecord(
        topic=kafka["topic"],
        partition=kafka["partition"],
        offset=kafka["offset"],
        timestamp_ms=(kafka["timestamp"] - _EPOCH) // dt.timedelta(milliseconds=1),
        timestamp_type=_TIMESTAMP_TYPES.get(kafka["timestamp_type"]),
        key=key.encode() if isinstance(key, str) else key,
        value=None if kafka["tombstone"] else value,
        headers=tuple((h["key"], h["value"]) for h in kafka["headers"]),
    )


def is_records(output: object) -> bool:
    """True for a list of KafkaRecord."""
    return isinstance(output, list) and all(isinstance(item, KafkaRecord) for item in output)


def to_frame(session: SparkSession, output: Any, codec: Codec, read: Sequence[Field] = ()) -> DataFrame:
    """What a user's function returned, as a Spark DataFrame.

    A list of KafkaRecord becomes the columns ``key, value, headers, partition, timestamp``, encoded by ``codec``; a
    record with an offset keeps its coordinates in ``_kafka``, and its partition is the source's, not the
    destination's.

    Args:
        session: The session.
        output: What it returned.
        codec: Codec of the destination's values.
        read: The fields that the sources declare. A MAP is a dict in Python, as a struct is; where the destination
            declares nothing, a field of the same name says which.

    Raises:
        ConfigError: It is none of the forms, or has a column of mixed types.
    """
    if isinstance(output, DataFrame):
        return output
    declared = codec.fields if isinstance(codec, JsonCodec) else ()
    if is_records(output):
        if isinstance(codec, JsonCodec) and not declared and read:
            maps = [field for field in _first(read) if _has_map(field.type)]
            codec = JsonCodec(to_ddl(map(_seen, maps)), include_nulls=codec.include_nulls) if maps else codec
        return session.createDataFrame(_records_table(output, codec))
    kind = type(output)
    if _is(kind, "pandas.", "DataFrame"):
        kinds = {field.name: field.type for field in declared or _first(read) if declared or _has_map(field.type)}
        return _frame(session, _from_pandas(output, kinds), declared)
    if isinstance(output, pa.Table):
        return _frame(session, output, declared)
    if _is(kind, "polars.", "DataFrame"):
        table = output.to_arrow(compat_level=_polars().CompatLevel.oldest())
        return _frame(session, _with_kafka(table), declared)
    msg = f"the function returned {kind.__name__}, which cannot be written to a topic"
    raise ConfigError(msg, fix="return a Spark, pandas or polars DataFrame, a pyarrow Table, or a list of KafkaRecord")


def _frame(session: SparkSession, table: pa.Table, declared: Iterable[Field]) -> DataFrame:
    """The table as a DataFrame. A time without a zone stays one; Spark would take it as one of the session's zone."""
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    zoned = {field.name for field in declared if str(field.type) in ("timestamp", *EPOCH_UNITS)}
    for field in schema.fields:
        if field.name in zoned and isinstance(field.dataType, T.TimestampNTZType):
            field.dataType = T.TimestampType()
    return session.createDataFrame(table, schema=schema)


def _first(fields: Iterable[Field]) -> list[Field]:
    """The fields of several sources, the first of each name."""
    found: dict[str, Field] = {}
    for field in fields:
        found.setdefault(field.name.lower(), field)
    return list(found.values())


def _seen(field: Field) -> Field:
    """The field as a stage sees it, which is a TIMESTAMP where the source has numbers."""
    return replace(field, type=_seen_type(field.type))


def _seen_type(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType(tuple(map(_seen, kind.fields)))
    if isinstance(kind, ArrayType):
        return ArrayType(_seen_type(kind.element))
    if isinstance(kind, MapType):
        return MapType(kind.key, _seen_type(kind.value))
    return ScalarType("timestamp") if kind.name in EPOCH_UNITS else kind


def _records_table(records: list[KafkaRecord], codec: Codec) -> pa.Table:
    located = bool(records) and all(record.offset is not None for record in records)
    columns: dict[str, list[Any]] = {
        "key": [record.key for record in records],
        "value": [
            record.value if isinstance(record.value, bytes) else codec.encode(record.value) for record in records
        ],
        "headers": [[{"key": k, "value": v} for k, v in record.headers] for record in records],
        "partition": [None if located else record.partition for record in records],
        "timestamp": [record.timestamp_ms for record in records],
    }
    table = pa.Table.from_pydict(columns, schema=_RECORD_COLUMNS)
    if not located:
        return table
    kafka: list[dict[str, Any]] = [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": record.key,
            "headers": [],
            "tombstone": record.value is None,
        }
        for record in records
    ]
    return table.append_column("_kafka", pa.array(kafka, type=_KAFKA))


def _from_pandas(frame: pd.DataFrame, kinds: Mapping[str, DataType]) -> pa.Table:
    names, arrays = [], []
    for name, series in frame.items():
        names.append(str(name))
        if name == "_kafka":
            arrays.append(_kafka_array(list(series)))
        else:
            arrays.append(_column(str(name), series, kinds.get(str(name))))
    return pa.Table.from_arrays(arrays, names=names)


def _column(name: str, series: pd.Series[Any], kind: DataType | None) -> pa.Array:
    """A column with its declared type where it holds every value unchanged, else with a type of its own."""
    is_objects = series.dtype == object
    try:
        # Times keep their own type: whether they have a zone is for the check of the output.
        if kind is not None and series.dtype.kind != "M":
            if is_objects:
                return exact_array(series, _arrow_type(kind), name, from_pandas=True, zoned=True)
            return exact_cast(_plain_array(series), _arrow_type(kind), name)
    except MISFITS:
        pass  # where a type is declared, the check of the output says so
    try:
        array = _plain_array(series)
        if is_objects:
            check_exact(series, array.type, name, from_pandas=True, zoned=True)
    except MISFITS as error:
        msg = f"column {name!r} of the pandas.DataFrame has no type of its own: {error}"
        fix = "return one type a column; what else there is may be declared: KafkaTopic(value=JsonCodec(...))"
        raise ConfigError(msg, fix=fix, column=name) from error
    return array


def _plain_array(series: pd.Series[Any]) -> pa.Array:
    array = pa.array(series, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.type) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.element))


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow_type(field.type)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow_type(kind.element))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.key), _arrow_type(kind.value))
    return pa.decimal128(*kind.arguments) if kind.name == "decimal" else _ARROW[kind.name]


def _with_kafka(table: pa.Table) -> pa.Table:
    if "_kafka" not in table.column_names:
        return table
    kafka = _kafka_array(table.column("_kafka").to_pylist())
    return table.drop_columns(["_kafka"]).append_column("_kafka", kafka)


def _kafka_array(values: list[dict[str, Any] | None]) -> pa.Array:
    """The column ``_kafka`` with its own type: inference makes null types of empty headers and absent keys."""
    return pa.array([None if v is None else _clean(v) for v in values], type=_KAFKA)


def _clean(kafka: dict[str, Any]) -> dict[str, Any]:
    key = kafka.get("key")
    return {
        **kafka,
        "key": key.encode() if isinstance(key, str) else key,
        "headers": [{"key": h["key"], "value": h["value"]} for h in kafka.get("headers", ())],
    }


def _polars() -> Any:
    try:
        import polars
    except ImportError as error:
        msg = "polars is not installed"
        raise ConfigError(msg, fix="pip install 'kpipe-platform[polars]'") from error
    return polars

"""Conversion of DataFrames to and from the forms that user functions accept: pandas, pyarrow, polars, records."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonCodec
from kpipe_platform.codecs.exact import MISFITS, MisfitError, check_exact, exact_array, exact_cast
from kpipe_platform.codecs.json.write import plain_value
from kpipe_platform.codecs.types import EpochType, stage_type, types_in
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark._compat import from_arrow_schema, to_arrow_type
from kpipe_platform.spark.columns import KEY_BYTES, MISFIT
from kpipe_platform.spark.stage.record_results import missing_in, pandas_frame, records_of

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
# Exceptions that encoding any value may raise. ``EncodeFault`` is a ValueError.
_NOT_ENCODABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_TIMESTAMP_TYPES: dict[int, Any] = {0: "create_time", 1: "log_append_time"}


def requested_form(annotation: object) -> str:
    """The form that an input's annotation requests: ``spark``, ``pandas``, ``pyarrow``, ``polars`` or ``records``.

    Raises:
        ConfigError: A topic cannot be loaded as this type.
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
    """Convert a slice's good records to the requested form.

    Args:
        frame: The good records as a Spark DataFrame.
        form: A result of ``requested_form``.
        codec: Codec of the values. It determines the type of ``KafkaRecord.value``.

    Raises:
        ConfigError: polars is not installed, or has no type for a column.
    """
    if form == "spark":
        return frame
    if form == "polars":
        _refuse_maps(frame)
    table: pa.Table = frame.toArrow()
    if form == "pyarrow":
        return table
    if form == "pandas":
        return pandas_frame(table)
    if form == "polars":
        return _polars().from_arrow(table)
    return [_record(row, codec) for row in records_of(table, _zone(frame))]


def _zone(frame: DataFrame) -> dt.tzinfo | None:
    """The session's time zone, to which timestamps are converted; None if Python does not support its name."""
    try:
        zone: dt.tzinfo = pa.lib.string_to_tzinfo(str(frame.sparkSession.conf.get("spark.sql.session.timeZone")))
    except (LookupError, ValueError):
        return None
    return zone


def _refuse_maps(frame: DataFrame) -> None:
    maps = [field.name for field in frame.schema.fields if "map<" in field.dataType.simpleString()]
    if maps:
        msg = f"polars has no type for MAP; it occurs in {', '.join(map(repr, maps))}"
        raise ConfigError(
            msg,
            fix="annotate pandas.DataFrame, pyarrow.Table or list[KafkaRecord], or remove the field from the schema",
            columns=maps,
        )


def _record(row: dict[str, Any], codec: Codec) -> KafkaRecord:
    kafka = row.pop("_kafka")
    value: Any = row if codec.is_struct else row["value"]
    key = kafka.get(KEY_BYTES, kafka["key"])
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
    """Whether the output is a list of KafkaRecord."""
    return isinstance(output, list) and all(isinstance(item, KafkaRecord) for item in output)


def to_frame(
    session: SparkSession,
    output: Any,
    codec: Codec,
    read: Sequence[T.StructField] = (),
    declared: T.StructType | None = None,
) -> DataFrame:
    """Convert a user function's result to a Spark DataFrame.

    A list of KafkaRecord becomes the columns ``key, value, headers, partition, timestamp``, encoded by ``codec``. A
    record with an offset keeps its coordinates in ``_kafka``, and its partition is the source's, not the
    destination's. For records that the codec or Kafka cannot represent, the column ``MISFIT`` contains the reason.

    Args:
        session: The session.
        output: The function's result.
        codec: Codec of the destination's values.
        read: The fields that the sources declare. In Python, a MAP and a struct are both dicts. If the destination
            declares no fields, a source field of the same name decides which of the two a dict is.
        declared: The fields that the destination declares. None: those of ``codec``.

    Raises:
        ConfigError: The result has an unsupported type, or a column of mixed types.
    """
    if isinstance(output, DataFrame):
        return output
    declared = codec.fields if declared is None else declared
    if is_records(output):
        if isinstance(codec, JsonCodec) and not declared and read:
            maps = [field for field in _first(read) if _has_map(field.dataType)]
            seen = stage_type(T.StructType(maps))
            codec = JsonCodec(seen, include_nulls=codec.include_nulls) if maps else codec
        return _in_order(session.createDataFrame(_records_table(output, codec, declared)))
    kind = type(output)
    if _is(kind, "pandas.", "DataFrame"):
        fields = declared or [field for field in _first(read) if _has_map(field.dataType)]
        kinds = {field.name: field.dataType for field in fields}
        return _frame(session, _from_pandas(output, kinds), declared)
    if isinstance(output, pa.Table):
        return _frame(session, output, declared)
    if _is(kind, "polars.", "DataFrame"):
        table = output.to_arrow(compat_level=_polars().CompatLevel.oldest())
        return _frame(session, _with_kafka(table), declared)
    msg = f"the function returned {kind.__name__}, which cannot be written to a topic"
    raise ConfigError(msg, fix="return a Spark, pandas or polars DataFrame, a pyarrow Table, or a list of KafkaRecord")


def _frame(session: SparkSession, table: pa.Table, declared: T.StructType) -> DataFrame:
    """Convert a table to a DataFrame.

    Timestamps without a zone become TIMESTAMP_NTZ unless the field is declared as a TIMESTAMP. By default, Spark would
    interpret them in the session's zone.
    """
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    zoned = {field.name for field in declared if isinstance(field.dataType, T.TimestampType | EpochType)}
    for field in schema.fields:
        if field.name in zoned and isinstance(field.dataType, T.TimestampNTZType):
            field.dataType = T.TimestampType()
    return _in_order(session.createDataFrame(table, schema=schema))


def _in_order(frame: DataFrame) -> DataFrame:
    """Put the rows into one Spark partition, to keep their order.

    Spark distributes local rows over its tasks, and with at-least-once delivery each task writes.
    """
    return frame.coalesce(1)


def _first(fields: Iterable[T.StructField]) -> list[T.StructField]:
    """The fields of several sources. If they share a name (case-insensitive), the first one is kept."""
    first: dict[str, T.StructField] = {}
    for field in fields:
        first.setdefault(field.name.lower(), field)
    return list(first.values())


def _records_table(records: list[KafkaRecord], codec: Codec, declared: T.StructType) -> pa.Table:
    made = [_record_row(record, codec) for record in records]
    fit = _fits(records, declared) if declared else None
    for number, record in enumerate(records):
        row = made[number]
        if fit is not None and row[MISFIT] is None:
            row[MISFIT] = _misfit(record.value, row["value"], codec, fit)
    schema = _RECORD_COLUMNS
    if any(row[MISFIT] is not None for row in made):
        schema = schema.append(pa.field(MISFIT, pa.string()))
    if any(record.offset is not None for record in records):
        schema = schema.append(pa.field("_kafka", _KAFKA))
    return pa.Table.from_pylist(made, schema=schema)


def _record_row(record: KafkaRecord, codec: Codec) -> dict[str, Any]:
    """Convert a record to the columns of a raw output. Invalid parts are left out, and MISFIT contains the reasons."""
    wrong: list[str] = []

    def checked(name: str, value: Any, read: Callable[[Any], Any]) -> Any:
        try:
            return None if value is None else read(value)
        except _NOT_ENCODABLE as error:
            wrong.append(f"{name}: {getattr(error, 'message', error)}")
            return None

    is_new = record.offset is None
    value = checked("value", record.value, lambda v: v if isinstance(v, bytes) else codec.encode(v))
    if wrong:
        # The dead letter shows this text instead of the value.
        value = repr(record.value).encode("utf-8", "backslashreplace")
    row = {
        "key": checked("key", record.key, _as_bytes),
        "value": value,
        "headers": [
            # The writer refuses headers without a name, for all forms of output.
            {
                "key": None if k is None else checked("header", k, _as_text) or "",
                "value": checked(f"header {k!r}", v, _as_bytes),
            }
            for k, v in record.headers
        ],
        "partition": checked("partition", record.partition, _as_whole(31)) if is_new else None,
        "timestamp": checked("timestamp_ms", record.timestamp_ms, _as_whole(63)),
    }
    row[MISFIT] = "; ".join(wrong) or None
    row["_kafka"] = None
    if not is_new:
        row["_kafka"] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": row["key"],
            "headers": [],
            "tombstone": record.value is None,
        }
    return row


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    msg = f"{type(value).__name__} is not bytes"
    raise TypeError(msg)


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        msg = f"its name is {type(value).__name__}, not text"
        raise TypeError(msg)
    value.encode()
    return value


def _as_whole(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value >= 2**bits or value < -(2**bits):
            msg = f"{value!r:.60} is not a whole number of {bits + 1} bits"
            raise TypeError(msg)
        return value

    return read


@dataclass(frozen=True)
class _Declared:
    """The declared fields that records must fit.

    Args:
        kind: The fields as one struct type.
        is_met: Whether all records fit it.
        has_lengths: Whether a field is a VARCHAR or CHAR.
    """

    kind: pa.DataType
    is_met: bool
    has_lengths: bool


def _fits(records: list[KafkaRecord], declared: T.StructType) -> _Declared:
    kind = _arrow_type(declared, keep_not_null=True)
    values = [record.value for record in records if not isinstance(record.value, bytes)]
    has_lengths = any(isinstance(one, T.VarcharType | T.CharType) for one in types_in(declared))
    return _Declared(kind, _broken(values, kind, "value") is None, has_lengths)


def _misfit(value: Any, data: bytes | None, codec: Codec, declared: _Declared) -> str | None:
    """Why the value of a record does not fit the schema; None if it fits, and for a tombstone."""
    if data is None:
        return None
    if not isinstance(value, bytes) and not declared.is_met:
        reason = _unlike(value, declared.kind)
        # Dataclasses, Enum members and similar objects are compared in the form in which they are written.
        if reason is not None and (plain := plain_value(value)) is not value:
            reason = _unlike(plain, declared.kind)
        if reason is not None:
            return reason
    if isinstance(value, bytes) or declared.has_lengths:
        fault = codec.diagnose(data)
        return None if fault is None else fault.message
    return None


def _unlike(value: Any, kind: pa.DataType) -> str | None:
    if not isinstance(value, Mapping):
        return f"the value is {type(value).__name__}, not an object"
    fields = {kind.field(i).name: kind.field(i) for i in range(kind.num_fields)}
    unknown = [name for name in value if name not in fields]
    if unknown:
        return f"{unknown[0]!r} is not declared"
    for name, field in fields.items():
        one = value.get(name)
        if one is None and not field.nullable:
            return f"{name!r} is null, declared NOT NULL"
        reason = _broken([one], field.type, name)
        if reason is not None:
            return reason
    return None


def _broken(values: list[Any], kind: pa.DataType, path: str) -> str | None:
    try:
        missing = missing_in(exact_array(values, kind, path), path)
    except MisfitError as error:
        return str(error)
    return None if missing is None else f"{missing!r} is null, declared NOT NULL"


def _from_pandas(frame: pd.DataFrame, kinds: Mapping[str, T.DataType]) -> pa.Table:
    names, arrays = [], []
    for name, series in frame.items():
        names.append(str(name))
        if name == "_kafka":
            arrays.append(_kafka_array(list(series)))
        else:
            arrays.append(_column(str(name), series, kinds.get(str(name))))
    return pa.Table.from_arrays(arrays, names=names)


def _column(name: str, series: pd.Series[Any], kind: T.DataType | None) -> pa.Array:
    """Convert a column to its declared type if that keeps every value unchanged, else to an inferred type."""
    is_objects = series.dtype == object
    try:
        # Timestamps keep their own type: the output's schema check decides whether they need a zone.
        if kind is not None and series.dtype.kind != "M":
            if is_objects:
                return exact_array(series, _arrow_type(kind), name, from_pandas=True, zoned=True)
            return exact_cast(_plain_array(series), _arrow_type(kind), name)
    except MISFITS:
        pass  # the output's schema check reports a wrong type
    try:
        array = _plain_array(series)
        if is_objects:
            check_exact(series, array.type, name, from_pandas=True, zoned=True)
    except MISFITS as error:
        msg = f"column {name!r} of the pandas.DataFrame has no single type: {error}"
        fix = "return one type per column, or declare the column's type: KafkaTopic(value_codec=JsonCodec(...))"
        raise ConfigError(msg, fix=fix, column=name) from error
    return array


def _plain_array(series: pd.Series[Any]) -> pa.Array:
    array = pa.array(series, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _has_map(kind: T.DataType) -> bool:
    return any(isinstance(one, T.MapType) for one in types_in(kind))


def _arrow_type(kind: T.DataType, *, keep_not_null: bool = False) -> pa.DataType:
    """The Arrow type. NOT NULL is dropped by default, because Arrow does not check it and Spark relies on it."""
    return to_arrow_type(stage_type(kind, keep_not_null=keep_not_null), timezone="UTC")


def _with_kafka(table: pa.Table) -> pa.Table:
    if "_kafka" not in table.column_names:
        return table
    kafka = _kafka_array(table.column("_kafka").to_pylist())
    return table.drop_columns(["_kafka"]).append_column("_kafka", kafka)


def _kafka_array(values: list[dict[str, Any] | None]) -> pa.Array:
    """The column ``_kafka`` with its fixed type, since inference gives empty headers and missing keys null types."""
    return pa.array([None if v is None else _clean(v) for v in values], type=_KAFKA)


def _clean(kafka: dict[str, Any]) -> dict[str, Any]:
    key = kafka.get(KEY_BYTES, kafka.get("key"))
    return {
        **{name: value for name, value in kafka.items() if name != KEY_BYTES},
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

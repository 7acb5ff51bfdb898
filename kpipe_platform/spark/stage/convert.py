"""DataFrames to and from what a user's function may ask for: pandas, pyarrow, polars, records."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from kpipe_platform.codecs import Codec, JsonCodec
from kpipe_platform.codecs.json.write import plain_value
from kpipe_platform.codecs.types import EpochType, stage_type, types_in
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark.columns import MISFIT
from kpipe_platform.spark.stage.exact import MISFITS, MisfitError, check_exact, exact_array, exact_cast
from kpipe_platform.spark.stage.record_results import frame_of, missing_in, records_of

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
# What encoding a value of any kind may raise; ``EncodeFault`` is a ValueError.
_NOT_ENCODABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
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
    return [_record(row, codec) for row in records_of(table, _zone(frame))]


def _zone(frame: DataFrame) -> dt.tzinfo | None:
    """The session's time zone, in which its timestamps are written; None for a name that Python does not know."""
    try:
        zone: dt.tzinfo = pa.lib.string_to_tzinfo(str(frame.sparkSession.conf.get("spark.sql.session.timeZone")))
    except (LookupError, ValueError):
        return None
    return zone


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


def to_frame(session: SparkSession, output: Any, codec: Codec, read: Sequence[T.StructField] = ()) -> DataFrame:
    """What a user's function returned, as a Spark DataFrame.

    A list of KafkaRecord becomes the columns ``key, value, headers, partition, timestamp``, encoded by ``codec``; a
    record with an offset keeps its coordinates in ``_kafka``, and its partition is the source's, not the
    destination's. The column ``MISFIT`` says what is wrong with those records that the codec or Kafka does not hold.

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
    declared = codec.fields if isinstance(codec, JsonCodec) else T.StructType()
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
    """The table as a DataFrame. A time without a zone stays one; Spark would take it as one of the session's zone."""
    schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    zoned = {field.name for field in declared if isinstance(field.dataType, T.TimestampType | EpochType)}
    for field in schema.fields:
        if field.name in zoned and isinstance(field.dataType, T.TimestampNTZType):
            field.dataType = T.TimestampType()
    return _in_order(session.createDataFrame(table, schema=schema))


def _in_order(frame: DataFrame) -> DataFrame:
    """The same rows as one partition. Spark spreads local rows over its tasks, and at least once each task writes."""
    return frame.coalesce(1)


def _first(fields: Iterable[T.StructField]) -> list[T.StructField]:
    """The fields of several sources, the first of each name."""
    found: dict[str, T.StructField] = {}
    for field in fields:
        found.setdefault(field.name.lower(), field)
    return list(found.values())


def _records_table(records: list[KafkaRecord], codec: Codec, declared: T.StructType) -> pa.Table:
    made = [_record_row(record, codec) for record in records]
    fit = _fits(records, declared) if declared else None
    for number, record in enumerate(records):
        row = made[number]
        if fit is not None and row[MISFIT] is None and isinstance(codec, JsonCodec):
            row[MISFIT] = _misfit(record.value, row["value"], codec, fit)
    schema = _RECORD_COLUMNS
    if any(row[MISFIT] is not None for row in made):
        schema = schema.append(pa.field(MISFIT, pa.string()))
    if any(record.offset is not None for record in records):
        schema = schema.append(pa.field("_kafka", _KAFKA))
    return pa.Table.from_pylist(made, schema=schema)


def _record_row(record: KafkaRecord, codec: Codec) -> dict[str, Any]:
    """A record in the columns of a raw output; what Kafka does not hold is left out, and MISFIT says so."""
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
        # Its dead letter has to show something.
        value = repr(record.value).encode("utf-8", "backslashreplace")
    row = {
        "key": checked("key", record.key, _as_bytes),
        "value": value,
        "headers": [
            # The writer refuses one without a name, whatever form it came in.
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
    """What records are compared with: the declared fields as one type, and whether all of them fit it."""

    kind: pa.DataType
    is_met: bool
    has_lengths: bool


def _fits(records: list[KafkaRecord], declared: T.StructType) -> _Declared:
    kind = _arrow_type(declared, keep_not_null=True)
    values = [record.value for record in records if not isinstance(record.value, bytes)]
    has_lengths = any(isinstance(one, T.VarcharType | T.CharType) for one in types_in(declared))
    return _Declared(kind, _broken(values, kind, "value") is None, has_lengths)


def _misfit(value: Any, data: bytes | None, codec: JsonCodec, declared: _Declared) -> str | None:
    """Why the value of a record is none that the schema describes; None where it is one, and for a tombstone."""
    if data is None:
        return None
    if not isinstance(value, bytes) and not declared.is_met:
        found = _unlike(value, declared.kind)
        # Objects that stand for records, members of an Enum and the like are taken for what they are written as.
        if found is not None and (plain := plain_value(value)) is not value:
            found = _unlike(plain, declared.kind)
        if found is not None:
            return found
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
        found = _broken([one], field.type, name)
        if found is not None:
            return found
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
        fix = "return one type a column; what else there is may be declared: KafkaTopic(value_codec=JsonCodec(...))"
        raise ConfigError(msg, fix=fix, column=name) from error
    return array


def _plain_array(series: pd.Series[Any]) -> pa.Array:
    array = pa.array(series, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _has_map(kind: T.DataType) -> bool:
    return any(isinstance(one, T.MapType) for one in types_in(kind))


def _arrow_type(kind: T.DataType, *, keep_not_null: bool = False) -> pa.DataType:
    """The type in Arrow; NOT NULL is not kept by default, because Arrow does not check it and Spark trusts it."""
    return to_arrow_type(stage_type(kind, keep_not_null=keep_not_null), timezone="UTC")


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

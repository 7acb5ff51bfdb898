"""DataFrames to and from what a user's function may ask for: pandas, pyarrow, polars, records."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform.codecs import Codec, JsonCodec
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.records import KafkaRecord

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
        ConfigError: polars is not installed.
    """
    if form == "spark":
        return frame
    table: pa.Table = frame.toArrow()
    if form == "pyarrow":
        return table
    if form == "pandas":
        return table.to_pandas()
    if form == "polars":
        return _polars().from_arrow(table)
    return [_record(row, codec) for row in table.to_pylist()]


def _record(row: dict[str, Any], codec: Codec) -> KafkaRecord:
    kafka = row.pop("_kafka")
    value: Any = row if isinstance(codec, JsonCodec) else row["value"]
    key = kafka["key"]
    return KafkaRecord(
        topic=kafka["topic"],
        partition=kafka["partition"],
        offset=kafka["offset"],
        timestamp_ms=int(kafka["timestamp"].timestamp() * 1000),
        timestamp_type=_TIMESTAMP_TYPES.get(kafka["timestamp_type"]),
        key=key.encode() if isinstance(key, str) else key,
        value=None if kafka["tombstone"] else value,
        headers=tuple((h["key"], h["value"]) for h in kafka["headers"]),
    )


def is_records(output: object) -> bool:
    """True for a list of KafkaRecord."""
    return isinstance(output, list) and all(isinstance(item, KafkaRecord) for item in output)


def to_frame(session: SparkSession, output: Any, codec: Codec) -> DataFrame:
    """What a user's function returned, as a Spark DataFrame.

    A list of KafkaRecord becomes the columns ``key, value, headers, partition, timestamp``, encoded by ``codec``; a
    record with an offset keeps its coordinates in ``_kafka``, and its partition is the source's, not the
    destination's.

    Raises:
        ConfigError: It is none of the forms.
    """
    if isinstance(output, DataFrame):
        return output
    if is_records(output):
        return session.createDataFrame(_records_table(output, codec))
    kind = type(output)
    if _is(kind, "pandas.", "DataFrame"):
        return session.createDataFrame(_from_pandas(output))
    if isinstance(output, pa.Table):
        return session.createDataFrame(output)
    if _is(kind, "polars.", "DataFrame"):
        table = output.to_arrow(compat_level=_polars().CompatLevel.oldest())
        return session.createDataFrame(_with_kafka(table))
    msg = f"the function returned {kind.__name__}, which cannot be written to a topic"
    raise ConfigError(msg, fix="return a Spark, pandas or polars DataFrame, a pyarrow Table, or a list of KafkaRecord")


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


def _from_pandas(frame: pd.DataFrame) -> pa.Table:
    if "_kafka" not in frame.columns:
        return pa.Table.from_pandas(frame, preserve_index=False)
    table = pa.Table.from_pandas(frame.drop(columns="_kafka"), preserve_index=False)
    return table.append_column("_kafka", _kafka_array(list(frame["_kafka"])))


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

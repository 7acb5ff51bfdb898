"""Change events in Avro, as Confluent's AvroConverter writes them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import AvroCodec
from kpipe_platform.codecs.connect.debezium import DebeziumCodec
from kpipe_platform.codecs.framed import WriterSchemas
from kpipe_platform.registry.model import RegisteredSchema
from kpipe_platform.registry.wire import frame
from kpipe_platform.spark.columns import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {
            "name": "at",
            "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}],
            "default": None,
        },
        {"name": "day", "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}], "default": None},
    ],
}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.customers",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]},
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
TYPES = {"at": "io.debezium.time.MicroTimestamp", "day": "io.debezium.time.Date"}
COLUMNS = (
    "struct<op:string,before:struct<id:int,at:timestamp_ntz,day:date>,after:struct<id:int,at:timestamp_ntz,day:date>,"
    "source:struct<ts_ms:bigint>,ts_ms:bigint>"
)
CHANGE: dict[str, Any] = {
    "op": "u",
    "before": None,
    "after": {"id": 1, "at": dt.datetime.fromisoformat("2018-06-20T15:13:16.945104"), "day": dt.date(1969, 12, 31)},
    "source": {"ts_ms": 5},
    "ts_ms": None,
}


def far(inner: AvroCodec) -> bytes:
    """An event with a date that no column can represent."""
    return inner.encode({**CHANGE, "after": {"id": 1, "at": None, "day": 2**31 - 1}}) or b""


@pytest.mark.spark
def test_events_in_avro(spark: SparkSession) -> None:
    inner = AvroCodec(schema=ENVELOPE, framing="none")
    codec = DebeziumCodec(inner, types=TYPES)
    assert codec.value_type.simpleString() == COLUMNS
    data = codec.encode(CHANGE) or b""
    assert codec.decode(data) == CHANGE
    records = [data, far(inner), b"\x00", inner.encode({**CHANGE, "op": "c", "after": None}) or b"", None]
    frame = spark.createDataFrame([(one and bytearray(one),) for one in records], "data binary")
    frame = frame.select("data", parsed(codec, F.col("data")).alias("parsed"))
    bad = codec.fault(F.col("data"), F.col("parsed"))
    assert bad is not None
    value = codec.value(F.col("parsed"))
    rows = frame.select(bad.alias("bad"), value.alias("value")).toArrow().to_pylist()
    assert [row["bad"] for row in rows] == [False, True, True, True, False]
    assert rows[0]["value"] == CHANGE
    faults = [one and codec.diagnose(one) for one in records]
    assert [bool(fault) for fault in faults] == [False, True, True, True, False]


def test_the_columns_are_known_when_the_registry_was_asked() -> None:
    codec = DebeziumCodec(AvroCodec(), types=TYPES)
    assert (codec.value_type, codec.is_framed, codec.id_header("value")) == (T.StructType(), True, "__value_schema_id")
    import json

    schema = RegisteredSchema(json.dumps(ENVELOPE), "AVRO", id=7)
    reader = AvroCodec().reading(schema, WriterSchemas("AVRO", ((frame(7), schema),)))
    read = DebeziumCodec(reader, types=TYPES)
    assert read.value_type.simpleString() == COLUMNS
    assert (
        read.decode(
            frame(7, DebeziumCodec(AvroCodec(schema=ENVELOPE, framing="none"), types=TYPES).encode(CHANGE) or b"")
        )
        == CHANGE
    )

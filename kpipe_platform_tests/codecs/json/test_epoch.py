"""Times as numbers: TIMESTAMP_MILLIS and TIMESTAMP_MICROS, as Debezium and Kafka Connect write them."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kpipe_platform import JsonCodec
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark.columns import encoded_value, parsed, value_columns
from kpipe_platform.spark.sink.output_schema import check_output_schema
from kpipe_platform.spark.stage.convert import to_frame

pytestmark = pytest.mark.spark

CODEC = JsonCodec(
    "ms TIMESTAMP_MILLIS NOT NULL, us TIMESTAMP_MICROS, many ARRAY<TIMESTAMP_MILLIS>, "
    "named MAP<STRING, TIMESTAMP_MICROS>, inside STRUCT<at: TIMESTAMP_MILLIS, note: STRING>"
)
MS = 1767607200123
US = MS * 1000 + 456
GOOD = {
    "ms": MS,
    "us": US,
    "many": [MS, None, -1, 0],
    "named": {"a": US, "b": None},
    "inside": {"at": MS, "note": "x"},
}
FARTHEST_MS = (2**63 - 1) // 1_000_000 * 1_000
VALUES = [
    GOOD,
    {"ms": 0},
    {"ms": -1, "us": -1, "inside": {}},
    {"ms": FARTHEST_MS, "us": 2**63 - 1},
    {"ms": -FARTHEST_MS, "us": -(2**63)},
]
FAULTS = [
    {"ms": FARTHEST_MS + 1},
    {"ms": 2**63 - 1},
    {"ms": -(2**63)},
    {"ms": 2**63},
    {"ms": 0, "us": 2**63},
    {"ms": None},
    {"ms": "2026-01-05T10:00:00Z"},
    {"ms": str(MS)},
    {"ms": 1.5},
    {"ms": True},
    {"ms": 0, "many": [FARTHEST_MS + 1]},
    {"ms": 0, "inside": {"at": 2**63 - 1}},
]


def read(spark: SparkSession, values: list[object]):
    rows = spark.createDataFrame([(n, json.dumps(v).encode()) for n, v in enumerate(values)], "n INT, data BINARY")
    rows = rows.withColumn("p", parsed(CODEC, F.col("data")))
    bad = CODEC.fault(F.col("data"), F.col("p"))
    assert bad is not None
    return rows.select("n", bad.alias("bad"), CODEC.value(F.col("p")).alias("v"))


def test_numbers_are_moments_and_leave_as_the_same_bytes(spark: SparkSession) -> None:
    rows = read(spark, VALUES)
    assert [row.bad for row in rows.orderBy("n").select("bad").collect()] == [False] * len(VALUES)
    seen = rows.select("n", *value_columns(CODEC, F.col("v")))
    first = seen.where("n = 0").select("ms", F.unix_micros("us").alias("us"), "inside.at").collect()[0]
    moment = dt.datetime.fromtimestamp(MS // 1000, dt.timezone.utc).replace(microsecond=123_000)
    assert (first.ms.astimezone(dt.timezone.utc), first.us, first.at) == (moment, US, first.ms)
    output = seen.drop("n")
    check_output_schema(output, CODEC, "out")
    wrote = [row[0] for row in seen.orderBy("n").select(encoded_value(CODEC, output.schema)).collect()]
    assert [bytes(one) for one in wrote] == [json.dumps(v, separators=(",", ":")).encode() for v in VALUES]


def test_what_is_no_such_number_is_a_fault(spark: SparkSession) -> None:
    assert [row.bad for row in read(spark, FAULTS).orderBy("n").select("bad").collect()] == [True] * len(FAULTS)
    for value in FAULTS:
        assert CODEC.diagnose(json.dumps(value).encode()) is not None, value
    for value in VALUES:
        assert CODEC.diagnose(json.dumps(value).encode()) is None, value
    fault = CODEC.diagnose(b'{"ms": 9223372036854775807}')
    assert fault is not None
    assert (fault.kind, fault.field) == ("wrong_type", "ms")
    assert "expected timestamp_millis, found number 9223372036854775807, which is out of range" in fault.message


def test_the_same_from_pandas_arrow_and_records(spark: SparkSession) -> None:
    moment = dt.datetime.fromtimestamp(MS // 1000, dt.timezone.utc).replace(microsecond=123_456)
    value = {
        "ms": moment,
        "us": moment,
        "many": [moment, None],
        "named": {"a": moment, "b": None},
        "inside": {"at": moment, "note": "x"},
    }
    wanted = {
        "ms": MS,
        "us": US,
        "many": [MS, None],
        "named": {"a": US, "b": None},
        "inside": {"at": MS, "note": "x"},
    }
    text = json.dumps(wanted, separators=(",", ":")).encode()
    assert CODEC.encode(value) == text
    import pandas as pd
    import pyarrow as pa

    for returned in (pd.DataFrame([value]), [KafkaRecord(topic="out", value=value)]):
        frame = to_frame(spark, returned, CODEC)
        column = F.col("value") if isinstance(returned, list) else encoded_value(CODEC, frame.schema)
        assert [bytes(row[0]) for row in frame.select(column).collect()] == [text]
    flat = JsonCodec("ms TIMESTAMP_MILLIS, us TIMESTAMP_MICROS")
    table = pa.table({"ms": [moment], "us": [moment.replace(tzinfo=None)]})
    frame = to_frame(spark, table, flat)
    check_output_schema(frame, flat, "out")
    found = [bytes(row[0]) for row in frame.select(encoded_value(flat, frame.schema)).collect()]
    assert found == [b'{"ms":%d,"us":%d}' % (MS, US)]


def test_where_the_destination_declares_nothing_every_form_writes_text(spark: SparkSession) -> None:
    source = JsonCodec("ms TIMESTAMP_MILLIS, named MAP<STRING, TIMESTAMP_MICROS>")
    moment = dt.datetime(2026, 1, 5, 10, 0, 0, 123_000, dt.timezone.utc)
    value = {"ms": moment, "named": {"a": moment, "b": None}}
    text = '"2026-01-05T10:00:00.123000Z"'
    frame = to_frame(spark, [KafkaRecord(topic="out", value=value)], JsonCodec(), source.fields)
    assert bytes(frame.collect()[0].value).decode() == f'{{"ms":{text},"named":{{"a":{text},"b":null}}}}'
    seen = spark.createDataFrame([(moment, {"a": moment, "b": None})], "ms TIMESTAMP, named MAP<STRING, TIMESTAMP>")
    written = bytes(seen.select(encoded_value(JsonCodec(), seen.schema)).collect()[0][0]).decode()
    assert written == f'{{"ms":{text},"named":{{"a":{text},"b":null}}}}'

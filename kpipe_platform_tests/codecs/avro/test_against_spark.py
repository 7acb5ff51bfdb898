"""fastavro with kpipe's resolution, and Spark's own functions, agree on every value and every fault."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from kpipe_platform.codecs.avro.codec import PinnedAvroCodec
from kpipe_platform.codecs.avro.records import encode_avro
from kpipe_platform.codecs.avro.schema import parse_avro
from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.codecs.framed import WriterSchemas
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import Schema
from kpipe_platform.registry.wire import frame
from kpipe_platform.spark._compat import to_arrow_type
from kpipe_platform_tests.codecs.avro.schemas import evolved, schemas, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FAULT = object()


def by_spark(spark: SparkSession, codec: PinnedAvroCodec, data: list[bytes]) -> list[Any]:
    frame = spark.createDataFrame([(bytearray(each),) for each in data], "data binary").coalesce(1)
    parsed = frame.select("data", codec.parse(F.col("data")).alias("parsed"))
    decoded = parsed.select(
        F.when(~codec.fault(F.col("data"), F.col("parsed")), codec.value(F.col("parsed"))).alias("v"),
        codec.fault(F.col("data"), F.col("parsed")).alias("bad"),
    )
    rows = decoded.toArrow().to_pylist(maps_as_pydicts="strict")
    return [FAULT if row["bad"] else row["v"] for row in rows]


def by_python(codec: PinnedAvroCodec, data: list[bytes]) -> list[Any]:
    def one(each: bytes) -> Any:
        try:
            return codec.decode(each)
        except DecodeFault:
            return FAULT

    return [one(each) for each in data]


def schema(given: Any) -> Schema:
    return Schema(given if isinstance(given, str) else json.dumps(given))


@hypothesis.settings(max_examples=15)
@hypothesis.given(data=st.data())
def test_values(spark: SparkSession, data: st.DataObject) -> None:
    written = schema(data.draw(schemas()))
    drawn = data.draw(st.lists(values(parse_avro(written)), min_size=1, max_size=4))
    encoded = [encode_avro(value, written) for value in drawn]
    codec = PinnedAvroCodec(schema=written)
    assert by_python(codec, encoded) == drawn
    assert by_spark(spark, codec, encoded) == drawn
    writer = PinnedAvroCodec(schema=written)
    frame = (
        spark.createDataFrame([{"v": None}], "v int")
        .where("false")
        .select(F.lit(None).cast(codec.value_type).alias("v"))
    )

    table = pa.table({"v": pa.array(drawn, to_arrow_type(codec.value_type, timezone="UTC"))})
    frame = spark.createDataFrame(table, schema="v " + codec.value_type.simpleString())
    misfit = writer.misfit(F.col("v"), codec.value_type)
    column = F.lit(None).cast("string") if misfit is None else misfit
    rows = frame.coalesce(1).select(writer.write(F.col("v"), codec.value_type).alias("b"), column.alias("m")).collect()
    assert [row["m"] for row in rows] == [None] * len(drawn)
    assert by_python(codec, [bytes(row["b"]) for row in rows]) == drawn


@hypothesis.settings(max_examples=25)
@hypothesis.given(data=st.data())
def test_evolution(spark: SparkSession, data: st.DataObject) -> None:
    old = data.draw(schemas())
    written, reader = schema(old), schema(data.draw(evolved(old)))
    drawn = data.draw(st.lists(values(parse_avro(written)), min_size=1, max_size=4))
    encoded = [frame(7) + encode_avro(value, written) for value in drawn]
    try:
        codec = PinnedAvroCodec(schema=reader, writers=WriterSchemas("AVRO", ((frame(7), written),)))
        codec.value_type  # noqa: B018
    except ConfigError:
        hypothesis.reject()
    assert by_spark(spark, codec, encoded) == by_python(codec, encoded)


@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data(), seed=st.integers(0, 2**32))
def test_corrupt_bytes(spark: SparkSession, data: st.DataObject, seed: int) -> None:
    """What is cut off, or has bytes after it, is a fault. Each fault of Spark has an explanation."""
    written = schema(data.draw(schemas()))
    good = encode_avro(data.draw(values(parse_avro(written))), written)
    source = random.Random(seed)
    cut = [*[good[:end] for end in range(len(good))][:20], good + b"\x00", good + b"xyz"]
    broken = []
    for _ in range(20):
        copy = bytearray(good)
        for _ in range(source.randint(1, 3)):
            copy[source.randrange(len(copy))] = source.randrange(256)
        broken.append(bytes(copy))
    codec = PinnedAvroCodec(schema=written)
    found = by_spark(spark, codec, [*cut, *broken])
    assert found[: len(cut)] == by_python(codec, cut) == [FAULT] * len(cut)
    # Java and Python read some corrupt bytes differently, such as 2 as a boolean, so that some faults are "unreadable".
    for each, value in zip(broken, found[len(cut) :], strict=True):
        assert value is not FAULT or codec.explain(each).kind


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_many_schemas(spark: SparkSession, count: int) -> None:
    """Each record by its own schema, however many there are. Other ids, and ids in 16 bytes, are told apart."""
    reader = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    writers = []
    for number in range(count):
        extra = {"name": f"only_{number}", "type": "string"}
        writers.append(schema({**reader, "fields": [extra, *reader["fields"]]}))
    frames = [frame(7 + 3 * number) for number in range(count - 1)] + [frame(UUID(int=5))]
    data = [own + encode_avro({f"only_{n}": "x", "a": n}, writers[n]) for n, own in enumerate(frames)]
    codec = PinnedAvroCodec(
        schema=schema(reader), writers=WriterSchemas("AVRO", tuple(zip(frames, writers, strict=True)))
    )
    unknown = frame(8) + data[0][5:]
    expected = [*[{"a": number} for number in range(count)], FAULT, FAULT, FAULT]
    assert by_spark(spark, codec, [*data, unknown, b"", b"\x00\x00"]) == expected

"""Key, headers, partition and timestamp of an output: which column they come from, and what Java's clients would do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    JsonCodec,
    KafkaIOManager,
    KafkaTopic,
    RawCodec,
    TextCodec,
    kafka_multi_asset,
    kafka_topic_asset,
)
from kpipe_platform.errors import ConfigError
from kpipe_platform.jvm.jars import class_path, kafka_broker_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, TopicFactory

from .conftest import BAD, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

AT = 1_767_225_600_000


def with_parts(orders: DataFrame) -> DataFrame:
    """Columns for all parts of the record. Of ids 3 to 5, a part is wrong."""
    name = F.when(F.col("id") != 5, "kind").alias("key")
    headers = F.array(F.struct(name, F.encode(F.col("note"), "utf-8").alias("value")))
    return orders.withColumns(
        {
            "meta": F.when(F.col("id") != 1, headers),
            "part": F.when(F.col("id") == 3, -1).when(F.col("id") == 4, 2).otherwise(F.col("id") % 2).cast("tinyint"),
            "at": F.timestamp_millis(F.col("id") + AT),
        }
    )


PARTS: dict[str, Any] = {"headers_column": "meta", "partition_column": "part", "timestamp_column": "at"}


@pytest.mark.parametrize("how", ["one pass", "sorted", "pandas"])
def test_columns_of_a_json_output(make_orders: Callable[..., Orders], how: str) -> None:
    orders = make_orders(target={"partitions": 2})

    def pandas(orders: pd.DataFrame) -> pd.DataFrame:
        parts = [[{"key": "kind", "value": note.encode()}] for note in orders["note"]]
        parts[1:2] = [None]
        parts[5:6] = [[{"key": None, "value": b"v"}]]
        numbers = [{3: -1, 4: 2}.get(n, n % 2) for n in orders["id"]]
        at = [n + AT for n in orders["id"]]
        return orders.assign(meta=parts, part=numbers, at=at)

    stage = {"pandas": pandas, "sorted": lambda orders: with_parts(orders).sort("id")}.get(how, with_parts)
    topic = KafkaTopic(orders.target, value_codec=JsonCodec(), key_expression="concat('#', upper(note))", **PARTS)
    orders.send(*(order(n, headers=[("own", b"1")]) for n in range(7)), BAD)
    found = orders.metadata(orders.run(orders.asset(stage, topic=topic)))
    assert (found["records_written"], found["dead_letters"]) == (4, 4)
    assert [column.name for column in found["dagster/column_schema"].columns] == ["id", "amount", "note"]
    written = {r.json()["id"]: r for r in orders.outputs()}
    assert {n: (r.key, r.partition, r.timestamp_ms) for n, r in written.items()} == {
        n: (f"#N{n}".encode(), n % 2, AT + n) for n in (0, 1, 2, 6)
    }
    # Only the value's own columns are its fields, and the source's headers are replaced.
    assert written[2].json() == {"id": 2, "amount": 3.0, "note": "n2"}
    own = {n: [h for h in r.headers if not h[0].startswith(("kpipe.", "correlation"))] for n, r in written.items()}
    assert own == {0: [("kind", b"n0")], 1: [], 2: [("kind", b"n2")], 6: [("kind", b"n6")]}
    letters = {letter.json()["fault"]["kind"] for letter in orders.letters()}
    assert letters == {"partition", "header", "wrong_type"}
    orders.send(order(8))
    assert orders.metadata(orders.run(orders.asset(with_parts, topic=topic)))["records_written"] == 1


def test_a_schema_decides_which_of_these_columns_are_fields(orders: Orders) -> None:
    def stage(orders: DataFrame) -> DataFrame:
        made = with_parts(orders).withColumn("meta", F.create_map(F.lit("kind"), F.col("note")))
        return made.select("id", "meta", "at", F.lit(0).alias("part"), F.col("note").alias("who"), "_kafka")

    codec = JsonCodec("id BIGINT, at TIMESTAMP")
    topic = KafkaTopic(orders.target, value_codec=codec, key_column="who", **PARTS)
    orders.send(order(1), {"key": "gone", "value": None})
    orders.run(orders.asset(stage, topic=topic))
    first, tombstone = orders.outputs()
    assert (first.key, dict(first.headers)["kind"]) == (b"n1", b"n1")
    assert set(first.json()) == {"id", "at"}
    assert (tombstone.key, tombstone.value) == (b"gone", None)
    text = KafkaTopic(orders.target, value_codec=TextCodec(), key_column="who", partition_column="part")
    orders.send(order(2))
    orders.run(
        orders.asset(lambda orders: stage(orders).select(F.col("who").alias("value"), "who", "part"), topic=text)
    )
    assert (orders.outputs()[2].key, orders.outputs()[2].value) == (b"n2", b"n2")


def test_columns_of_a_wrong_type_are_refused_before_the_write(orders: Orders) -> None:
    orders.send(order(1))
    topic = KafkaTopic(orders.target, value_codec=JsonCodec(), partition_column="amount")
    with pytest.raises(ConfigError, match="partition column 'amount' is double"):
        orders.run(orders.asset(topic=topic))
    assert (orders.outputs(), orders.committed()) == ([], None)


def keys() -> list[bytes]:
    """Keys that hypothesis makes, the empty one too."""
    made = {b""}

    @settings(max_examples=400, database=None, derandomize=True)
    @given(st.binary(max_size=70))
    def collect(key: bytes) -> None:
        made.add(key)

    collect()
    return sorted(made)


def test_partitions_are_those_of_javas_producer_or_of_the_source(
    kafka_broker: EmbeddedBroker,
    kafka_io_manager: KafkaIOManager,
    kafka_topic: TopicFactory,
    consume: Consume,
) -> None:
    source, by_key, kept = (kafka_topic(name, partitions=12) for name in ("java", "by-key", "kept"))
    some = keys()
    assert len(some) > 300
    program = Path(__file__).with_name("JavaProducer.java")
    done = subprocess.run(
        [
            *(find_java().path, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", class_path(kafka_broker_jars()), program, kafka_broker.bootstrap_servers, source),
        ],
        input="\n".join(key.hex() for key in some),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    javas = {record.key: record.partition for record in consume(source)}
    assert sorted(key for key in javas if key is not None) == some
    assert set(javas.values()) == set(range(12))
    topic = kafka_topic_asset(source, value_codec=RawCodec(), partitions=12, name="java")
    outs = {
        "by_key": KafkaTopic(by_key, value_codec=RawCodec()),
        "kept": KafkaTopic(kept, value_codec=RawCodec(), key_expression="reverse(_kafka.key)", partition_column="n"),
    }

    @kafka_multi_asset(source=topic, outs=outs, partitioned=False)
    def copies(java: DataFrame) -> dict[str, DataFrame]:
        # Other keys, and the partitions all the same.
        return {"by_key": java, "kept": java.withColumn("n", F.col("_kafka.partition"))}

    dg.materialize([topic, copies], selection=[copies], resources={"kafka_io_manager": kafka_io_manager})
    assert {record.key: record.partition for record in consume(by_key)} == javas
    assert {(record.key or b"")[::-1]: record.partition for record in consume(kept)} == javas

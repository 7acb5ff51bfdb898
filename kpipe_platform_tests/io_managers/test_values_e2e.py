"""Values on their way from a topic through a stage to a topic: the same, or a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaDestination,
    KafkaIOManager,
    KafkaTopic,
    RawCodec,
    TextCodec,
    kafka_topic_asset,
    table_input,
)
from kpipe_platform.codecs import Codec
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.errors import ConfigError, RecordFaultError

from .conftest import DELIVERIES, ORDER, Orders, order
from .unchanged import as_arrow, as_pandas, as_polars, as_records, as_spark

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SCHEMA = "id BIGINT, n INT, level TINYINT, price DECIMAL(10,2), code VARCHAR(3), at TIMESTAMP"
GOOD = [
    b'{"id":9007199254740993,"level":127,"price":1.20,"at":"2026-01-05T10:00:00.123456Z"}',
    b'{"id":2,"n":7,"code":"EWR","at":"1965-01-05T10:00:00.000001Z"}',
]
CHANGED = {
    b'{"id":3,"level":200}': "wrong_type",
    b'{"id":4,"price":1.239}': "wrong_type",
    b'{"id":5,"code":"longer"}': "wrong_type",
    b'{"id":6,"at":1767225600000000}': "wrong_type",
    b'{"id":6,"price":1e600000000}': "wrong_type",
    b'{"id":7,"code":"\\ud800"}': "not_json",
    b'{"id":8}],"v":[{"id":9}': "not_json",
    b'{"id":8}]} x': "not_json",
}


def in_order(orders: DataFrame) -> DataFrame:
    return orders.orderBy("id")


def typed(orders: Orders, schema: str = SCHEMA) -> Orders:
    """The same topic with another schema."""
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec(schema), partitions=1, name="orders")
    return orders


@pytest.mark.parametrize("stage", [as_spark, in_order, as_pandas, as_arrow, as_polars, as_records])
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_values_leave_as_they_came_and_those_that_would_change_are_faults(
    orders: Orders, stage: Callable[..., Any], delivery: str
) -> None:
    typed(orders).send(*({"value": value} for value in (*GOOD, *CHANGED)))
    manager = KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(connection=orders.manager.source.connection, delivery=delivery),
        dead_letter=orders.manager.dead_letter,
        spark=orders.manager.spark,
    )
    topic = KafkaTopic(orders.target, value_codec=JsonCodec(SCHEMA) if delivery == "exactly_once" else JsonCodec())
    found = orders.metadata(orders.run(orders.asset(stage, topic=topic), manager=manager))
    assert (found["records_written"], found["dead_letters"]) == (len(GOOD), len(CHANGED))
    assert sorted(record.value for record in orders.outputs()) == sorted(GOOD)
    envelopes = [decode_envelope(letter.value or b"") for letter in orders.letters()]
    assert {e.original.value: e.fault.kind for e in envelopes} == CHANGED


def test_a_table_refuses_a_value_that_would_change(make_orders: Callable[..., Orders]) -> None:
    orders = typed(make_orders(config={"cleanup.policy": "compact"}))
    orders.send({"key": "a", "value": GOOD[0]}, {"key": "b", "value": b'{"level":200}'})

    @dg.asset(ins={"orders": table_input()})
    def enriched(orders: DataFrame) -> None: ...

    with pytest.raises(RecordFaultError, match="found number 200, which is out of range"):
        orders.run(enriched, None)


@pytest.mark.parametrize(("key", "expected"), [("a.b", b"7"), ("st.x", b"8"), ("odd`name", b"9")])
def test_a_key_column_with_a_dot_in_its_name(orders: Orders, key: str, expected: bytes) -> None:
    typed(orders).send({"key": "source", "value": GOOD[1]})

    def stage(orders: DataFrame) -> DataFrame:
        own = F.lit(7).alias("a.b"), F.struct(F.lit(8).alias("x")).alias("st"), F.lit(9).alias("odd`name")
        return orders.select("*", *own)

    orders.run(orders.asset(stage, topic=KafkaTopic(orders.target, key_column=key, value_codec=JsonCodec())))
    assert [record.key for record in orders.outputs()] == [expected]


@pytest.mark.parametrize("source_key", [RawCodec(), TextCodec()], ids=["bytes", "text"])
@pytest.mark.parametrize("stage", [as_spark, in_order, as_pandas, as_arrow, as_polars])
def test_a_tombstone_keeps_its_records_key(
    make_orders: Callable[..., Orders], stage: Callable[..., Any], source_key: Codec
) -> None:
    orders = make_orders(target={"config": {"cleanup.policy": "compact"}})
    orders.topic_asset = kafka_topic_asset(
        orders.source, value_codec=JsonCodec(ORDER), key_codec=source_key, partitions=1, name="orders"
    )
    orders.send(order(1), {"key": "k1", "value": None})
    topic = KafkaTopic(orders.target, key_column="id", value_codec=JsonCodec())
    orders.run(orders.asset(stage, topic=topic, on_fault=FaultAction.STOP))
    assert {(record.key, record.value is None) for record in orders.outputs()} == {(b"1", False), (b"k1", True)}


def test_an_output_of_another_nested_type_is_refused(orders: Orders) -> None:
    typed(orders).send({"value": GOOD[1]})

    def stage(orders: DataFrame) -> DataFrame:
        return orders.select(F.lit("text").alias("legs"), "_kafka")

    topic = KafkaTopic(orders.target, value_codec=JsonCodec("legs ARRAY<STRUCT<code: STRING>>"))
    with pytest.raises(ConfigError, match="'legs' is string, declared as array<struct<code:string>>"):
        orders.run(orders.asset(stage, topic=topic))
    assert orders.committed() is None

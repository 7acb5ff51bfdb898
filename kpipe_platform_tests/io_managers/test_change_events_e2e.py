"""A topic of Debezium as a source, as a table, and as the current rows of a compacted topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import (
    ConnectJsonCodec,
    DebeziumCodec,
    JsonCodec,
    KafkaTopic,
    current_rows,
    kafka_topic_asset,
    table_input,
)
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform_tests.codecs.connect.events import (
    CREATE,
    CUSTOMERS,
    DELETE,
    KEY_SCHEMA,
    MESSAGE,
    TRUNCATE,
    UPDATE,
    enveloped,
    plain,
)

from .conftest import Orders

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]


def key(number: int) -> bytes:
    return enveloped({"id": number}, KEY_SCHEMA)


def event(number: int, event: dict[str, Any], *, made: Callable[[Any], bytes] = enveloped) -> dict[str, Any]:
    after = event.get("after") and {**event["after"], "id": number}
    return {"key": key(number), "value": made({**event, "after": after})}


def changes(orders: Orders, partitions: int = 1) -> Orders:
    """The orders topic as a topic of Debezium."""
    orders.topic_asset = kafka_topic_asset(
        orders.source,
        value_codec=DebeziumCodec(CUSTOMERS),
        key_codec=ConnectJsonCodec("id INT"),
        partitions=partitions,
        name="orders",
    )
    return orders


def table_of(orders: Orders) -> dict[int, str]:
    rows: dict[int, str] = {}

    @dg.asset(ins={"orders": table_input()})
    def enriched(orders: DataFrame) -> None:
        rows.update({row.id: row.first_name for row in orders.select("after.id", "after.first_name").collect()})

    orders.run(enriched, None)
    return rows


def test_a_table_has_the_rows_that_are_left(orders: Orders) -> None:
    changes(orders).send(
        event(1, CREATE),
        event(2, CREATE),
        event(3, CREATE, made=plain),
        event(4, CREATE),
        event(1, UPDATE),
        event(2, DELETE),
        event(3, DELETE),
        {"key": key(3), "value": None},
        {"key": enveloped({"prefix": "foo"}), "value": enveloped(MESSAGE)},
    )
    assert table_of(orders) == {1: "Anne Marie", 4: "Anne"}
    orders.send({"value": enveloped(TRUNCATE)}, event(5, CREATE))
    assert table_of(orders) == {5: "Anne"}


def test_current_rows_of_a_compacted_topic(make_orders: Callable[..., Orders]) -> None:
    orders = changes(make_orders(target={"config": {"cleanup.policy": "compact"}}))
    bad = {"key": key(9), "value": enveloped({**CREATE, "after": None})}
    orders.send(
        event(1, CREATE),
        event(1, UPDATE),
        event(2, DELETE),
        {"key": key(2), "value": None},
        {"key": enveloped({"id": 8}, KEY_SCHEMA), "value": enveloped(MESSAGE)},
        {"key": key(7), "value": enveloped(TRUNCATE)},
        bad,
    )

    def stage(orders: DataFrame) -> DataFrame:
        return current_rows(orders)

    topic = KafkaTopic(orders.target, key_column="_kafka.key.id", value_codec=JsonCodec(CUSTOMERS))
    found = orders.metadata(orders.run(orders.asset(stage, topic=topic)))
    outputs = [(record.key, record.value and json.loads(record.value)["first_name"]) for record in orders.outputs()]
    assert outputs == [(b"1", "Anne"), (b"1", "Anne Marie"), (b"2", None), (b"2", None)]
    assert found["dead_letters"] == 2
    letters = [decode_envelope(letter.value or b"") for letter in orders.letters()]
    faults = {letter.original.value: letter.fault.message for letter in letters}
    assert faults[bad["value"]] == "field \"after\" is missing, but the operation 'c' leaves a row"
    assert "the table was truncated" in faults[enveloped(TRUNCATE)]
    assert {letter.original.key for letter in letters} == {key(7), key(9)}


def test_events_are_written_as_they_were_read(orders: Orders) -> None:
    changes(orders).send(event(1, CREATE), event(2, DELETE), {"key": key(2), "value": None})
    codec = DebeziumCodec(CUSTOMERS)
    asset = orders.asset(topic=KafkaTopic(orders.target, value_codec=codec))
    orders.run(asset)
    first, second, last = orders.outputs()
    text = {**CREATE["source"], "snapshot": "true"}
    assert codec.decode(first.value) == codec.decode(event(1, {**CREATE, "source": text})["value"])
    assert codec.decode(second.value) == codec.decode(event(2, {**DELETE, "source": text})["value"])
    assert (first.key, last.key, last.value) == (key(1), key(2), None)

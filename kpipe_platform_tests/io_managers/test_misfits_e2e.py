"""Outputs that the destination's schema or Kafka does not hold: faults of their records, in every form of stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from kpipe_platform import JsonCodec, KafkaDestination, KafkaIOManager, KafkaRecord, KafkaTopic, kafka_topic_asset
from kpipe_platform.codecs import RawCodec, TextCodec
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.errors import DestinationRejectedError
from kpipe_platform.policies.faults import FaultAction

from .conftest import Orders
from .test_values_e2e import as_arrow, as_pandas, as_polars, as_records, as_spark, in_order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SOURCE = "id BIGINT, code STRING, legs ARRAY<STRUCT<n: INT>>"
TARGET = JsonCodec("id BIGINT NOT NULL, code VARCHAR(2), legs ARRAY<STRUCT<n: INT NOT NULL>>")
FIT = [{"id": 1, "code": "EW"}, {"id": 2, "legs": [{"n": 3}]}]
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"code": "E"}, "'id' is null, declared NOT NULL"),
    ({"id": 4, "code": "longer"}, "VARCHAR(2)"),
    ({"id": 5, "legs": [{"n": 1}, {}]}, "'legs[].n' is null, declared NOT NULL"),
]


def typed(orders: Orders, schema: str = SOURCE) -> Orders:
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec(schema), partitions=1, name="orders")
    return orders


def at_least_once(orders: Orders) -> KafkaIOManager:
    return KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(connection=orders.manager.source.connection, delivery="at_least_once"),
        dead_letter=orders.manager.dead_letter,
        spark=orders.manager.spark,
    )


def faults(orders: Orders) -> dict[bytes | None, Any]:
    envelopes = [decode_envelope(letter.value or b"") for letter in orders.letters()]
    return {envelope.original.value: envelope.fault for envelope in envelopes}


def written(*values: dict[str, Any]) -> list[bytes]:
    return [json.dumps(value, separators=(",", ":")).encode() for value in values]


def dropped(orders: DataFrame) -> DataFrame:
    return orders.drop("_kafka")


FORMS = [
    *[(stage, "exactly_once") for stage in (as_spark, in_order, as_pandas, as_arrow, as_polars, as_records, dropped)],
    *[(stage, "at_least_once") for stage in (as_spark, as_pandas, as_records)],
]


@pytest.mark.parametrize(("stage", "delivery"), FORMS)
def test_what_does_not_fit_is_a_fault_of_its_record(orders: Orders, stage: Callable[..., Any], delivery: str) -> None:
    values = [*FIT, *(value for value, _ in MISFITS)]
    typed(orders).send(*({"key": "k", "value": value} for value in written(*values)), {"key": "gone", "value": None})
    manager = at_least_once(orders) if delivery == "at_least_once" else None
    asset = orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=TARGET))
    found = orders.metadata(orders.run(asset, manager=manager))
    left = [*written(*FIT), *([] if stage is dropped else [None])]
    outputs = sorted(orders.outputs(), key=lambda record: record.offset)
    assert [str(record.value) for record in outputs] == [str(value) for value in left]
    letters = faults(orders)
    for value, message in MISFITS:
        fault = letters[written(value)[0]]
        assert (str(fault.component), fault.kind) == ("destination", "does_not_fit")
        assert message.lower() in fault.message.lower()
    # Without _kafka nobody knows a tombstone from a record of nulls.
    assert found["dead_letters"] == len(MISFITS) + (stage is dropped)
    assert found["records_written"] == len(left)


@pytest.mark.parametrize("stage", [as_spark, as_records])
def test_stop_names_the_record_and_writes_nothing(orders: Orders, stage: Callable[..., Any]) -> None:
    typed(orders).send(*({"value": value} for value in written(FIT[0], MISFITS[0][0])))
    asset = orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=TARGET), on_fault=FaultAction.STOP)
    with pytest.raises(DestinationRejectedError, match="offset 1"):
        orders.run(asset)
    assert orders.outputs() == []
    assert orders.committed() is None


def test_records_of_every_kind_that_do_not_fit(orders: Orders) -> None:
    typed(orders).send({"key": "k", "value": written(FIT[0])[0]})
    new: list[tuple[KafkaRecord, str]] = [
        (KafkaRecord(value={"id": "one"}), "which is not a valid int64"),
        (KafkaRecord(value={"id": 1, "extra": 1}), "'extra' is not declared"),
        (KafkaRecord(value={}), "'id' is null"),
        (KafkaRecord(value="text"), "the value is str, not an object"),
        (KafkaRecord(value=[1, 2]), "the value is list, not an object"),
        (KafkaRecord(value=b"garbage"), "not JSON"),
        (KafkaRecord(value={"id": 1.5}), "which is not a valid int64"),
        (KafkaRecord(value={"id": object()}), "which has no JSON form"),
        (KafkaRecord(value={"id": 10}, key=5), "key: int is not bytes"),  # type: ignore[arg-type]
        (KafkaRecord(value={"id": 11}, timestamp_ms="now"), "timestamp_ms: 'now'"),  # type: ignore[arg-type]
        (KafkaRecord(value={"id": 12}, headers=((None, b""),)), "has no name (null)"),  # type: ignore[arg-type]
    ]

    def stage(orders: list[KafkaRecord]) -> list[KafkaRecord]:
        return [*orders, KafkaRecord(key=b"new", value={"id": 9}), *(record for record, _ in new)]

    found = orders.metadata(orders.run(orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=TARGET))))
    outputs = {record.key: record for record in orders.outputs()}
    assert {key: record.value for key, record in outputs.items()} == {b"k": written(FIT[0])[0], b"new": b'{"id":9}'}
    assert [key for key, record in outputs.items() if "kpipe.source" in dict(record.headers)] == [b"k"]
    assert found["dead_letters"] == len(new)
    messages = [fault.message for fault in faults(orders).values()]
    for _, message in new:
        assert any(message in one for one in messages), message


@pytest.mark.parametrize("codec", [JsonCodec(), TextCodec(), RawCodec()], ids=["json", "text", "raw"])
def test_a_record_that_has_no_bytes_is_a_fault(orders: Orders, codec: Any) -> None:
    typed(orders).send({"value": written(FIT[0])[0]})

    def stage(orders: list[KafkaRecord]) -> list[KafkaRecord]:
        return [KafkaRecord(value=object()), KafkaRecord(value=b"good")]

    found = orders.metadata(orders.run(orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=codec))))
    assert (found["records_written"], found["dead_letters"]) == (1, 1)
    assert [record.value for record in orders.outputs()] == [b"good"]


def test_new_records_do_not_move_those_that_were_read(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(partitions=2)
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec(SOURCE), partitions=2, name="orders")
    orders.send({"key": "k", "value": written(FIT[0])[0], "partition": 1})

    def stage(orders: list[KafkaRecord]) -> list[KafkaRecord]:
        return [KafkaRecord(key=b"new", value={"id": 9}, partition=0), *orders]

    orders.run(orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=TARGET)), "1")
    found = {record.key: dict(record.headers).get("kpipe.source") for record in orders.outputs()}
    assert found == {b"new": None, b"k": f"{orders.source}/1/0".encode()}

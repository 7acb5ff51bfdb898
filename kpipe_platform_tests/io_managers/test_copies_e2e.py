"""Outputs that only copy each record are written as they are read: nothing is cached, nothing is read twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import FaultAction, KafkaDestination, KafkaIOManager, KafkaTopic, RawCodec, kafka_topic_asset
from kpipe_platform.testing.messages import ConsumedRecord

from .conftest import CACHED, ENDS, Orders, incompressible

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MakeOrders = Callable[..., Orders]


def copied(orders: DataFrame) -> DataFrame:
    return orders.select("_kafka.key", "value", "_kafka.headers")


def untouched(orders: DataFrame) -> DataFrame:
    return orders


def computed(orders: DataFrame) -> DataFrame:
    return orders.select(F.upper("value").cast("binary").alias("value"))


@pytest.fixture
def make_raw(make_orders: MakeOrders) -> MakeOrders:
    """Orders whose values stay bytes."""

    def make(partitions: int = 1, **how: Any) -> Orders:
        orders = make_orders(partitions, **how)
        raw = kafka_topic_asset(orders.source, value_codec=RawCodec(), partitions=partitions, name="orders")
        return replace(orders, topic_asset=raw)

    return make


def sent(orders: Orders, partitions: int = 1, count: int = CACHED) -> list[dict[str, Any]]:
    """Send records with headers, more to each partition than to the one before."""
    records = []
    for partition in range(partitions):
        for n in range(count + partition):
            headers = [("tenant", b"t%d" % (n % 3)), ("none", None)] if n % 2 else []
            records.append({"key": b"k%d" % n, "value": b"%d:%d" % (partition, n), "headers": headers})
            records[-1]["partition"] = partition
    orders.send(*records)
    return records


def raw(orders: Orders, **how: Any) -> dict[str, Any]:
    return {"topic": KafkaTopic(orders.target, value_codec=RawCodec()), **how}


def of(records: list[ConsumedRecord], partition: int) -> list[Any]:
    """Key, value and headers of what came from a partition, in order."""
    mine = [r for r in sorted(records, key=lambda r: (r.partition, r.offset)) if r.value.startswith(b"%d:" % partition)]
    return [(r.key, r.value, list(r.headers or [])) for r in mine]


def test_one_partition(make_raw: MakeOrders, rows_read: Callable[[], int]) -> None:
    orders = make_raw()
    records = sent(orders)
    found = orders.metadata(orders.run(orders.asset(copied, **raw(orders))))
    assert (found["records_read"], found["records_written"]) == (CACHED, CACHED)
    assert of(orders.outputs(), 0) == [(r["key"], r["value"], r["headers"]) for r in records]
    assert (orders.committed(), orders.lag(), rows_read()) == (CACHED, 0, CACHED + ENDS)


def test_each_partition_is_counted_and_in_order_without_its_source(
    make_raw: MakeOrders, rows_read: Callable[[], int]
) -> None:
    orders = make_raw(3)
    records = sent(orders, 3, CACHED // 2)
    found = orders.metadata(orders.run(orders.asset(copied, partitioned=False, **raw(orders)), None))
    assert (found["records_read"], found["records_written"]) == (len(records), len(records))
    stored = orders.manager.source.committed(orders.group, orders.source)
    for partition in range(3):
        count = CACHED // 2 + partition
        counts = stored[partition].metadata.counts
        assert (stored[partition].offset, counts.read, counts.written) == (count, count, count)
        mine = [r for r in records if r["partition"] == partition]
        assert of(orders.outputs(), partition) == [(r["key"], r["value"], r["headers"]) for r in mine]
    assert rows_read() == len(records) + ENDS


def test_a_frame_that_is_returned_as_it_is_keeps_its_source(make_raw: MakeOrders, rows_read: Callable[[], int]) -> None:
    orders = make_raw(2)
    sent(orders, 2, CACHED // 2)
    orders.run(orders.asset(untouched, partitioned=False, **raw(orders)), None)
    outputs = orders.outputs()
    assert len(outputs) == 2 * (CACHED // 2) + 1
    for record in outputs[::500]:
        partition, number = record.value.split(b":")
        assert dict(record.headers)["kpipe.source"] == b"%s/%s/%s" % (orders.source.encode(), partition, number)
    assert rows_read() == len(outputs) + ENDS


def test_a_record_that_the_topic_refuses_is_dead_lettered_and_counted(make_raw: MakeOrders) -> None:
    orders = make_raw(2, target={"config": {"max.message.bytes": "2000"}})
    sent(orders, 2, CACHED // 2)
    orders.send({"key": b"big", "value": b"1:" + incompressible(3_000).encode(), "partition": 1})
    found = orders.metadata(orders.run(orders.asset(untouched, partitioned=False, **raw(orders)), None))
    total = 2 * (CACHED // 2) + 2
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (total, total - 1, 1)
    (letter,) = orders.letters()
    assert b"big" in (letter.key or b"")
    assert len(orders.outputs()) == total - 1


def test_gaps_of_aborted_transactions_are_not_counted(make_raw: MakeOrders) -> None:
    orders = make_raw()
    sent(orders)
    orders.send(*({"value": b"0:aborted"} for _ in range(50)), transaction="abort")
    orders.send(*({"value": b"0:more"} for _ in range(10)), transaction="commit")
    found = orders.metadata(orders.run(orders.asset(copied, **raw(orders))))
    assert (found["records_read"], found["records_written"]) == (CACHED + 10, CACHED + 10)
    assert orders.lag() == 0


def test_at_least_once(make_raw: MakeOrders, rows_read: Callable[[], int]) -> None:
    orders = make_raw(2)
    records = sent(orders, 2, CACHED // 2)
    manager = KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(connection=orders.manager.source.connection, delivery="at_least_once"),
        dead_letter=orders.manager.dead_letter,
        spark=orders.manager.spark,
    )
    asset = orders.asset(copied, partitioned=False, **raw(orders))
    found = orders.metadata(orders.run(asset, None, manager=manager))
    assert (found["records_read"], found["records_written"], orders.lag()) == (len(records), len(records), 0)
    for partition in range(2):
        mine = [r for r in records if r["partition"] == partition]
        assert of(orders.outputs(), partition) == [(r["key"], r["value"], r["headers"]) for r in mine]
    assert rows_read() == len(records)


def test_what_computes_anything_is_not_taken_for_a_copy(make_raw: MakeOrders, rows_read: Callable[[], int]) -> None:
    orders = make_raw(2)
    orders.send(*({"value": b"a%d" % n, "partition": n % 2} for n in range(CACHED)))
    asset = orders.asset(computed, partitioned=False, on_fault=FaultAction.STOP, **raw(orders))
    found = orders.metadata(orders.run(asset, None))
    assert (found["records_read"], found["records_written"]) == (CACHED, CACHED)
    assert sorted(r.value for r in orders.outputs()) == sorted(b"A%d" % n for n in range(CACHED))
    # Several tasks read them once, into a cache.
    assert CACHED < rows_read() < CACHED + 100

"""Unit tests of a user's assets, in-process, on a broker and a Spark session that the pytest plugin starts."""

import dagster as dg
import pytest

from examples.orders.assets import orders, orders_large, orders_priced
from kpipe_platform.testing.topics import create_topic, delete_topic


@pytest.fixture(autouse=True)
def topics(kafka_broker):
    create_topic(kafka_broker.bootstrap_servers, "orders", partitions=2)
    yield
    for name in ("orders", "orders.priced", "orders.large", "orders.dlq"):
        delete_topic(kafka_broker.bootstrap_servers, name)


def test_orders_are_priced_and_invalid_ones_are_dead_letters(produce, consume, kafka_io_manager):
    good = {"order_id": "o-1", "customer": "ann", "quantity": 3, "unit_price": 9.5}
    produce("orders", [{"value": good, "partition": 0}, {"value": b"not JSON", "partition": 0}])
    dg.materialize([orders, orders_priced], partition_key="0", resources={"kafka_io_manager": kafka_io_manager})
    (priced,), (broken,) = consume("orders.priced"), consume("orders.dlq")
    assert (priced.key, priced.json()["total"]) == (b"ann", 28.5)
    assert broken.json()["fault"]["kind"] == "not_json"


def test_each_order_is_read_once(produce, consume, kafka_io_manager):
    order = {"customer": "ann", "quantity": 1, "unit_price": 1500.0}
    produce("orders", [{"value": {"order_id": f"o-{n}", **order}, "partition": n} for n in (0, 1)])
    for partition in ("0", "1", "0"):
        dg.materialize(
            [orders, orders_priced, orders_large],
            partition_key=partition,
            resources={"kafka_io_manager": kafka_io_manager},
        )

    assert sorted(record.json()["order_id"] for record in consume("orders.priced")) == ["o-0", "o-1"]
    assert sorted(record.json()["order_id"] for record in consume("orders.large")) == ["o-0", "o-1"]
    assert [record.key for record in consume("orders.large")] == [b"ann", b"ann"]


def test_the_stage_alone_needs_no_broker(spark):
    schema = "order_id string, customer string, quantity int, unit_price double"
    frame = spark.createDataFrame([("o-1", "ann", 2, 0.125)], schema)

    assert orders_priced(frame).head()["total"] == 0.25

"""Keys, values and headers of every odd kind arrive as they were sent, by every path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from kpipe_platform import (
    JsonCodec,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaTopic,
    RawCodec,
    kafka_topic_asset,
)
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.redrive import redrive
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.messages import ConsumedRecord

from .conftest import Orders
from .unchanged import as_arrow, as_pandas, as_polars, as_records, as_spark

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TIME = 1_767_225_600_000
OTHERS = [
    ("__connect.errors.topic", b"elsewhere"),
    ("kafka_dlt-original-topic", b"payments"),
    ("kafka_dlt-original-offset", b"\x00" * 8),
    ("dead-letter-topic", None),
    ("kpipe.origin", b'{"topic":"elsewhere","partition":0,"offset":0,"header_count":0}'),
    ("kpipe.redacted", b"true"),
    ("kpipe.source", b"elsewhere/0/0"),
    ("correlation-id", b"\xff"),
]
KEYS = [None, b"", b"\xff\x00", "größe".encode(), b"k" * 1_000_000]
HEADERS: list[Any] = [
    [],
    [("a", None)],
    [("a", b""), ("a", b"1"), ("a", None), ("A", b"\xff")],
    [("größe \N{GRINNING FACE}", b"x"), ("", b"empty name"), (" ", b"")],
    OTHERS,
]
VALUES = [None, b"", b"\x00", b"\xff\xfe", b" ", b"null", "größe".encode(), b'{"version":1}']
SENT = [
    {"key": key, "value": value, "headers": headers, "timestamp": TIME + n}
    for n, (key, value, headers) in enumerate(
        [
            *((key, b"v", []) for key in KEYS),
            *((key, None, []) for key in KEYS[:4]),
            *((b"k", value, []) for value in VALUES),
            *((b"k", b"v", headers) for headers in HEADERS),
            *((None, None, headers) for headers in HEADERS),
        ]
    )
]


def parts(record: Any) -> tuple[Any, ...]:
    """Key, value, headers and timestamp."""
    if isinstance(record, ConsumedRecord):
        return record.key, record.value, record.headers, record.timestamp_ms
    return record["key"], record["value"], tuple(record["headers"]), record["timestamp"]


def in_order(orders: DataFrame) -> DataFrame:
    return orders.orderBy("_kafka.offset")


def manager(orders: Orders, **how: Any) -> KafkaIOManager:
    """The IO manager without the headers that it adds."""
    connection = orders.manager.source.connection
    return KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(
            connection=connection,
            stamp_source=False,
            correlation_header=None,
            delivery=how.pop("delivery", "exactly_once"),
        ),
        dead_letter=KafkaDeadLetterDestination(connection=connection, create_topic=True, **how),
        spark=orders.manager.spark,
    )


@pytest.mark.parametrize(
    ("stage", "delivery"),
    [
        *((stage, "exactly_once") for stage in (as_spark, in_order, as_pandas, as_arrow, as_polars, as_records)),
        *((stage, "at_least_once") for stage in (as_spark, as_records)),
    ],
)
def test_what_is_sent_arrives(make_orders: Callable[..., Orders], stage: Callable[..., Any], delivery: str) -> None:
    orders = make_orders(config={"retention.ms": "-1"}, target={"config": {"retention.ms": "-1"}})
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=RawCodec(), partitions=1, name="orders")
    orders.send(*SENT)
    topic = KafkaTopic(orders.target, value_codec=RawCodec(), timestamp_column="_kafka.timestamp")
    orders.run(orders.asset(stage, topic=topic), manager=manager(orders, delivery=delivery))
    assert [parts(record) for record in orders.outputs()] == [parts(record) for record in SENT]


@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_what_is_dead_lettered_comes_back(make_orders: Callable[..., Orders], form: str) -> None:
    orders = make_orders(config={"retention.ms": "-1"})
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec("id INT"), partitions=1, name="orders")
    orders.send(*SENT)
    orders.run(orders.asset(topic=KafkaTopic(orders.target)), manager=manager(orders, form=form))
    bad = [parts(record) for record in SENT if record["value"] not in (None, b'{"version":1}')]
    assert len(orders.letters()) == len(bad)
    settings = ConnectionSettings(orders.manager.source.connection.bootstrap_servers)
    result = redrive(settings, RedriveOptions(f"{orders.source}.dlq"))
    assert (result.total("sent"), result.kept) == (len(bad), [])
    orders._await_markers(orders.source)
    redriven = [parts(record) for record in orders.consume(orders.source)[len(SENT) :]]
    assert [(k, v, h[:-1], t) for k, v, h, t in redriven] == bad
    assert {h[-1] for _, _, h, _ in redriven} == {("kpipe.redrive.attempts", b"1")}

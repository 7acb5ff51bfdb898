"""Watermarks as the brokers give them, asked in both ways."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, TopicPartition

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.dead_letters.read.filters import make_filter
from kpipe_platform.errors import ConfigError, TopicNotFoundError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import Partition, Watermarks, parse_start, read_watermarks, watermarks_around
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

pytestmark = pytest.mark.broker


@pytest.fixture
def clients(kafka_broker: EmbeddedBroker) -> Iterator[Clients]:
    with Clients(ConnectionSettings(kafka_broker.bootstrap_servers)) as made:
        yield made


def test_a_consumer_finds_the_same_watermarks_as_the_admin_client(
    clients: Clients, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("orders", partitions=3)
    produce(topic, [{"value": b"x", "partition": 0} for _ in range(5)])
    cut = TopicPartition(topic, 0, 3)
    clients.admin().delete_records([cut])[cut].result()
    open_ended = Producer({**clients.settings.for_librdkafka(), "transactional.id": uuid.uuid4().hex})
    open_ended.init_transactions(30)
    open_ended.begin_transaction()
    open_ended.produce(topic, b"y", partition=1)
    assert open_ended.flush(30) == 0
    places: list[Partition] = [(topic, number) for number in (2, 0, 1)]

    expected = {
        "read_committed": [Watermarks(0, 0), Watermarks(3, 5), Watermarks(0, 0)],
        "read_uncommitted": [Watermarks(0, 0), Watermarks(3, 5), Watermarks(0, 1)],
    }
    try:
        for isolation, watermarks in expected.items():
            found, before = watermarks_around(clients, "kpipe.enriched", places, isolation, lambda: "answer")
            assert before == "answer"
            assert list(found.items()) == list(zip(places, watermarks, strict=True))
            assert read_watermarks(clients, places, isolation) == found
    finally:
        open_ended.abort_transaction(30)


def test_the_ends_are_read_behind_the_other_question(
    clients: Clients, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("orders")
    watermarks, _ = watermarks_around(
        clients, "kpipe.enriched", [(topic, 0)], "read_committed", lambda: produce(topic, [b"x"])
    )
    assert watermarks == {(topic, 0): Watermarks(0, 1)}


def test_what_the_other_question_raises_is_raised(clients: Clients, kafka_topic: TopicFactory) -> None:
    def fail() -> None:
        raise TopicNotFoundError("no such topic")

    with pytest.raises(TopicNotFoundError, match="no such topic"):
        watermarks_around(clients, "kpipe.enriched", [(kafka_topic("orders"), 0)], "read_committed", fail)
    # The log starts have come back, so the consumer may be closed.
    clients.close()


JANUARY_31_MS = 1_769_817_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-31", JANUARY_31_MS),
        ("2026-01-31T00:00:00Z", JANUARY_31_MS),
        ("2026-01-31 01:30:00.001+01:30", JANUARY_31_MS + 1),
        ("1769817600000", JANUARY_31_MS),
        ("1970-01-01", 0),
        *[(text, None) for text in ("20260131", "2026", "2026-01", "20260131T000000Z", "1769817600", "0", "-1")],
        *[(text, None) for text in ("1969-12-31T23:59:59.999Z", "\u0661769817600000", "nonsense", "")],
    ],
)
def test_a_time_is_read_alike_wherever_one_is_given(text: str, ms: int | None) -> None:
    connection = KafkaConnection(bootstrap_servers="localhost:1")
    readers = [
        parse_start,
        lambda text: KafkaSource(connection=connection, start=text).policy("g").start,
        lambda text: make_filter(since=text).since_ms,
        lambda text: make_filter(until=text).until_ms,
    ]
    for read in readers:
        if ms is not None:
            assert read(text) == ms
        else:
            with pytest.raises(ConfigError, match="2026-01-31T06:00:00Z or 1769839200000"):
                read(text)

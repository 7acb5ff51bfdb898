import threading
import time
import uuid
from typing import Any, Literal

import pytest
from confluent_kafka import Producer

from kpipe_platform.errors import (
    BrokerUnavailableError,
    ConfigError,
    DeliveryError,
    TopicNotFoundError,
)
from kpipe_platform.jvm.ports import LOOPBACK, free_port
from kpipe_platform.testing import records
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform.testing.topics import create_topic, delete_topic, log_ranges

pytestmark = pytest.mark.broker


def test_records_come_back_as_they_were_written(kafka_topic: TopicFactory, produce: Produce, consume: Consume) -> None:
    topic = kafka_topic("flights", partitions=2, config={"retention.ms": "-1"})
    records = [
        {"partition": 1, "key": b"k", "value": b"v", "timestamp": 1_000},
        {"partition": 1, "headers": [("h", b"1"), ("h", b"2"), ("none", None)], "value": {"a": 1}},
        {"partition": 0, "key": "tombstone"},
    ]
    assert produce(topic, records) == 3
    found = consume(topic)
    assert [(each.partition, each.offset, each.key, each.value) for each in found] == [
        (0, 0, b"tombstone", None),
        (1, 0, b"k", b"v"),
        (1, 1, None, b'{"a":1}'),
    ]
    assert found[1].timestamp_ms == 1_000
    assert found[2].headers == (("h", b"1"), ("h", b"2"), ("none", None))
    assert found[2].topic == topic


def test_an_empty_topic_is_read_at_once(kafka_topic: TopicFactory, consume: Consume) -> None:
    assert consume(kafka_topic(partitions=3), deadline_s=10) == []


def test_committed_reads_pass_over_aborted_records_and_markers_at_the_end(
    kafka_topic: TopicFactory, produce: Produce, consume: Consume, kafka_broker: EmbeddedBroker
) -> None:
    topic = kafka_topic()
    produce(topic, [b"1", b"2"], transaction="commit")
    produce(topic, [b"no"] * 3, transaction="abort")
    assert [each.value for each in consume(topic)] == [b"1", b"2"]
    assert len(consume(topic, isolation="read_uncommitted")) == 5
    # Two markers stand in the log beside five records.
    assert log_ranges(kafka_broker.bootstrap_servers, topic) == {0: (0, 7)}


def test_an_open_transaction_ends_committed_reads_at_the_last_stable_offset(
    kafka_topic: TopicFactory, produce: Produce, consume: Consume, kafka_broker: EmbeddedBroker
) -> None:
    topic = kafka_topic()
    produce(topic, [b"1"])
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    try:
        assert [each.value for each in consume(topic, settle_s=0)] == [b"1"]
        assert len(consume(topic, isolation="read_uncommitted")) == 2
        assert log_ranges(kafka_broker.bootstrap_servers, topic) == {0: (0, 1)}
    finally:
        producer.abort_transaction(30)


def test_reading_ends_though_records_keep_coming(kafka_topic: TopicFactory, produce: Produce, consume: Consume) -> None:
    topic = kafka_topic()
    produce(topic, [b"x"] * 1000)
    ended = threading.Event()

    def keep_writing() -> None:
        while not ended.is_set():
            produce(topic, [b"y"] * 100)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        assert len(consume(topic)) >= 1000
    finally:
        ended.set()
        writer.join()


def test_a_refused_record_is_an_error_and_ends_its_transaction(
    kafka_topic: TopicFactory, produce: Produce, consume: Consume
) -> None:
    topic = kafka_topic(config={"max.message.bytes": "1000"})
    with pytest.raises(DeliveryError, match="of 2 records"):
        produce(topic, [b"small", b"x" * 2000])
    with pytest.raises(DeliveryError):
        produce(topic, [b"x" * 2000], transaction="commit")
    produce(topic, [b"after"])
    assert consume(topic)[-1].value == b"after"


@pytest.mark.parametrize(
    ("given", "how", "error", "match"),
    [
        ([b"1"], {"transaction": "comit"}, ConfigError, "'comit'"),
        ("hello", {}, TypeError, "not a single str: write"),
        (b"hello", {}, TypeError, "not a single bytes: write"),
        ({"value": b"1"}, {}, TypeError, "not a single dict: write"),
    ],
)
def test_what_would_be_written_otherwise_than_meant_is_refused(
    kafka_topic: TopicFactory,
    produce: Produce,
    consume: Consume,
    given: Any,
    how: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    topic = kafka_topic()
    with pytest.raises(error, match=match):
        produce(topic, given, **how)
    assert consume(topic, isolation="read_uncommitted") == []


@pytest.mark.parametrize("transaction", [None, "commit"])
def test_a_topic_that_does_not_exist_is_named_soon(
    kafka_broker: EmbeddedBroker, produce: Produce, transaction: Literal["commit"] | None
) -> None:
    name = f"missing-{uuid.uuid4().hex}"
    began = time.monotonic()
    with pytest.raises(TopicNotFoundError, match=name):
        produce(name, [b"1"], transaction=transaction)
    assert time.monotonic() - began < 20


def test_topics(kafka_broker: EmbeddedBroker, consume: Consume) -> None:
    name = create_topic(kafka_broker.bootstrap_servers, f"here-{uuid.uuid4().hex}", partitions=4)
    assert len(log_ranges(kafka_broker.bootstrap_servers, name)) == 4
    with pytest.raises(ConfigError, match="already exists"):
        create_topic(kafka_broker.bootstrap_servers, name)
    delete_topic(kafka_broker.bootstrap_servers, name)
    delete_topic(kafka_broker.bootstrap_servers, name)
    with pytest.raises(TopicNotFoundError, match=name):
        consume(name)


def test_a_read_that_does_not_end_says_what_is_missing(
    kafka_topic: TopicFactory, produce: Produce, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_topic()
    produce(topic, [b"1"])
    monkeypatch.setattr(records, "log_ranges", lambda *_, **__: {0: (0, 9)})
    with pytest.raises(BrokerUnavailableError, match=r"not reached, by partition: \{0: 9\}"):
        consume(topic, deadline_s=0.3)


def test_brokers_that_do_not_answer() -> None:
    with pytest.raises(BrokerUnavailableError, match="nowhere"):
        log_ranges(f"{LOOPBACK}:{free_port()}", "nowhere", deadline_s=0.2)

"""The reader of offset ranges and single records: what it passes over, where it ends, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from kpipe_platform.errors import BrokerUnavailableError, TransientError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.read.fetch import RecordFetcher
from kpipe_platform.kafka.read.reader import RecordReader, read_range, topic_partition_of
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

pytestmark = pytest.mark.broker

MakeReader = Callable[..., RecordReader]


@pytest.fixture
def settings(kafka_broker: EmbeddedBroker) -> ConnectionSettings:
    return ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)


@pytest.fixture
def make_reader(settings: ConnectionSettings) -> Iterator[MakeReader]:
    made: list[RecordReader] = []

    def make(**options: Any) -> RecordReader:
        made.append(RecordReader(settings, "readers", "read_committed", **options))
        return made[-1]

    yield make
    for reader in made:
        reader.close()


def deleted_before(settings: ConnectionSettings, topic: str, offset: int) -> None:
    with Clients(settings) as clients:
        for future in clients.admin().delete_records([TopicPartition(topic, 0, offset)]).values():
            future.result(timeout=30)


def test_each_range_is_read_in_order_up_to_its_end_and_no_further(
    make_reader: MakeReader, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("ranges", partitions=3)
    produce(topic, [{"value": b"x", "partition": number} for number in range(3) for _ in range(10)])
    wanted = [OffsetRange(topic, 0, 2, 5), OffsetRange(topic, 1, 0, 10), OffsetRange(topic, 2, 4, 4)]
    reader = make_reader()
    for _ in range(2):
        found = [(record.partition, record.offset) for record in reader.read(wanted)]
        assert sorted(found) == [*((0, n) for n in range(2, 5)), *((1, n) for n in range(10))]
        assert [n for p, n in found if p == 1] == list(range(10))


def test_a_partition_that_is_finished_is_read_no_more(
    make_reader: MakeReader, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("finished", partitions=2)
    produce(topic, [{"value": b"x", "partition": number} for number in (0, 1) for _ in range(5)])
    reader, found = make_reader(), []
    for record in reader.read([OffsetRange(topic, number, 0, 5) for number in (0, 1)]):
        found.append((record.partition, record.offset))
        if record.partition == 0:
            reader.finish(topic_partition_of(record))
    assert sorted(found) == [(0, 0), *((1, n) for n in range(5))]


def test_markers_and_aborted_records_are_passed_over_also_at_the_end(
    settings: ConnectionSettings, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("marked")
    produce(topic, [b"1", b"2"], transaction="commit")
    produce(topic, [b"3"], transaction="abort")
    assert [r.value for r in read_range(settings, "readers", OffsetRange(topic, 0, 0, 5))] == [b"1", b"2"]
    assert list(read_range(settings, "readers", OffsetRange(topic, 0, 3, 5))) == []
    uncommitted = read_range(settings, "readers", OffsetRange(topic, 0, 0, 5), "read_uncommitted")
    assert [r.value for r in uncommitted] == [b"1", b"2", b"3"]


def test_a_further_read_ends_the_one_before_it(
    make_reader: MakeReader, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("again")
    produce(topic, [b"0", b"1", b"2"])
    reader = make_reader()
    first = reader.read([OffsetRange(topic, 0, 0, 3)])
    assert next(first).offset == 0
    second = reader.read([OffsetRange(topic, 0, 1, 3)])
    assert next(second).offset == 1
    first.close()  # type: ignore[attr-defined]
    assert next(second).offset == 2


def test_a_start_that_retention_deleted_is_an_error_of_a_range_but_not_of_samples(
    settings: ConnectionSettings, make_reader: MakeReader, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("deleted")
    produce(topic, [b"0", b"1", b"2", b"3"])
    deleted_before(settings, topic, 2)
    with pytest.raises(TransientError, match="retention deleted records"):
        list(make_reader().read([OffsetRange(topic, 0, 0, 4)]))
    assert [r.offset for r in make_reader(samples=True).read([OffsetRange(topic, 0, 0, 4)])] == [2, 3]
    # All of the range is gone.
    assert list(make_reader(samples=True).read([OffsetRange(topic, 0, 0, 2)])) == []


def test_what_is_missing_of_a_range_is_waited_for_until_the_deadline(
    kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("short")
    produce(topic, [b"0"])
    hasty = ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers, request_timeout_s=3)
    with pytest.raises(BrokerUnavailableError, match=f"cannot read {topic}/0"):
        list(read_range(hasty, "readers", OffsetRange(topic, 0, 0, 2)))
    with RecordReader(hasty, "readers", "read_committed", samples=True) as reader:
        assert [r.offset for r in reader.read([OffsetRange(topic, 0, 0, 2)])] == [0]


def test_until_ends_the_read_without_an_error(make_reader: MakeReader, kafka_topic: TopicFactory) -> None:
    topic = kafka_topic("empty")
    reader = make_reader(clock=lambda: 5.0)
    assert list(reader.read([OffsetRange(topic, 0, 0, 1)], until=4.0)) == []


def test_single_records_forward_and_back_and_one_that_is_gone(
    settings: ConnectionSettings, kafka_topic: TopicFactory, produce: Produce
) -> None:
    topic = kafka_topic("singles")
    produce(topic, [b"0", b"1"], transaction="commit")
    produce(topic, [b"3", b"4"])
    with RecordFetcher(settings, "readers", "read_committed") as fetcher:
        assert [fetcher.get(topic, 0, offset).value for offset in (0, 3, 1, 4, 0)] == [b"0", b"3", b"1", b"4", b"0"]
        # At offset 2 is the marker of the transaction.
        with pytest.raises(TransientError, match=f"{topic}/0 offset 2: the record no longer exists"):
            fetcher.get(topic, 0, 2)
        assert fetcher.get(topic, 0, 3).value == b"3"

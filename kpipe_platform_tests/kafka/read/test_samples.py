"""The timestamps of the first and the last record of each range."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.read.samples import TimestampReader
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

pytestmark = pytest.mark.broker


@pytest.fixture
def reader(kafka_broker: EmbeddedBroker) -> Iterator[TimestampReader]:
    settings = ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)
    with TimestampReader(settings, "stamps", "read_committed", deadline_s=30) as made:
        yield made


def test_of_several_ranges_and_slices(reader: TimestampReader, kafka_topic: TopicFactory, produce: Produce) -> None:
    topic = kafka_topic("stamped", partitions=2)
    produce(topic, [{"value": b"x", "partition": 0, "timestamp": 1_000 + n} for n in range(100)])
    produce(topic, [{"value": b"x", "partition": 1, "timestamp": 5_000}])
    whole = [OffsetRange(topic, 0, 0, 100), OffsetRange(topic, 1, 0, 1)]
    assert sorted(reader.bounds(whole)) == [1_000, 1_099, 5_000]
    assert sorted(reader.bounds([OffsetRange(topic, 0, 10, 50), OffsetRange(topic, 1, 1, 1)])) == [1_010, 1_049]
    assert reader.bounds([OffsetRange(topic, 0, 7, 8)]) == [1_007]
    assert reader.bounds([]) == []


def test_markers_are_no_records(reader: TimestampReader, kafka_topic: TopicFactory, produce: Produce) -> None:
    topic = kafka_topic("marked")
    produce(topic, [{"value": b"x", "timestamp": 1}, {"value": b"x", "timestamp": 2}], transaction="commit")
    produce(topic, [{"value": b"x", "timestamp": 3}], transaction="abort")
    assert reader.bounds([OffsetRange(topic, 0, 0, 5)]) == [1, 2]
    assert reader.bounds([OffsetRange(topic, 0, 3, 5)]) == []

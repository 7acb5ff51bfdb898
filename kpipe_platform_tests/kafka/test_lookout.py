"""Where logs end, asked for by many and told by one call; and the timestamps of a slice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.stamps import StampReader
from kpipe_platform.slices.plan import log_ends as lookout
from kpipe_platform.slices.plan.log_ends import LOOK_EVERY_S, Lookout
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

pytestmark = pytest.mark.broker


@pytest.fixture
def clients(kafka_broker: EmbeddedBroker) -> Iterator[Clients]:
    with Clients(ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)) as made:
        yield made


class Clock:
    """Moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each call asked for."""
    asked: list[int] = []
    watermarks = lookout.watermarks

    def counted(clients: Clients, places: Any, isolation: str) -> Any:
        asked.append(len(places))
        return watermarks(clients, places, isolation)

    monkeypatch.setattr(lookout, "watermarks", counted)
    return asked


def test_one_call_tells_all_threads(
    clients: Clients, kafka_topic: TopicFactory, produce: Produce, calls: list[int]
) -> None:
    topic, clock = kafka_topic("many", partitions=8), Clock()
    look = Lookout(clients, "read_committed", clock=clock)
    places = [(topic, number) for number in range(8)]
    for place in places:
        assert look.ends([place]) == {place: 0}
    assert calls == [1, 2, 3, 4, 5, 6, 7, 8]
    produce(topic, [{"value": b"1", "partition": number} for number in range(8)])
    assert look.ends(places[:1]) == {places[0]: 0}
    clock.now += LOOK_EVERY_S
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda place: look.ends([place])[place], places))
    assert found == [1] * 8
    assert calls[8:] == [8]
    look.leave(places[1:])
    clock.now += LOOK_EVERY_S
    look.ends(places[:1])
    assert calls[9:] == [1]


def test_an_open_transaction_is_not_new(clients: Clients, kafka_topic: TopicFactory, produce: Produce) -> None:
    topic = kafka_topic("aborted")
    committed, uncommitted = Lookout(clients, "read_committed"), Lookout(clients, "read_uncommitted")
    produce(topic, [b"1", b"2"], transaction="abort")
    # The marker moves the end as well.
    assert committed.ends([(topic, 0)]) == uncommitted.ends([(topic, 0)]) == {(topic, 0): 3}


def test_a_topic_that_is_gone(clients: Clients) -> None:
    with pytest.raises(KpipeError, match=r"no\.such\.topic"):
        Lookout(clients, "read_committed").ends([("no.such.topic", 0)])


class TestStamps:
    """First and last record of each range."""

    @pytest.fixture
    def reader(self, kafka_broker: EmbeddedBroker) -> Iterator[StampReader]:
        settings = ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)
        with StampReader(settings, "stamps", "read_committed", deadline_s=30) as made:
            yield made

    def test_of_several_ranges_and_slices(
        self, reader: StampReader, kafka_topic: TopicFactory, produce: Produce
    ) -> None:
        topic = kafka_topic("stamped", partitions=2)
        produce(topic, [{"value": b"x", "partition": 0, "timestamp": 1_000 + n} for n in range(100)])
        produce(topic, [{"value": b"x", "partition": 1, "timestamp": 5_000}])
        whole = [OffsetRange(topic, 0, 0, 100), OffsetRange(topic, 1, 0, 1)]
        assert sorted(reader.bounds(whole)) == [1_000, 1_099, 5_000]
        assert sorted(reader.bounds([OffsetRange(topic, 0, 10, 50), OffsetRange(topic, 1, 1, 1)])) == [1_010, 1_049]
        assert reader.bounds([OffsetRange(topic, 0, 7, 8)]) == [1_007]
        assert reader.bounds([]) == []

    def test_markers_are_no_records(self, reader: StampReader, kafka_topic: TopicFactory, produce: Produce) -> None:
        topic = kafka_topic("marked")
        produce(topic, [{"value": b"x", "timestamp": 1}, {"value": b"x", "timestamp": 2}], transaction="commit")
        produce(topic, [{"value": b"x", "timestamp": 3}], transaction="abort")
        assert reader.bounds([OffsetRange(topic, 0, 0, 5)]) == [1, 2]
        assert reader.bounds([OffsetRange(topic, 0, 3, 5)]) == []

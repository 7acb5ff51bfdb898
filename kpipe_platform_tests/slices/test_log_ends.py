"""Where logs end, in one call for all that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.slices.plan import log_ends
from kpipe_platform.slices.plan.log_ends import LogEndPoller, LogEnds
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
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


def test_one_call_for_all_partitions(
    clients: Clients, kafka_topic: TopicFactory, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    read_watermarks = log_ends.read_watermarks

    def counted(clients: Clients, places: Any, isolation: str) -> Any:
        calls.append(len(places))
        return read_watermarks(clients, places, isolation)

    monkeypatch.setattr(log_ends, "read_watermarks", counted)
    topic = kafka_topic("many", partitions=8)
    poller = LogEndPoller(clients, "read_committed")
    places = [(topic, number) for number in range(8)]
    assert poller.poll(places) == LogEnds(dict.fromkeys(places, 0))
    produce(topic, [{"value": b"1", "partition": number} for number in range(8)])
    assert poller.poll([*places, places[0]]) == LogEnds(dict.fromkeys(places, 1))
    assert poller.poll(places[:1]) == LogEnds({places[0]: 1})
    assert poller.poll([]) == LogEnds({})
    assert calls == [8, 8, 1]


def test_the_topics_are_asked_for_every_few_seconds(clients: Clients, kafka_topic: TopicFactory) -> None:
    topic, clock = kafka_topic("described", partitions=2), Clock()
    poller = LogEndPoller(clients, "read_committed", clock=clock)
    assert poller.poll([(topic, 0)]).topics is None
    clock.now += 5
    found = poller.poll([(topic, 0)]).topics
    assert found is not None
    assert found[topic].partitions == 2
    assert poller.poll([(topic, 0)]).topics is None


def test_an_open_transaction_is_not_new(clients: Clients, kafka_topic: TopicFactory, produce: Produce) -> None:
    topic = kafka_topic("aborted")
    committed, uncommitted = LogEndPoller(clients, "read_committed"), LogEndPoller(clients, "read_uncommitted")
    produce(topic, [b"1", b"2"], transaction="abort")
    # The marker moves the end as well.
    assert committed.poll([(topic, 0)]).ends == uncommitted.poll([(topic, 0)]).ends == {(topic, 0): 3}


def test_a_topic_that_is_gone_is_a_plans_matter(clients: Clients) -> None:
    assert LogEndPoller(clients, "read_committed").poll([("no.such.topic", 0)]) == LogEnds(None)

"""Topics of the flights platform on the suite's broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpipe_platform.demo.topics import TOPICS
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.topics import delete_topic


@pytest.fixture
def connection(kafka_broker: EmbeddedBroker) -> Iterator[ConnectionSettings]:
    """A connection to a broker that has none of the platform's topics, whose names are fixed."""
    _forget_topics(kafka_broker)
    yield ConnectionSettings(bootstrap_servers=kafka_broker.bootstrap_servers)
    _forget_topics(kafka_broker)


def _forget_topics(broker: EmbeddedBroker) -> None:
    for name in TOPICS:
        delete_topic(broker.bootstrap_servers, name)

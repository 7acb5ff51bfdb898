"""Three brokers of which one may be away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.topics import create_topic

from .runner import DEAD_LETTERS, PARTITIONS, SOURCE, TARGET

_REPLICATED = {
    "min.insync.replicas": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture
def brokers() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=3, settings=_REPLICATED) as cluster:
        for name, partitions in ((SOURCE, PARTITIONS), (TARGET, 2), (DEAD_LETTERS, 1)):
            create_topic(cluster.bootstrap_servers, name, partitions=partitions, replication=3)
        yield cluster

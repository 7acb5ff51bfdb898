"""Committed offsets of a group, as the brokers give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpipe_platform.kafka.admin.groups import committed_offsets
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.topics import create_topic

pytestmark = pytest.mark.broker


def test_the_first_question_to_a_new_cluster(tmp_path: Path) -> None:
    """Its groups have no coordinator yet, and the admin client's answer to that is to crash the process."""
    with EmbeddedBroker(data_dir=tmp_path / "broker") as broker:
        create_topic(broker.bootstrap_servers, "orders", partitions=3)
        clients = Clients(ConnectionSettings(bootstrap_servers=broker.bootstrap_servers))
        try:
            wanted = [("orders", number) for number in range(3)]
            assert committed_offsets(clients, "kpipe.enriched", wanted) == dict.fromkeys(wanted)
        finally:
            clients.close()

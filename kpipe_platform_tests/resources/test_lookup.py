"""Sensors and checks find the source that their asset is read with."""

from __future__ import annotations

from types import SimpleNamespace

import dagster as dg
import pytest

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.lookup import source_of

SOURCE = KafkaSource(connection=KafkaConnection(bootstrap_servers="localhost:1"), group_prefix="shop")


def test_a_source_is_a_resource_of_its_own_or_that_of_an_io_manager() -> None:
    resources = SimpleNamespace(kafka_source=SOURCE, kafka_io_manager=SimpleNamespace(source=SOURCE))
    assert source_of(resources, "kafka_source", "a sensor") is SOURCE
    assert source_of(resources, "kafka_io_manager", "a sensor") is SOURCE


def test_a_source_without_a_connection_is_refused() -> None:
    with pytest.raises(ConfigError, match="KafkaSource has no connection"):
        source_of(SimpleNamespace(kafka_source=KafkaSource()), "kafka_source", "a sensor")


def test_any_other_resource_is_refused() -> None:
    resources = SimpleNamespace(tables=dg.InMemoryIOManager())
    with pytest.raises(
        ConfigError,
        match="a sensor needs a KafkaSource or a KafkaIOManager, but resource 'tables' is InMemoryIOManager",
    ):
        source_of(resources, "tables", "a sensor")

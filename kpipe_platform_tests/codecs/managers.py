"""The IO manager of the tests, with a schema registry."""

from __future__ import annotations

from typing import Any

from kpipe_platform import (
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    SchemaRegistry,
)


def with_registry(manager: KafkaIOManager, registry: SchemaRegistry, **source: Any) -> KafkaIOManager:
    """Return an IO manager for the same brokers, groups and Spark session, whose connection has a registry."""
    servers = manager.source.connection.bootstrap_servers
    connection = KafkaConnection(bootstrap_servers=servers, schema_registry=registry)
    return KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix=manager.source.group_prefix, **source),
        destination=KafkaDestination(connection=connection),
        dead_letter=KafkaDeadLetterDestination(connection=connection, create_topic=True),
        spark=manager.spark,
    )

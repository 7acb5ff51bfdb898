"""The Kafka source of a resource: a KafkaSource, or that of an IO manager. Sensors, checks and observations use it."""

from __future__ import annotations

from typing import Any

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.source import KafkaSource


def source_of(resources: Any, key: str, who: str) -> KafkaSource:
    """Return the source under a resource key.

    Args:
        resources: The resources of a Dagster context.
        key: Resource key of a KafkaSource, or of an IO manager that has one as its ``source``.
        who: What needs the source, for the message.

    Raises:
        ConfigError: The resource neither is nor has a KafkaSource, or the source has no connection.
    """
    resource = getattr(resources, key)
    source = resource if isinstance(resource, KafkaSource) else getattr(resource, "source", None)
    if not isinstance(source, KafkaSource):
        msg = f"resource {key!r} is {type(resource).__name__}, and {who} needs a KafkaSource or a KafkaIOManager"
        raise ConfigError(msg, fix=f'Definitions(resources={{"{key}": KafkaIOManager(...)}}), or the key of another')
    source.connection_settings  # noqa: B018  # refuses a source without a connection before any work
    return source

"""The Kafka source of a resource: a KafkaSource, or that of an IO manager. Sensors, checks and observations use it."""

from __future__ import annotations

from typing import Any

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.source import KafkaSource


def source_of(
    resources: Any,
    key: str,
    who: str,
    *,
    wanted: str = "a KafkaSource or a KafkaIOManager",
    argument: str = "resource_key=...",
) -> KafkaSource:
    """Return the source under a resource key.

    Args:
        resources: The resources of a Dagster context.
        key: Resource key of a KafkaSource, or of an IO manager that has one as its ``source``.
        who: What needs the source, for the message.
        wanted: The resources that are accepted, for the message.
        argument: The argument that names the key, for the message.

    Raises:
        ConfigError: The resource neither is nor has a KafkaSource, or the source has no connection.
    """
    resource = getattr(resources, key)
    source = resource if isinstance(resource, KafkaSource) else getattr(resource, "source", None)
    if not isinstance(source, KafkaSource):
        msg = f"{who} needs {wanted}, but resource {key!r} is {type(resource).__name__}"
        raise ConfigError(msg, fix=f'Definitions(resources={{"{key}": KafkaIOManager(...)}}), or change {argument}')
    source.connection_settings  # noqa: B018  # raises if the source has no connection, before any work starts
    return source

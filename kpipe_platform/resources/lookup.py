"""The Kafka source that a sensor or a check uses: a resource of the definitions, or the one of an IO manager."""

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
        ConfigError: The resource neither is nor has a KafkaSource.
    """
    resource = getattr(resources, key)
    source = resource if isinstance(resource, KafkaSource) else getattr(resource, "source", None)
    if not isinstance(source, KafkaSource):
        msg = f"resource {key!r} is {type(resource).__name__}, and {who} needs a KafkaSource or a KafkaIOManager"
        raise ConfigError(msg, fix=f'Definitions(resources={{"{key}": KafkaSource(...)}}), or resource_key= of one')
    return source

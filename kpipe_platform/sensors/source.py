"""The Kafka source of a sensor, from the IO manager of its asset."""

from __future__ import annotations

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.source import KafkaSource


def source_of(context: dg.SensorEvaluationContext, io_manager_key: str) -> KafkaSource:
    """Return the source of a KafkaIOManager.

    Args:
        context: The tick's context.
        io_manager_key: Resource key of the IO manager.

    Raises:
        ConfigError: The resource is not a KafkaIOManager.
    """
    manager = getattr(context.resources, io_manager_key)
    source = getattr(manager, "source", None)
    if not isinstance(source, KafkaSource):
        msg = f"resource {io_manager_key!r} is {type(manager).__name__}, and a sensor on offsets needs a KafkaIOManager"
        raise ConfigError(msg, fix=f'Definitions(resources={{"{io_manager_key}": KafkaIOManager(...)}})')
    return source

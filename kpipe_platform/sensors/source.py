"""The source that a sensor asks, from the IO manager that its asset is loaded by."""

from __future__ import annotations

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources.source import KafkaSource


def source_of(context: dg.SensorEvaluationContext, io_manager_key: str) -> KafkaSource:
    """The source of a KafkaIOManager.

    Raises:
        ConfigError: The resource is of another kind.
    """
    manager = getattr(context.resources, io_manager_key)
    source = getattr(manager, "source", None)
    if not isinstance(source, KafkaSource):
        msg = f"resource {io_manager_key!r} is {type(manager).__name__}, and a sensor on offsets needs a KafkaIOManager"
        raise ConfigError(msg, fix=f'Definitions(resources={{"{io_manager_key}": KafkaIOManager(...)}})')
    return source

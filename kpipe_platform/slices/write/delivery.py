"""Delivery: choose once per run how its slices are written."""

from __future__ import annotations

from kpipe_platform.errors import ConfigError
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.target import SliceTarget
from kpipe_platform.slices.values import Store
from kpipe_platform.slices.write.deliveries import AtLeastOnce, Delivery, ExactlyOnce, OtherStore


def open_delivery(settings: SliceSettings, target: SliceTarget, store: Store | None = None) -> Delivery:
    """Create the delivery of a run.

    Args:
        settings: The run's settings.
        target: The topics for outputs and dead letters.
        store: Stores outputs outside Kafka; None: outputs go to Kafka.

    Raises:
        ConfigError: There is no destination.
    """
    if store is not None:
        return OtherStore(settings, target, store)
    if target.destination is None or settings.destination is None:
        msg = f"asset {settings.run.asset} has no Kafka destination"
        raise ConfigError(msg, fix="set it: KafkaIOManager(destination=KafkaDestination(...), ...)")
    if settings.destination.delivery == "at_least_once":
        return AtLeastOnce(settings, target, target.destination)
    return ExactlyOnce(settings, target, target.destination, settings.parallelism.writers_per_partition)

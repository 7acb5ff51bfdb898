"""Backpressure: a sensor requests no runs while a downstream asset cannot keep up."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.policies.bounds import is_count


@dataclass(frozen=True)
class Backpressure:
    """Request no runs while a downstream asset is too far behind.

    Args:
        asset: An asset that reads what the sensor's asset writes, with the same KafkaSource.
        max_lag: Maximum lag of that asset, in offsets over all partitions of the topics that it reads.
    """

    asset: dg.AssetKey
    max_lag: int

    @classmethod
    def of(cls, asset: dg.AssetsDefinition | dg.AssetKey | str, max_lag: int) -> Backpressure:
        """Create it from an asset or an asset key.

        Raises:
            ConfigError: ``max_lag`` is not a whole number of 0 or more.
        """
        if not is_count(max_lag, 0):
            msg = f"kafka_offset_sensor: the max_lag of backpressure is {max_lag}, not a whole number of 0 or more"
            raise ConfigError(msg, fix="set max_lag to 0 or more offsets")
        key = leading_key(asset) if isinstance(asset, dg.AssetsDefinition) else dg.AssetKey.from_coercible(asset)
        return cls(key, max_lag)

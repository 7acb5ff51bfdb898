"""Holding a sensor back while an asset behind it cannot keep up."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.policies.bounds import is_count


@dataclass(frozen=True)
class Backpressure:
    """Nothing is asked for while an asset downstream is too far behind.

    Args:
        asset: An asset that reads what the sensor's target writes, with the same IO manager.
        max_lag: Offsets that may wait for it, over all partitions of the topics that it reads.
    """

    asset: dg.AssetKey
    max_lag: int

    @classmethod
    def of(cls, asset: dg.AssetsDefinition | dg.AssetKey | str, max_lag: int) -> Backpressure:
        """From an asset or its key.

        Raises:
            ConfigError: The bound is not a whole number of 0 or more.
        """
        if not is_count(max_lag, 0):
            msg = f"backpressure of {max_lag} records"
            raise ConfigError(msg, fix="set max_lag to 0 or more")
        key = asset.key if isinstance(asset, dg.AssetsDefinition) else dg.AssetKey.from_coercible(asset)
        return cls(key, max_lag)

"""The Dagster concurrency pool of each Kafka asset. Dagster can limit it, and it identifies the asset's runs."""

from __future__ import annotations

import dagster as dg

__all__ = ["kafka_pool", "pools_of"]

_PREFIX = "kpipe."


def kafka_pool(asset_key: dg.AssetKey) -> str:
    """Return the pool of an asset: ``kpipe.`` and its key, joined by dots. It has no limit until one is set in Dagster.

    Args:
        asset_key: The asset.
    """
    return _PREFIX + ".".join("_".join(part.split()) for part in asset_key.path)


def pools_of(run: dg.DagsterRun) -> list[str]:
    """Return the pools of a run's Kafka assets, sorted.

    Args:
        run: The run, as Dagster recorded it.
    """
    pools = run.run_op_concurrency.all_pools if run.run_op_concurrency is not None else None
    return sorted(pool for pool in pools or () if pool.startswith(_PREFIX))

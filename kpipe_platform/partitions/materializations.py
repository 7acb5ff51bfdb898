"""What kpipe itself has materialized, as Dagster holds it.

Dagster's last materialization may be somebody else's: "Report materialization" in the UI, and the API behind it, add
one that says nothing of offsets. Whoever asks where an asset was left looks behind those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg

RANGES = "kpipe/ranges"
"""Metadata of a materialization: the offset ranges that it took, for the next plan."""

# Mostly the last one is kpipe's own.
_FIRST = 1
_FURTHER = 100


def own_materializations(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: str | None = None
) -> Iterator[dg.EventLogRecord]:
    """Records of the materializations that kpipe stored, the newest first; those of others are left out.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        partition: Dagster partition; None: any.
    """
    wanted = dg.AssetRecordsFilter(asset_key, asset_partitions=None if partition is None else [partition])
    found = instance.fetch_materializations(wanted, limit=_FIRST)
    while True:
        for record in found.records:
            materialization = record.asset_materialization
            if materialization is not None and RANGES in materialization.metadata:
                yield record
        if not found.has_more:
            return
        found = instance.fetch_materializations(wanted, limit=_FURTHER, cursor=found.cursor)


def last_materialization(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: str | None = None
) -> dg.AssetMaterialization | None:
    """The last materialization that kpipe stored; None where there is none."""
    record = next(own_materializations(instance, asset_key, partition), None)
    return None if record is None else record.asset_materialization


def ranges_of(materialization: dg.AssetMaterialization) -> list[dict[str, Any]]:
    """The offset ranges that a materialization took: topic, partition, start, end, topic_id."""
    stored = materialization.metadata.get(RANGES)
    ranges: Any = stored.value if stored is not None else []
    return list(ranges)

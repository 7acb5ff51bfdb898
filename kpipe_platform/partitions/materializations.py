"""Materializations that kpipe stored in Dagster.

Dagster's last materialization may have another origin: "Report materialization" in the UI and the API behind it add
materializations without offsets. The functions here skip those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg

from kpipe_platform.metadata_keys import RANGES

# Most of the time, the last materialization is kpipe's own.
_FIRST = 1
_FURTHER = 100


def own_materializations(
    instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: str | None = None
) -> Iterator[dg.EventLogRecord]:
    """Yield the records of the materializations that kpipe stored, the newest first.

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
    """Return the last materialization that kpipe stored; None if there is none."""
    record = next(own_materializations(instance, asset_key, partition), None)
    return None if record is None else record.asset_materialization


def ranges_of(materialization: dg.AssetMaterialization) -> list[dict[str, Any]]:
    """Return the offset ranges that a materialization processed: topic, partition, start, end, topic_id."""
    stored = materialization.metadata.get(RANGES)
    ranges: Any = stored.value if stored is not None else []
    return list(ranges)


def topics_of(materialization: dg.AssetMaterialization) -> tuple[str, ...]:
    """Return the topics whose offset ranges a materialization processed, each once."""
    return tuple(dict.fromkeys(item["topic"] for item in ranges_of(materialization)))

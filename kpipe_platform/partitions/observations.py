"""Partition events of runs as observations of their asset, if the asset enables them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.observability.events import PartitionEvent

# Maximum number of rows of a metadata table. Dagster stores the complete table with every event.
_TABLE_ROWS = 100
_COUNTS = {
    "read": keys.RECORDS_READ,
    "written": keys.RECORDS_WRITTEN,
    "dead_letters": keys.DEAD_LETTERS,
    "skipped": keys.RECORDS_SKIPPED,
}


def observations_of(
    events: Sequence[PartitionEvent], asset_key: dg.AssetKey, *, partitioned: bool
) -> list[dg.AssetObservation]:
    """Return one observation for each change of each Dagster partition.

    An asset that reads several topics has one Dagster partition for the same Kafka partition of each topic, and an
    unpartitioned asset has no Dagster partition. Events of the same kind for several Kafka partitions of one Dagster
    partition become one observation with a table.

    The observations have no data version. For a materializable asset, Dagster treats only a materialization as new
    data, so the observations do not make downstream assets stale and do not start runs.

    Args:
        events: The partition events.
        asset_key: The asset.
        partitioned: Whether the asset has Dagster partitions, one for each Kafka partition number.
    """
    together: dict[tuple[str, str | None], list[PartitionEvent]] = {}
    for event in events:
        key = str(event.partition) if partitioned and event.partition is not None else None
        together.setdefault((event.kind.value, key), []).append(event)
    return [_observation(found, asset_key, key) for (_, key), found in together.items()]


def _observation(events: list[PartitionEvent], asset_key: dg.AssetKey, key: str | None) -> dg.AssetObservation:
    first = events[0]
    metadata: dict[str, Any] = {keys.EVENT: first.kind.value, keys.TIME: dg.MetadataValue.timestamp(first.at_ms / 1000)}
    if len(events) == 1:
        metadata[keys.TOPIC] = first.topic
        if first.partition is not None:
            metadata[keys.PARTITION] = first.partition
        if first.start is not None and first.end is not None:
            metadata |= {
                keys.OFFSET_RANGE: f"[{first.start}, {first.end})",
                keys.START_OFFSET: first.start,
                keys.END_OFFSET: first.end,
            }
        metadata |= {_COUNTS[name]: count for name, count in first.counts.items()}
    else:
        metadata[keys.PARTITION_COUNT] = len(events)
        metadata[keys.BY_PARTITION] = dg.MetadataValue.table([_row(event) for event in events[:_TABLE_ROWS]])
    reasons = dict.fromkeys(event.reason for event in events if event.reason)
    if reasons:
        metadata[keys.REASON] = "\n".join(reasons)
    if first.run_id:
        metadata[keys.RUN] = dg.MetadataValue.dagster_run(first.run_id)
    metadata[keys.CONSUMER_GROUP] = first.group
    where = first.where if len(events) == 1 else f"{len(events)} partitions"
    return dg.AssetObservation(asset_key, partition=key, description=f"{first.kind.value}: {where}", metadata=metadata)


def _row(event: PartitionEvent) -> dg.TableRecord:
    numbers = {"start": event.start, "end": event.end, **event.counts}
    known = {name: value for name, value in numbers.items() if value is not None}
    return dg.TableRecord({"topic": event.topic, "partition": event.partition, **known})

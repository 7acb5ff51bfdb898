"""Unfinished runs of an asset: those that its sensor asked for, and all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster._core.events import AssetMaterializationPlannedData
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from kpipe_platform.kafka.offsets import Partition

GROUP = "kpipe/group"
"""Run tag: consumer group of the asset."""
RANGES = "kpipe/ranges"
"""Run tag: the offsets that the tick saw, ``{"orders": {"3": [100, 250]}}``. The run itself plans anew."""


def asked_ranges(tags: Mapping[str, str]) -> dict[Partition, tuple[int, int]]:
    """The offsets (start, end) that a run was asked for, by partition; none where no sensor wrote the tags."""
    try:
        data = json.loads(tags.get(RANGES) or "{}")
        return {
            (topic, int(number)): (int(start), int(end))
            for topic, numbers in data.items()
            for number, (start, end) in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def asked_for(instance: dg.DagsterInstance, group: str) -> dict[Partition, list[str]]:
    """Unfinished runs of an asset's sensor. A run that somebody started by hand has no such tags and is not among them.

    Args:
        instance: Dagster instance.
        group: Consumer group of the asset.

    Returns:
        Run ids by (topic, partition).
    """
    found: dict[Partition, list[str]] = {}
    for run in instance.get_runs(dg.RunsFilter(tags={GROUP: group}, statuses=NOT_FINISHED_STATUSES)):
        for place in asked_ranges(run.tags):
            found.setdefault(place, []).append(run.run_id)
    return found


@dataclass(frozen=True)
class RunInFlight:
    """A run that is not finished: queued, starting, at work, or being terminated.

    Args:
        run_id: Dagster run.
        keys: The Dagster partitions that it takes.
    """

    run_id: str
    keys: frozenset[str]


def runs_in_flight(instance: dg.DagsterInstance, asset_key: dg.AssetKey, keys: Sequence[str]) -> list[RunInFlight]:
    """The unfinished runs of an asset, whoever started them.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        keys: The asset's Dagster partitions in their order; empty for an unpartitioned asset.
    """
    found = []
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        # Empty where assets were materialised in a process, and where a run only checks some.
        if run.asset_selection:
            if asset_key not in run.asset_selection:
                continue
            taken = _keys_of(run.tags, keys)
        else:
            # A job, started whole: what it plans was recorded when it was made.
            planned = list(_planned(instance, run.run_id, asset_key))
            if not planned:
                continue
            named = frozenset(key for data in planned for key in _planned_keys(data))
            taken = named or _keys_of(run.tags, keys)
        found.append(RunInFlight(run.run_id, taken))
    return found


def _keys_of(tags: Mapping[str, str], keys: Sequence[str]) -> frozenset[str]:
    """The partitions that a run's tags name; all of them where they name none that is known."""
    if PARTITION_NAME_TAG in tags:
        return frozenset([tags[PARTITION_NAME_TAG]])
    first, last = tags.get(ASSET_PARTITION_RANGE_START_TAG), tags.get(ASSET_PARTITION_RANGE_END_TAG)
    if first in keys and last in keys:
        return frozenset(keys[keys.index(str(first)) : keys.index(str(last)) + 1])
    return frozenset(keys)


def _planned(
    instance: dg.DagsterInstance, run_id: str, asset_key: dg.AssetKey
) -> Iterator[AssetMaterializationPlannedData]:
    connection = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    for record in connection.records:
        event = record.event_log_entry.dagster_event
        if event is not None and event.asset_materialization_planned_data.asset_key == asset_key:
            yield event.asset_materialization_planned_data


def _planned_keys(data: AssetMaterializationPlannedData) -> list[str]:
    if data.partitions_subset is not None:
        return [str(key) for key in data.partitions_subset.get_partition_keys()]
    return [] if data.partition is None else [data.partition]

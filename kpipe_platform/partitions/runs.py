"""Runs that a sensor asked for and that are not finished, by Kafka partition."""

from __future__ import annotations

import json
from collections.abc import Mapping

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

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

"""Runs that a sensor asked for and that are not finished, by Kafka partition."""

from __future__ import annotations

import json

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from kpipe_platform.kafka.offsets import Partition

GROUP = "kpipe/group"
"""Run tag: consumer group of the asset."""
RANGES = "kpipe/ranges"
"""Run tag: the offsets that the tick saw, ``{"orders": {"3": [100, 250]}}``. The run itself plans anew."""


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
        for topic, numbers in json.loads(run.tags.get(RANGES) or "{}").items():
            for number in numbers:
                found.setdefault((topic, int(number)), []).append(run.run_id)
    return found

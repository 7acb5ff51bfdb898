"""Find the asset of a consumer group."""

from __future__ import annotations

import dagster as dg

from kpipe_platform.metadata_keys import CONSUMER_GROUP, stored_metadata
from kpipe_platform.partitions.materializations import last_materialization, ranges_of
from kpipe_platform.partitions.runs import GROUP, asked_ranges


def asset_of_group(instance: dg.DagsterInstance, group: str) -> dg.AssetKey | None:
    """Return the asset of a group: from the last run that a sensor requested, otherwise from the group's name.

    A group is named ``{prefix}.{asset key joined by .}``, so a name may match several assets. The asset whose last
    materialization names the group is then returned.

    Args:
        instance: Dagster instance.
        group: Consumer group.

    Returns:
        The asset key; None if the asset is unknown or ambiguous.
    """
    for run in instance.get_runs(dg.RunsFilter(tags={GROUP: group}), limit=1):
        if run.asset_selection is not None and len(run.asset_selection) == 1:
            return next(iter(run.asset_selection))
    fitting = [key for key in instance.get_asset_keys() if group.endswith("." + ".".join(key.path))]
    told = {key: _group_of(instance, key) for key in fitting}
    return next(
        (key for key in fitting if told[key] == group),
        fitting[0] if len(fitting) == 1 and told[fitting[0]] is None else None,
    )


def is_known(instance: dg.DagsterInstance, group: str, topic: str) -> bool:
    """Return whether Dagster has a record of a group that reads a topic.

    The record is the last run that a sensor requested, or the last materialization of the group's asset.

    Args:
        instance: Dagster instance.
        group: Consumer group.
        topic: Topic name.
    """
    runs = instance.get_runs(dg.RunsFilter(tags={GROUP: group}), limit=1)
    if any(topic == read for run in runs for read, _ in asked_ranges(run.tags)):
        return True
    for key in instance.get_asset_keys():
        if group.endswith("." + ".".join(key.path)) and _group_of(instance, key) == group:
            last = last_materialization(instance, key)
            return last is not None and any(item["topic"] == topic for item in ranges_of(last))
    return False


def _group_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """Return the group that the last materialization names; None if there is none."""
    last = last_materialization(instance, key)
    found = None if last is None else stored_metadata(last.metadata).get(CONSUMER_GROUP)
    return None if found is None else str(found.value)

"""Dagster run requests of a tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from kpipe_platform.metadata_keys import MULTI_ASSET
from kpipe_platform.resources._compat import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from kpipe_platform.sensors.tick.candidates import Target
from kpipe_platform.sensors.tick.decision import Candidate
from kpipe_platform.sensors.tick.in_flight import next_attempt
from kpipe_platform.sensors.tick.tags import ATTEMPT, GROUP, PARTITIONS, RANGE_KEY, range_key, tags_of_ranges


def run_request(
    instance: dg.DagsterInstance, target: Target, taken: Sequence[Candidate], owner: Mapping[str, str] | None = None
) -> dg.RunRequest:
    """Return the request for one run over adjacent partitions, or over an unpartitioned asset.

    Args:
        instance: Dagster instance, for earlier runs of the same ranges.
        target: The asset.
        taken: The partitions, in Dagster's order.
        owner: Tags that name the deployment that requests the run; None or empty if partitions are not shared.
    """
    planned = [each for candidate in taken for each in candidate.ranges]
    first, last = taken[0].number, taken[-1].number
    partitions = "all" if first is None else str(first) if len(taken) == 1 else f"{first}-{last}"
    key = range_key(target.group, partitions, [each.range for each in planned])
    attempt = next_attempt(instance, key)
    tags = {
        GROUP: target.group,
        PARTITIONS: partitions,
        **tags_of_ranges(planned),
        RANGE_KEY: key,
        ATTEMPT: str(attempt),
        **(owner or {}),
    }
    if target.outputs:
        tags[MULTI_ASSET] = target.key.to_user_string()
    if len(taken) > 1:
        tags |= {ASSET_PARTITION_RANGE_START_TAG: str(first), ASSET_PARTITION_RANGE_END_TAG: str(last)}
    return dg.RunRequest(
        run_key=f"{key}#{attempt}",
        asset_selection=list(target.outputs or (target.key,)),
        partition_key=str(first) if first is not None and len(taken) == 1 else None,
        tags=tags,
    )

"""Provenance of a run: run tags that name the deployment and process, and the `Distribution` made from them."""

from __future__ import annotations

from collections.abc import Mapping

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.resources.ownership import PartitionOwnership

INSTANCE = "kpipe/instance"
"""Run tag: the deployment whose sensor requested the run."""
WORKER = "kpipe/worker"
"""Run tag: the process whose sensor requested the run. The run's own output names the run's own process instead."""
LEASE = "kpipe/lease"
"""Run tag: the lease by which that deployment owns the partition, ``{group}.owners/{member id}/{number}``."""


def tags_of(member: ConsumerGroupOwnership) -> dict[str, str]:
    """Return the ownership tags of a run that a member's deployment requests."""
    tags = {INSTANCE: member.instance, WORKER: member.worker}
    lease = member.lease
    return tags if lease is None else {**tags, LEASE: lease}


def distribution_of(tags: Mapping[str, str], group: str, ownership: PartitionOwnership | None) -> Distribution:
    """Return the deployment and process that execute a run.

    The deployment is the one that the run's tags name, otherwise this one; the process is this one.

    Args:
        tags: The run's tags.
        group: Consumer group of the asset.
        ownership: How this deployment shares partitions; None: it does not share them.
    """
    instance = tags.get(INSTANCE) or (ownership.instance_id if ownership is not None else None)
    return Distribution.here(instance=instance, group=group, lease=tags.get(LEASE))

"""Which deployment and which process work on a partition: from the tags of a run to what the run leaves behind."""

from __future__ import annotations

from collections.abc import Mapping

from kpipe_platform.dead_letters import Distribution
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.resources.ownership import PartitionOwnership

INSTANCE = "kpipe/instance"
"""Run tag: the deployment whose sensor asked for the run."""
WORKER = "kpipe/worker"
"""Run tag: the process whose sensor asked for it. What the run leaves behind names the run's own process."""
LEASE = "kpipe/lease"
"""Run tag: what gave that deployment the partition, ``{group}.owners/{member id}/{number}``."""


def tags_of(member: ConsumerGroupOwnership) -> dict[str, str]:
    """The tags of a run that a member's deployment asks for."""
    tags = {INSTANCE: member.instance, WORKER: member.worker}
    lease = member.lease
    return tags if lease is None else {**tags, LEASE: lease}


def distribution_of(tags: Mapping[str, str], group: str, ownership: PartitionOwnership | None) -> Distribution:
    """Who does a run's work: the deployment that its sensor's tags name, or else this one, and this process.

    Args:
        tags: The run's tags.
        group: Consumer group of the asset.
        ownership: How this deployment shares partitions; None: it shares none.
    """
    instance = tags.get(INSTANCE) or (ownership.instance_id if ownership is not None else None)
    return Distribution.here(instance=instance, group=group, lease=tags.get(LEASE))

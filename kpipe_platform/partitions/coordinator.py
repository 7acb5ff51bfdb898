"""Run coordinator that tags each queued run with the Kafka asset and partition that it processes.

Dagster limits concurrent runs by their tags, and only the runs of a sensor have kpipe tags. This coordinator tags every
queued run, however it was started, so that one limit in dagster.yaml prevents concurrent runs of one partition::

    run_coordinator:
      module: kpipe_platform.partitions.coordinator
      class: KafkaRunCoordinator
    concurrency:
      runs:
        tag_concurrency_limits:
          - key: kpipe/slot
            value: {applyLimitPerUniqueValue: true}
            limit: 1
"""

from __future__ import annotations

import dagster as dg

from kpipe_platform.partitions.pools import pools_of
from kpipe_platform.partitions.runs import bounded
from kpipe_platform.resources._compat import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

__all__ = ["SLOT", "KafkaRunCoordinator", "slot_of"]

SLOT = "kpipe/slot"
"""Run tag: asset and Kafka partition, ``kpipe.orders_priced/3``. A limit of 1 per value prevents concurrent runs."""


class KafkaRunCoordinator(dg.QueuedRunCoordinator[dg.DagsterInstance]):
    """Dagster's ``QueuedRunCoordinator``, with the same settings, that also tags the runs of Kafka assets."""

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Tag a run of a Kafka asset and queue it."""
        slot = slot_of(context.dagster_run)
        # Tag the run before it is queued: the daemon may dequeue it immediately.
        if slot is not None and context.dagster_run.tags.get(SLOT) != slot:
            self._instance.add_run_tags(context.dagster_run.run_id, {SLOT: slot})
        return super().submit_run(context)


def slot_of(run: dg.DagsterRun) -> str | None:
    """Return the pools of a run's Kafka assets, joined by ``+``, and the partition, the partition range or ``all``.

    Args:
        run: The run, as Dagster recorded it.

    Returns:
        The value of the ``kpipe/slot`` tag; None if the run has no Kafka asset.
    """
    pools = pools_of(run)
    if not pools:
        return None
    first, last = run.tags.get(ASSET_PARTITION_RANGE_START_TAG), run.tags.get(ASSET_PARTITION_RANGE_END_TAG)
    whole = "all" if first is None else str(first) if first == last else f"{first}-{last}"
    return bounded(f"{'+'.join(pools)}/{run.tags.get(PARTITION_NAME_TAG, whole)}")

"""Dagster's run queue, which also sees which partition of which Kafka asset a run takes.

Dagster limits runs by their tags, and only runs of a sensor have tags of kpipe. This coordinator tags every run that
is queued, whoever started it, so that one limit in dagster.yaml keeps two runs of one partition apart::

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
"""Run tag: asset and Kafka partition, ``kpipe.orders_priced/3``. A limit of 1 for each value keeps its runs apart."""


class KafkaRunCoordinator(dg.QueuedRunCoordinator[dg.DagsterInstance]):
    """Queues runs as Dagster does, and tags those of Kafka assets with what they take. Its settings are Dagster's."""

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Queue a run."""
        slot = slot_of(context.dagster_run)
        # Before it is queued: the daemon may take it the moment after.
        if slot is not None and context.dagster_run.tags.get(SLOT) != slot:
            self._instance.add_run_tags(context.dagster_run.run_id, {SLOT: slot})
        return super().submit_run(context)


def slot_of(run: dg.DagsterRun) -> str | None:
    """What a run takes: the pools of its Kafka assets joined by +, and the partition, the range, or ``all``.

    Args:
        run: The run, as Dagster recorded it.

    Returns:
        None for a run of no Kafka asset.
    """
    pools = pools_of(run)
    if not pools:
        return None
    first, last = run.tags.get(ASSET_PARTITION_RANGE_START_TAG), run.tags.get(ASSET_PARTITION_RANGE_END_TAG)
    whole = "all" if first is None else str(first) if first == last else f"{first}-{last}"
    return bounded(f"{'+'.join(pools)}/{run.tags.get(PARTITION_NAME_TAG, whole)}")

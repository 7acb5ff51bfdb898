"""The resource that plans slices of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from kpipe_platform.kafka.admin.groups import CommittedOffset, committed_offsets, group_name
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition, Watermarks, parse_start, read_watermarks
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.resources.connected import Connected
from kpipe_platform.resources.ownership import PartitionOwnership
from kpipe_platform.resources.scaling import PartitionScaling
from kpipe_platform.slices.plan.planner import plan_next
from kpipe_platform.slices.plan.ranges import LastMaterialization, PlanPolicy


class KafkaSource(Connected):
    """Plans slices of topics, and reads watermarks, committed offsets and lag.

    In a ``KafkaIOManager`` it uses the IO manager's connection unless it has its own. As a separate resource it needs
    its own.

    Raises:
        ConfigError: ``start`` is neither a start policy nor a time.
    """

    group_prefix: str = Field(
        default="kpipe", description="prefix of consumer groups: the group of an asset is {group_prefix}.{asset key}"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed", description="isolation level of plans and reads"
    )
    start: str = Field(
        default="earliest",
        description="where a new group starts: earliest, latest, error, or a time such as 2026-01-31T06:00:00Z",
    )
    on_lost_offsets: Literal["error", "skip"] = Field(
        default="error", description="what to do if retention deleted records before the group read them"
    )
    scaling: PartitionScaling = PartitionScaling()
    ownership: PartitionOwnership | None = Field(
        default=None,
        description="share the partitions with other deployments; None: this deployment has all partitions",
    )

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)
        # EnvVar is a subclass of str and has no value before a run.
        if type(self.start) is str:
            parse_start(self.start)

    def group(self, asset_key: dg.AssetKey) -> str:
        """Return the name of an asset's consumer group. Each asset has its own group.

        Raises:
            ConfigError: A part of the asset key contains a dot.
        """
        return group_name(self.group_prefix, asset_key.path)

    def policy(self, group: str, scaling: PartitionScaling | None = None) -> PlanPolicy:
        """Return the policy that a group's slices are planned with.

        Args:
            group: Consumer group.
            scaling: Overrides the source's limits.
        """
        return PlanPolicy(
            group=group,
            isolation=self.isolation,
            start=parse_start(self.start),
            on_lost_offsets=self.on_lost_offsets,
            max_records=(scaling or self.scaling).max_records,
            lanes=(scaling or self.scaling).in_flight_per_partition,
        )

    def clients(self) -> Clients:
        """Return new Kafka clients for this source. The caller closes them."""
        return Clients(self.connection_settings)

    def plan(
        self,
        group: str,
        partitions: Iterable[Partition],
        *,
        run_id: str,
        slice_id: str,
        earlier: Callable[[Partition], LastMaterialization | None] = lambda _: None,
        scaling: PartitionScaling | None = None,
        clients: Clients | None = None,
    ) -> Slice:
        """Plan the next slice of some partitions. Moves no offsets.

        Args:
            group: Consumer group.
            partitions: Pairs of topic and partition number.
            run_id: Dagster run.
            slice_id: Name of the slice.
            earlier: Returns a partition's last materialization in Dagster; None if there is none.
            scaling: Overrides the source's limits.
            clients: Clients to use; None: new clients that are closed after the plan.

        Raises:
            KpipeError: The slice cannot be planned; see ``kpipe_platform.slices.plan``.
        """
        with nullcontext(clients) if clients is not None else self.clients() as used:
            return plan_next(
                used,
                self.policy(group, scaling),
                partitions,
                run_id=run_id,
                slice_id=slice_id,
                last_materialization=earlier,
            )

    def partition_numbers(self, topic: str) -> list[int]:
        """Return the numbers of the topic's current partitions."""
        with self.clients() as clients:
            return list(range(describe_topics(clients, [topic])[topic].partitions))

    def watermarks(self, topic: str) -> dict[int, Watermarks]:
        """Return the log start and log end of each partition of a topic, at this source's isolation."""
        with self.clients() as clients:
            count = describe_topics(clients, [topic])[topic].partitions
            watermarks = read_watermarks(clients, [(topic, n) for n in range(count)], self.isolation)
        return {number: mark for (_, number), mark in watermarks.items()}

    def committed(self, group: str, topic: str) -> dict[int, CommittedOffset | None]:
        """Return a group's offset in each partition of a topic; None if it has none."""
        with self.clients() as clients:
            count = describe_topics(clients, [topic])[topic].partitions
            found = committed_offsets(clients, group, [(topic, n) for n in range(count)])
        return {number: offset for (_, number), offset in found.items()}

    def lag(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's lag in each partition of a topic, in offsets. For a new group, all offsets count."""
        watermarks, committed = self.watermarks(topic), self.committed(group, topic)
        lags = {}
        for number, mark in watermarks.items():
            stored = committed[number]
            lags[number] = max(mark.end - (mark.log_start if stored is None else stored.offset), 0)
        return lags

"""The broker calls of a tick. Their number does not grow with the number of partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from kpipe_platform.kafka.admin.groups import Offsets, stored_offsets
from kpipe_platform.kafka.admin.topics import TopicDescription, describe_topics, unequal_partitions
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import Partition, Watermarks, watermarks_around
from kpipe_platform.slices.plan.facts import facts_of
from kpipe_platform.slices.plan.ranges import PartitionFacts, PlanPolicy


@dataclass(frozen=True)
class Downstream:
    """A downstream asset whose lag causes backpressure.

    Args:
        group: Its consumer group.
        topics: The topics that it reads.
    """

    group: str
    topics: tuple[str, ...]


@dataclass(frozen=True)
class BrokerView:
    """The state of the topics and groups on the brokers.

    Args:
        topics: Descriptions of the topics that the asset reads, by name.
        facts: The facts of every partition that all of the topics have, without the last materialization.
        downstream_lag: Lag of the downstream asset, in offsets; None if there is no downstream asset.
    """

    topics: Mapping[str, TopicDescription]
    facts: Sequence[PartitionFacts]
    downstream_lag: int | None = None

    @property
    def partitions(self) -> int:
        """Number of partitions that all topics have. A run processes the same partition number of every topic."""
        return min(topic.partitions for topic in self.topics.values())


def refuse_unequal(asset: dg.AssetKey, view: BrokerView) -> None:
    """Refuse a partitioned asset whose topics have different numbers of partitions, as its runs do.

    Raises:
        ConfigError: The numbers of partitions differ.
    """
    counts = {name: topic.partitions for name, topic in view.topics.items()}
    if len(set(counts.values())) > 1:
        raise unequal_partitions(f"asset {asset.to_user_string()}", counts)


def tick_settings(settings: ConnectionSettings, deadline_s: float) -> ConnectionSettings:
    """Return connection settings whose timeout ends before the tick's deadline, so that broker errors are reported."""
    return replace(settings, request_timeout_s=min(settings.request_timeout_s, 0.8 * deadline_s))


def read_brokers(
    settings: ConnectionSettings, policy: PlanPolicy, topics: Sequence[str], downstream: Downstream | None = None
) -> BrokerView:
    """Read the state of the topics and groups.

    This takes one topic description, two offset listings (log start and log end) and one fetch of the group's offsets,
    whatever the number of partitions. A new group that starts at a time needs one more listing, and a downstream asset
    one more fetch.

    Raises:
        TopicNotFoundError: A topic does not exist.
        BrokerUnavailableError: The brokers did not respond within the connection's deadline.
    """
    with Clients(settings) as clients:
        names = list(dict.fromkeys([*topics, *(downstream.topics if downstream else ())]))
        described = describe_topics(clients, names)
        everything = [(name, number) for name in names for number in range(described[name].partitions)]
        shared = min(described[name].partitions for name in topics)
        wanted = [(name, number) for name in topics for number in range(shared)]
        behind: Offsets = {}

        def read() -> Offsets:
            if downstream is not None:
                read = [partition for partition in everything if partition[0] in downstream.topics]
                behind.update(stored_offsets(clients, downstream.group, read))
            return stored_offsets(clients, policy.group, wanted)

        # Groups' offsets are read before the log ends, so that a log end is never older than an offset.
        places = everything if downstream is not None else wanted
        watermarks, committed = watermarks_around(clients, policy.group, places, policy.isolation, read)
        facts = facts_of(clients, policy, described, committed, watermarks)
    return BrokerView(
        {name: described[name] for name in topics}, facts, None if downstream is None else _lag(behind, watermarks)
    )


def _lag(committed: Offsets, watermarks: Mapping[Partition, Watermarks]) -> int:
    lag = 0
    for partition, stored in committed.items():
        mark = watermarks[partition]
        lag += max(mark.end - (mark.log_start if stored is None else stored.offset), 0)
    return lag

"""What a tick asks the brokers: a number of calls that does not grow with the partitions."""

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
    """An asset whose lag holds a sensor back.

    Args:
        group: Its consumer group.
        topics: The topics that it reads.
    """

    group: str
    topics: tuple[str, ...]


@dataclass(frozen=True)
class BrokerView:
    """What the brokers know.

    Args:
        topics: The topics that the asset reads, as they are now.
        facts: Of every partition that all of the topics have, without what Dagster holds.
        downstream_lag: Offsets that wait for the downstream asset; None where none was asked for.
    """

    topics: Mapping[str, TopicDescription]
    facts: Sequence[PartitionFacts]
    downstream_lag: int | None = None

    @property
    def partitions(self) -> int:
        """Partitions that all of the topics have: a run takes the same number of each."""
        return min(topic.partitions for topic in self.topics.values())


def refuse_unequal(asset: dg.AssetKey, view: BrokerView) -> None:
    """Refuse a partitioned asset over topics that differ in their number of partitions, as its runs do.

    Raises:
        ConfigError: They do.
    """
    counts = {name: topic.partitions for name, topic in view.topics.items()}
    if len(set(counts.values())) > 1:
        raise unequal_partitions(f"asset {asset.to_user_string()}", counts)


def tick_settings(settings: ConnectionSettings, deadline_s: float) -> ConnectionSettings:
    """The connection with time-outs that end before the tick's deadline, so that its own errors are heard."""
    return replace(settings, request_timeout_s=min(settings.request_timeout_s, 0.8 * deadline_s))


def read_brokers(
    settings: ConnectionSettings, policy: PlanPolicy, topics: Sequence[str], downstream: Downstream | None = None
) -> BrokerView:
    """Ask: one description, two lists of offsets (log start, end) and one fetch of the group, whatever the partitions.

    One list more where a new group begins at a time; one fetch more where a downstream asset is looked at.

    Raises:
        TopicNotFoundError: A topic does not exist.
        BrokerUnavailableError: No answer within the connection's deadline.
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

        # The groups' offsets are read before the ends: so an end can only be younger, never older.
        places = everything if downstream is not None else wanted
        marks, committed = watermarks_around(clients, policy.group, places, policy.isolation, read)
        facts = facts_of(clients, policy, described, committed, marks)
    return BrokerView(
        {name: described[name] for name in topics}, facts, None if downstream is None else _lag(behind, marks)
    )


def _lag(committed: Offsets, marks: Mapping[Partition, Watermarks]) -> int:
    lag = 0
    for partition, stored in committed.items():
        mark = marks[partition]
        lag += max(mark.end - (mark.log_start if stored is None else stored.offset), 0)
    return lag

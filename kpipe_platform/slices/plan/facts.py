"""Read the facts for a plan from the brokers. The number of calls does not grow with the number of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kpipe_platform.kafka.admin.groups import (
    Offsets,
    committed_offsets,
    group_members,
    refuse_foreign_members,
    stored_offsets,
)
from kpipe_platform.kafka.admin.topics import TopicDescription, check_partitions, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition, Watermarks, offsets_at, read_watermarks
from kpipe_platform.slices.plan.ranges import LastMaterialization, PartitionFacts, PlanPolicy


def gather_facts(
    clients: Clients,
    policy: PlanPolicy,
    partitions: Iterable[Partition],
    last_materialization: Callable[[Partition], LastMaterialization | None],
) -> list[PartitionFacts]:
    """Read the facts for a plan. The number of calls does not grow with the number of partitions.

    Args:
        clients: The clients to use.
        policy: The plan's policy.
        partitions: The partitions to plan.
        last_materialization: Looks up the last materialization. Called only for partitions without a group offset.

    Raises:
        TopicNotFoundError: A topic or partition does not exist.
        ForeignMemberError: Another consumer is a member of the group.
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    wanted = list(partitions)
    described = describe_topics(clients, [topic for topic, _ in wanted])
    check_partitions(described, wanted)
    refuse_foreign_members(policy.group, group_members(clients, policy.group))
    all_facts = read_facts(clients, policy, described, wanted)
    left = {
        topic_partition: last_materialization(topic_partition)
        for topic_partition in [(f.topic, f.partition) for f in all_facts if f.committed is None]
    }
    watermarks = {(f.topic, f.partition): f.watermarks for f in all_facts}
    past = [
        topic_partition
        for topic_partition, held in left.items()
        if held is not None and held.end > watermarks[topic_partition].end
    ]
    ends = read_watermarks(clients, past, "read_uncommitted") if past else {}
    return [
        facts
        if facts.committed is not None
        else replace(
            facts,
            last_materialization=left[topic_partition],
            log_end=ends[topic_partition].end if topic_partition in ends else None,
        )
        for facts in all_facts
        for topic_partition in [(facts.topic, facts.partition)]
    ]


def read_facts(
    clients: Clients, policy: PlanPolicy, described: Mapping[str, TopicDescription], wanted: Sequence[Partition]
) -> list[PartitionFacts]:
    """Read the brokers' facts about existing partitions, without Dagster's materializations.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    # Read the group's offset before the log end, so that the log end is never older than the offset.
    committed = committed_offsets(clients, policy.group, wanted)
    watermarks = read_watermarks(clients, wanted, policy.isolation)
    return facts_of(clients, policy, described, committed, watermarks)


def facts_of(
    clients: Clients,
    policy: PlanPolicy,
    described: Mapping[str, TopicDescription],
    committed: Offsets,
    watermarks: Mapping[Partition, Watermarks],
) -> list[PartitionFacts]:
    """Complete the facts of partitions whose group offsets and watermarks were already read.

    Makes an additional call in each of these cases:

    - A partition has no group offset, and the group starts at a time.
    - The group's offset is past the last stable offset.
    - A partition has no group offset, the group starts at the latest offset or at a time, and the call does not
      cover all partitions of the topic.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    new = [topic_partition for topic_partition, stored in committed.items() if stored is None]
    began = _began(clients, policy, described, committed) if new else {}
    starts: dict[Partition, int | None] = {}
    if new and isinstance(policy.start, int):
        starts = offsets_at(clients, new, policy.start, policy.isolation)
    past = [
        topic_partition
        for topic_partition, stored in committed.items()
        if stored is not None and stored.offset > watermarks[topic_partition].end
    ]
    ends: dict[Partition, Watermarks] = {}
    if past and policy.isolation == "read_committed":
        ends = read_watermarks(clients, past, "read_uncommitted")
    return [
        PartitionFacts(
            topic=topic,
            partition=number,
            topic_id=described[topic].topic_id,
            watermarks=watermarks[(topic, number)],
            committed=stored,
            start_offset=starts.get((topic, number)),
            log_end=ends[(topic, number)].end if (topic, number) in ends else None,
            partitions=described[topic].partitions,
            is_added=stored is None and number >= began.get(topic, described[topic].partitions),
        )
        for (topic, number), stored in committed.items()
    ]


def _began(
    clients: Clients, policy: PlanPolicy, described: Mapping[str, TopicDescription], committed: Offsets
) -> dict[str, int]:
    """Return the smallest known partition count that each topic had when the group started in one of its partitions.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    if policy.start in ("earliest", "error"):
        return {}
    topics = dict.fromkeys(topic for topic, _ in committed)
    others = [(t, n) for t in topics for n in range(described[t].partitions) if (t, n) not in committed]
    # Do not wait for open transactions: if the group is just starting in one partition, another partition's metadata
    # has the count.
    known = {**committed, **(stored_offsets(clients, policy.group, others) if others else {})}
    counts: dict[str, int] = {}
    for (topic, _), stored in known.items():
        metadata = None if stored is None else stored.metadata
        if metadata is not None and metadata.partitions is not None and metadata.topic_id == described[topic].topic_id:
            counts[topic] = min(metadata.partitions, counts.get(topic, metadata.partitions))
    return counts

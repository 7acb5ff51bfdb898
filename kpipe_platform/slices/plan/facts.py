"""What a plan needs to know: the brokers' answers, in a number of calls that does not grow with the partitions."""

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
from kpipe_platform.kafka.model.offsets import Partition, Watermarks, offsets_at, watermarks
from kpipe_platform.slices.plan.ranges import LastMaterialization, PartitionFacts, PlanPolicy


def gather_facts(
    clients: Clients,
    policy: PlanPolicy,
    partitions: Iterable[Partition],
    earlier: Callable[[Partition], LastMaterialization | None],
) -> list[PartitionFacts]:
    """Ask the brokers what a plan needs, in a number of calls that does not grow with the partitions.

    Args:
        clients: The clients to use.
        policy: The plan's policy.
        partitions: Which partitions.
        earlier: Looks up the last materialisation; asked only where the group has no offset.

    Raises:
        TopicNotFoundError: A topic or partition does not exist.
        ForeignMemberError: Somebody else is a member of the group.
        BrokerUnavailableError: No answer within the deadline.
    """
    wanted = list(partitions)
    described = describe_topics(clients, [topic for topic, _ in wanted])
    check_partitions(described, wanted)
    refuse_foreign_members(policy.group, group_members(clients, policy.group))
    found = read_facts(clients, policy, described, wanted)
    left = {place: earlier(place) for place in [(f.topic, f.partition) for f in found if f.committed is None]}
    marks = {(f.topic, f.partition): f.marks for f in found}
    past = [place for place, held in left.items() if held is not None and held.end > marks[place].end]
    ends = watermarks(clients, past, "read_uncommitted") if past else {}
    return [
        facts
        if facts.committed is not None
        else replace(facts, earlier=left[place], log_end=ends[place].end if place in ends else None)
        for facts in found
        for place in [(facts.topic, facts.partition)]
    ]


def read_facts(
    clients: Clients, policy: PlanPolicy, described: Mapping[str, TopicDescription], wanted: Sequence[Partition]
) -> list[PartitionFacts]:
    """What the brokers know of partitions that exist, without what Dagster holds.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    # The group's offset is read before the log's end: so the end can only be younger, never older.
    committed = committed_offsets(clients, policy.group, wanted)
    marks = watermarks(clients, wanted, policy.isolation)
    return facts_of(clients, policy, described, committed, marks)


def facts_of(
    clients: Clients,
    policy: PlanPolicy,
    described: Mapping[str, TopicDescription],
    committed: Offsets,
    marks: Mapping[Partition, Watermarks],
) -> list[PartitionFacts]:
    """The facts of the partitions whose offsets and watermarks are read.

    One call more is made where a group begins at a time, and where its offset is past the last stable offset; and one
    where it has no offset in some of these partitions, to begin at the latest or at a time, if it is not asked about
    all partitions of the topic.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    new = [place for place, stored in committed.items() if stored is None]
    began = _began(clients, policy, described, committed) if new else {}
    starts: dict[Partition, int | None] = {}
    if new and isinstance(policy.start, int):
        starts = offsets_at(clients, new, policy.start, policy.isolation)
    past = [place for place, stored in committed.items() if stored is not None and stored.offset > marks[place].end]
    ends: dict[Partition, Watermarks] = {}
    if past and policy.isolation == "read_committed":
        ends = watermarks(clients, past, "read_uncommitted")
    return [
        PartitionFacts(
            topic=topic,
            partition=number,
            topic_id=described[topic].topic_id,
            marks=marks[(topic, number)],
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
    """The fewest partitions that each topic had when the group began in one of them, where that is known.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    if policy.start in ("earliest", "error"):
        return {}
    topics = dict.fromkeys(topic for topic, _ in committed)
    others = [(t, n) for t in topics for n in range(described[t].partitions) if (t, n) not in committed]
    # Without waiting for open transactions: of a partition that the group is about to begin in, another one knows more.
    known = {**committed, **(stored_offsets(clients, policy.group, others) if others else {})}
    counts: dict[str, int] = {}
    for (topic, _), stored in known.items():
        metadata = None if stored is None else stored.metadata
        if metadata is not None and metadata.partitions is not None and metadata.topic_id == described[topic].topic_id:
            counts[topic] = min(metadata.partitions, counts.get(topic, metadata.partitions))
    return counts

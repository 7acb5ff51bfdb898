"""A group's position in the partitions of a topic: offset, watermarks and lag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpipe_platform.kafka.admin.groups import CommittedOffset, stored_offsets
from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition, Watermarks, read_watermarks
from kpipe_platform.slices.plan.facts import facts_of, read_facts
from kpipe_platform.slices.plan.ranges import PlanPolicy, start_of


@dataclass(frozen=True)
class Waiting:
    """A group's position in one partition.

    Args:
        topic: Topic.
        partition: Kafka partition.
        topic_id: Current id of the topic.
        watermarks: Log start and log end.
        committed: The group's offset; None if it has none.
        offset: Start of the group's next slice: the group's offset, or the offset that the start policy gives.
    """

    topic: str
    partition: int
    topic_id: str
    watermarks: Watermarks
    committed: CommittedOffset | None
    offset: int

    @property
    def lag(self) -> int:
        """Unread offsets, including offsets that were deleted before they were read. At least the number of records."""
        return max(self.watermarks.end - self.offset, 0)

    @property
    def readable(self) -> OffsetRange:
        """The unread offsets that still exist."""
        start = max(self.offset, self.watermarks.log_start)
        return OffsetRange(self.topic, self.partition, start, max(start, self.watermarks.end))


def gather_waiting(
    clients: Clients,
    policy: PlanPolicy,
    topics: Iterable[str],
    numbers: Iterable[int] | None = None,
    *,
    await_pending: bool = True,
) -> list[Waiting]:
    """Read a group's positions. The number of calls does not grow with the number of partitions.

    Args:
        clients: The clients to use.
        policy: The group, its isolation level and its start policy.
        topics: Topics.
        numbers: Kafka partitions; None: all current partitions of the topics.
        await_pending: Whether to wait for offsets that are pending in an open transaction. If False, read them with
            `stored_offsets`.

    Raises:
        OffsetsPendingError: An offset was still pending in an open transaction after the wait.
        TopicNotFoundError: A topic or partition does not exist.
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    names = list(topics)
    described = describe_topics(clients, names)
    own = None if numbers is None else list(numbers)
    wanted: list[Partition] = [
        (name, number) for name in names for number in (range(described[name].partitions) if own is None else own)
    ]
    if not wanted:
        return []
    check_partitions(described, wanted)
    if await_pending:
        partition_facts = read_facts(clients, policy, described, wanted)
    else:
        # Read the group's offset before the log end, so that the log end is never older than the offset.
        committed = stored_offsets(clients, policy.group, wanted)
        partition_facts = facts_of(
            clients, policy, described, committed, read_watermarks(clients, wanted, policy.isolation)
        )
    return [
        Waiting(
            topic=facts.topic,
            partition=facts.partition,
            topic_id=facts.topic_id,
            watermarks=facts.watermarks,
            committed=facts.committed,
            # With start="error", the whole log counts as lag.
            offset=start_of(facts, policy.start) if facts.committed is None else facts.committed.offset,
        )
        for facts in partition_facts
    ]

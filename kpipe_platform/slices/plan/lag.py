"""Where a group stands in the partitions of a topic: offset, watermarks, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpipe_platform.kafka.admin.groups import CommittedOffset, stored_offsets
from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition, Watermarks, watermarks
from kpipe_platform.slices.plan.facts import facts_of, read_facts
from kpipe_platform.slices.plan.ranges import PlanPolicy, start_of


@dataclass(frozen=True)
class Waiting:
    """A group in one partition.

    Args:
        topic: Topic.
        partition: Kafka partition.
        topic_id: Id of the topic now.
        marks: Log start and end.
        committed: The group's offset; None where it has none.
        offset: Where the group's next slice begins: its offset, else what the start policy says.
    """

    topic: str
    partition: int
    topic_id: str
    marks: Watermarks
    committed: CommittedOffset | None
    offset: int

    @property
    def lag(self) -> int:
        """Offsets that wait, those that were deleted unread included; no fewer than the records."""
        return max(self.marks.end - self.offset, 0)

    @property
    def readable(self) -> OffsetRange:
        """What waits and is still there."""
        start = max(self.offset, self.marks.log_start)
        return OffsetRange(self.topic, self.partition, start, max(start, self.marks.end))


def gather_waiting(
    clients: Clients,
    policy: PlanPolicy,
    topics: Iterable[str],
    numbers: Iterable[int] | None = None,
    *,
    await_pending: bool = True,
) -> list[Waiting]:
    """Ask the brokers where a group stands, in a number of calls that does not grow with the partitions.

    Args:
        clients: The clients to use.
        policy: The group, its isolation, and where it begins.
        topics: Topics.
        numbers: Kafka partitions; None: all that the topics have now.
        await_pending: Whether to wait for offsets that an open transaction holds; False: as `stored_offsets`.

    Raises:
        OffsetsPendingError: Such an offset was waited for in vain.
        TopicNotFoundError: A topic or partition does not exist.
        BrokerUnavailableError: No answer within the deadline.
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
        found = read_facts(clients, policy, described, wanted)
    else:
        # The group's offset before the log's end: so the end can only be younger.
        committed = stored_offsets(clients, policy.group, wanted)
        found = facts_of(clients, policy, described, committed, watermarks(clients, wanted, policy.isolation))
    return [
        Waiting(
            topic=facts.topic,
            partition=facts.partition,
            topic_id=facts.topic_id,
            marks=facts.marks,
            committed=facts.committed,
            # Under start="error" everything waits.
            offset=start_of(facts, policy.start) if facts.committed is None else facts.committed.offset,
        )
        for facts in found
    ]

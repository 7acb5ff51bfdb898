"""Where a group stands in the partitions of a topic: offset, watermarks, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.groups import CommittedOffset, committed_offsets
from kpipe_platform.kafka.offsets import OffsetRange, Partition, Watermarks, offsets_at, watermarks
from kpipe_platform.kafka.slices import PlanPolicy, check_partitions
from kpipe_platform.kafka.topics import describe_topics


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
    clients: Clients, policy: PlanPolicy, topics: Iterable[str], numbers: Iterable[int] | None = None
) -> list[Waiting]:
    """Ask the brokers where a group stands, in a number of calls that does not grow with the partitions.

    Args:
        clients: The clients to use.
        policy: The group, its isolation, and where it begins.
        topics: Topics.
        numbers: Kafka partitions; None: all that the topics have now.

    Raises:
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
    # The group's offset is read before the log's end: so the end can only be younger, never older.
    committed = committed_offsets(clients, policy.group, wanted)
    marks = watermarks(clients, wanted, policy.isolation)
    new = [p for p in wanted if committed.get(p) is None]
    starts: dict[Partition, int | None] = {}
    if new and isinstance(policy.start, int):
        starts = offsets_at(clients, new, policy.start, policy.isolation)
    return [
        Waiting(
            topic=topic,
            partition=number,
            topic_id=described[topic].topic_id,
            marks=marks[topic, number],
            committed=committed.get((topic, number)),
            offset=next_offset(
                committed.get((topic, number)), marks[topic, number], policy.start, starts.get((topic, number))
            ),
        )
        for topic, number in wanted
    ]


def next_offset(
    committed: CommittedOffset | None, marks: Watermarks, start: str | int, start_offset: int | None = None
) -> int:
    """Where a group's next slice begins. Pure.

    Args:
        committed: The group's offset.
        marks: Log start and end.
        start: The start policy, for a group without an offset; under ``"error"`` everything waits.
        start_offset: First offset at the policy's time.
    """
    if committed is not None:
        return committed.offset
    if start == "latest":
        return marks.end
    if isinstance(start, int):
        return marks.end if start_offset is None else min(start_offset, marks.end)
    return marks.log_start

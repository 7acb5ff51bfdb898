"""Planning the next slice: pure decisions over facts that the brokers and Dagster gave.

Brokers are asked in ``gather_facts`` and what it calls; ``plan_range`` and ``plan_slice`` decide, and need none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kpipe_platform.errors import (
    ForeignMemberError,
    LostRangeError,
    NoStartOffsetError,
    OffsetsVanishedError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.groups import (
    CommittedOffset,
    GroupMember,
    Offsets,
    committed_offsets,
    group_members,
    stored_offsets,
)
from kpipe_platform.kafka.offsets import OffsetRange, Partition, Watermarks, offsets_at, watermarks
from kpipe_platform.kafka.topics import TopicDescription, describe_topics

RENEW_AFTER_MS = 3_600_000
"""Brokers forget the offset of a group that commits nothing for ``offsets.retention.minutes``, a week by default. An
offset that is older than this is stored again, unchanged, by a slice that reads nothing."""

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True)
class PlanPolicy:
    """What decides a plan beside the facts.

    Args:
        group: The asset's consumer group.
        isolation: Isolation of the plan and of the read.
        start: Where a new group begins: ``"earliest"``, ``"latest"``, ``"error"`` or milliseconds since 1970.
        on_lost_offsets: ``"error"``, or ``"skip"`` to begin at the log start and record what was lost.
        max_records: Largest number of offsets of one partition in a slice; None: up to the end.
        lanes: Lanes that a slice may be written in.
    """

    group: str
    isolation: Isolation = "read_committed"
    start: str | int = "earliest"
    on_lost_offsets: Literal["error", "skip"] = "error"
    max_records: int | None = None
    lanes: int = 1


@dataclass(frozen=True)
class Materialised:
    """What Dagster holds of a partition: the second copy of its offset.

    Args:
        end: End of the last materialisation.
        topic_id: Id of the topic then.
        group: The group whose offset it was. None: a run's own copy of what it has just committed; an offset does
            not expire during a run, so one that is gone was deleted.
    """

    end: int
    topic_id: str
    group: str | None = None


@dataclass(frozen=True)
class PartitionFacts:
    """What the brokers and Dagster know of one partition.

    Args:
        topic_id: Id of the topic now.
        marks: Log start and end now.
        committed: The group's offset; None where it has none.
        start_offset: First offset at the policy's start time; None where no record is that young, or the policy
            names no time.
        earlier: The last materialisation that Dagster holds; None where it holds none.
        log_end: End of the log with open transactions included (the high watermark); None: not asked, because the
            group's offset is not past the end in ``marks``; of Dagster's a run asks, and a tick leaves it to the run.
        partitions: Partitions of the topic now; None: not known.
        is_added: The partition was added to the topic after the group had begun in another one.
    """

    topic: str
    partition: int
    topic_id: str
    marks: Watermarks
    committed: CommittedOffset | None
    start_offset: int | None = None
    earlier: Materialised | None = None
    log_end: int | None = None
    partitions: int | None = None
    is_added: bool = False

    @property
    def place(self) -> str:
        """The partition, for a message."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True)
class PlannedRange:
    """One partition's part of a slice, with what the plan knew.

    Args:
        range: Offsets to read.
        topic_id: Id of the topic at plan time.
        log_start: First readable offset at plan time.
        end: Last stable offset (or log end) at plan time; the range's start where that lies past it.
        committed: The group's offset that the commit compares with; None: the group must still have none.
        lost: Offsets that retention took before they were read; only with ``on_lost_offsets="skip"``.
        resumed: The group's offset expired or was deleted, and the range begins where Dagster's last materialisation
            ended.
        is_past_stable: The offset lies between the last stable offset and the log's end, where nothing can be read
            before open transactions end.
        renew: The group's offset is so old that it is stored again though nothing is read.
        partitions: Partitions that the topic had when the group began in this one; None: not known.
    """

    range: OffsetRange
    topic_id: str
    log_start: int
    end: int
    committed: int | None
    lost: OffsetRange | None = None
    is_past_stable: bool = False
    renew: bool = False
    resumed: bool = False
    partitions: int | None = None

    @property
    def backlog(self) -> int:
        """Offsets behind this range that wait for a later slice."""
        return self.end - self.range.end


@dataclass(frozen=True)
class Slice:
    """The offset ranges that one commit moves, of one group.

    Args:
        group: Consumer group.
        run_id: Who takes the slice.
        slice_id: Name of the slice within the run; the same for every attempt of its tasks.
        ranges: One per Kafka partition, in order.
        fence: Transactional ids that committed these partitions before under another layout, or may have been left
            open by lanes.
        unit: The transactional id, where it is not that of these ranges: an earlier version's, or that of the slice
            of which this one is a part. None: the id of the ranges.
        lane: Which of the lanes this is.
        lanes: Lanes that are written at the same time; 1 for a slice that is written whole.
    """

    group: str
    run_id: str
    slice_id: str
    ranges: tuple[PlannedRange, ...]
    fence: tuple[str, ...] = ()
    unit: str | None = None
    lane: int = 0
    lanes: int = 1

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to read."""
        return all(planned.range.is_empty for planned in self.ranges)

    @property
    def moves_offsets(self) -> bool:
        """True when a commit is needed, be it only to store where a new group begins, or to renew an old offset."""
        return any(planned.committed != planned.range.end or planned.renew for planned in self.ranges)

    @property
    def span(self) -> int:
        """Number of offsets in all ranges: an upper bound of the number of records."""
        return sum(planned.range.span for planned in self.ranges)

    @property
    def base_id(self) -> str:
        """Transactional id of the first lane; the same for every slice of the same partitions."""
        return self.unit or transactional_id(self.group, [planned.range for planned in self.ranges])

    @property
    def transactional_id(self) -> str:
        """The id under which this slice, or this lane of it, commits."""
        return lane_id(self.base_id, self.lane)

    @property
    def probe_id(self) -> str:
        """The id under which refused records are tried, in transactions that are always aborted."""
        return f"{self.transactional_id}.probe"

    def rest(self, starts: Sequence[int], committed: Sequence[int | None]) -> Slice:
        """What is left of the slice from some offsets on, one for each range, where the group stands now."""
        ranges = tuple(
            replace(
                p,
                range=replace(p.range, start=start),
                committed=stored,
                lost=p.lost if start == p.range.start else None,
                resumed=p.resumed and start == p.range.start,
            )
            for p, start, stored in zip(self.ranges, starts, committed, strict=True)
        )
        first, last = ranges[0].range, ranges[-1].range
        name = f"{self.slice_id}/{first.partition}.{first.start}-{last.end}"
        return replace(self, slice_id=name, ranges=ranges, unit=self.base_id)

    def __str__(self) -> str:
        return ", ".join(str(planned.range) for planned in self.ranges)


def transactional_id(group: str, ranges: Iterable[OffsetRange], committed: Container[str] = ()) -> str:
    """``{group}/{topic}/{partition}``; ``{group}/{topic}/all`` for a slice over several partitions.

    A topic's name has no slash, so that no two groups and topics share an id. Earlier versions wrote dots, and two runs
    of one partition under two ids would not fence each other: where the last commit was under such an id, it stays.

    Args:
        group: Consumer group.
        ranges: The slice's ranges; the first topic in alphabetical order is named.
        committed: The ids that committed the offsets at which the ranges begin.
    """
    ordered = sorted(ranges)
    if not ordered:
        # Outputs without a source: nothing but the asset itself names the transaction.
        return f"{group}.out"
    former = dotted_id(group, ordered)
    return former if former in committed else _joined("/", group, ordered)


def dotted_id(group: str, ranges: Iterable[OffsetRange]) -> str:
    """The transactional id by the rule of earlier versions: ``{group}.{topic}.{partition}``."""
    return _joined(".", group, sorted(ranges))


def _joined(separator: str, group: str, ordered: Sequence[OffsetRange]) -> str:
    numbers = {r.partition for r in ordered}
    last = str(ordered[0].partition) if len(numbers) == 1 else "all"
    return separator.join((group, ordered[0].topic, last))


def lane_id(base: str, lane: int) -> str:
    """Transactional id of one lane of a slice."""
    return f"{base}.lane-{lane}" if lane else base


def lane_ids(base: str, lanes: int) -> set[str]:
    """Transactional ids of the lanes behind the first one."""
    return {lane_id(base, lane) for lane in range(1, lanes)}


def plan_range(facts: PartitionFacts, policy: PlanPolicy) -> PlannedRange:
    """The next range of one partition: ``[committed, min(end, committed + max_records))``. Pure.

    Raises:
        TopicRecreatedError: The offset, the group's or Dagster's, belongs to another topic of that name, or lies past
            the log's end.
        OffsetsVanishedError: No stored offset, though one was stored during this run, or Dagster holds an earlier
            materialisation of another group.
        NoStartOffsetError: A new group and ``start="error"``.
        LostRangeError: The log begins after the stored offset, and the policy is ``"error"``.
    """
    partitions = facts.partitions
    if facts.committed is None:
        begin, committed = _first_offset(facts, policy), None
        who = f"Dagster holds a materialisation up to offset {begin}"
    else:
        begin = committed = facts.committed.offset
        who = f"group {policy.group} stores offset {begin}"
        stored = facts.committed.metadata
        if stored is not None and stored.partitions is not None:
            partitions = stored.partitions
        if stored is not None and stored.topic_id != facts.topic_id:
            raise _recreated(facts, policy, who, stored.topic_id)
    # The last stable offset stands still at an open transaction; an offset behind that waits for it to end.
    log_end = facts.log_end
    if log_end is None and facts.committed is not None:
        log_end = facts.marks.end
    if log_end is not None and begin > log_end:
        msg = f"{who} of {facts.place}, past the log's end {log_end}: the topic was recreated or truncated"
        fix = f"decide where to begin: {_set_command(facts, policy, 'earliest')}"
        raise TopicRecreatedError(msg, fix=fix, **_ids(facts, policy))
    lost = None
    if begin < facts.marks.log_start:
        lost = OffsetRange(facts.topic, facts.partition, begin, facts.marks.log_start)
        if policy.on_lost_offsets == "error":
            msg = (
                f"retention passed the group: offsets [{lost.start}, {lost.end}) of {facts.place} were deleted before "
                f"group {policy.group} read them"
            )
            once = _set_command(facts, policy, "earliest")
            raise LostRangeError(
                msg,
                fix=f'accept the loss once: {once}; or always: KafkaSource(on_lost_offsets="skip")',
                lost=lost,
                **_ids(facts, policy),
            )
        begin = lost.end
    readable = max(facts.marks.end, begin)
    end = readable
    if policy.max_records is not None:
        end = min(end, begin + policy.max_records)
    return PlannedRange(
        range=OffsetRange(facts.topic, facts.partition, begin, end),
        topic_id=facts.topic_id,
        log_start=facts.marks.log_start,
        end=readable,
        committed=committed,
        lost=lost,
        is_past_stable=begin > facts.marks.end,
        resumed=facts.committed is None and facts.earlier is not None,
        partitions=partitions,
    )


def resumption_of(group: str, resumed: Sequence[OffsetRange]) -> str:
    """A line for the log: where a group goes on from what Dagster holds."""
    places = ", ".join(f"{r.topic}/{r.partition} at {r.start}" for r in resumed[:5])
    more = f" and {len(resumed) - 5:,} more" if len(resumed) > 5 else ""
    return (
        f"group {group} had lost its offsets, which expired or were deleted; it goes on where Dagster's last "
        f"materialisation ended: {places}{more}"
    )


def _ids(facts: PartitionFacts, policy: PlanPolicy) -> dict[str, object]:
    return {"topic": facts.topic, "partition": facts.partition, "group": policy.group}


def _set_command(facts: PartitionFacts, policy: PlanPolicy, to: str | int) -> str:
    new = " --new-group" if facts.committed is None else ""
    return f"kpipe offsets set {policy.group} {facts.topic} --partition {facts.partition} --to {to}{new}"


def _recreated(facts: PartitionFacts, policy: PlanPolicy, who: str, stored_id: str) -> TopicRecreatedError:
    msg = (
        f"topic {facts.topic!r} was deleted and created again: {who} of {facts.place} for topic id {stored_id}, and "
        f"the topic's id is now {facts.topic_id}"
    )
    return TopicRecreatedError(
        msg,
        fix=f"decide where to begin in the new topic: {_set_command(facts, policy, 'earliest')}",
        stored_topic_id=stored_id,
        topic_id=facts.topic_id,
        **_ids(facts, policy),
    )


def _first_offset(facts: PartitionFacts, policy: PlanPolicy) -> int:
    if facts.earlier is not None and facts.earlier.topic_id != facts.topic_id:
        # The brokers delete a group's offsets together with the topic.
        who = f"Dagster holds a materialisation up to offset {facts.earlier.end}"
        raise _recreated(facts, policy, who, facts.earlier.topic_id)
    if facts.earlier is not None and facts.earlier.group == policy.group:
        return facts.earlier.end
    if facts.earlier is not None:
        whose = "this run committed" if facts.earlier.group is None else "Dagster holds a materialisation"
        of = "" if facts.earlier.group is None else f" by group {facts.earlier.group}"
        msg = (
            f"group {policy.group} has no offset for {facts.place}, though {whose} up to offset "
            f"{facts.earlier.end}{of}: the offset was deleted, or the group was renamed"
        )
        raise OffsetsVanishedError(
            msg,
            fix="go on from there: " + _set_command(facts, policy, max(facts.earlier.end, facts.marks.log_start)),
            earlier_end=facts.earlier.end,
            **_ids(facts, policy),
        )
    if policy.start == "error":
        msg = f'group {policy.group} has no offset for {facts.place}, and the source says start="error"'
        raise NoStartOffsetError(
            msg, fix=f"set the first offset: {_set_command(facts, policy, 'earliest')}", **_ids(facts, policy)
        )
    return start_of(facts, policy.start)


def start_of(facts: PartitionFacts, start: str | int) -> int:
    """Where a group without an offset begins. Pure.

    Args:
        facts: The partition. One that was added when the group had begun in others has nothing that the start policy
            leaves out: all of it came later.
        start: The start policy; ``"error"`` is not refused here, and is the log's start.
    """
    marks = facts.marks
    if facts.is_added:
        return marks.log_start
    if start == "latest":
        return marks.end
    if isinstance(start, int):
        return marks.end if facts.start_offset is None else min(facts.start_offset, marks.end)
    return marks.log_start


def plan_slice(
    facts: Iterable[PartitionFacts], policy: PlanPolicy, *, run_id: str, slice_id: str, now_ms: int | None = None
) -> Slice:
    """One slice over the given partitions. Pure; raises as ``plan_range``.

    Args:
        facts: What is known of the partitions.
        policy: The plan's policy.
        run_id: Who takes the slice.
        slice_id: Name of the slice.
        now_ms: The time, milliseconds since the epoch, for offsets that are to be renewed; None: none is.
    """
    known = sorted(facts, key=lambda f: (f.topic, f.partition))
    ranges = tuple(replace(plan_range(f, policy), renew=_is_old(f, now_ms)) for f in known)
    units = {f.committed.metadata.unit for f in known if f.committed and f.committed.metadata}
    own = transactional_id(policy.group, [planned.range for planned in ranges], units)
    # A run that was killed in its lanes before any of them committed left no other trace than their transactions.
    fence = units - {own, ""} | lane_ids(own, policy.lanes)
    return Slice(policy.group, run_id, slice_id, ranges, tuple(sorted(fence)), unit=own)


def _is_old(facts: PartitionFacts, now_ms: int | None) -> bool:
    """Whether the group's offset is to be renewed; also where nobody knows how old it is."""
    if now_ms is None or facts.committed is None:
        return False
    stored = facts.committed.metadata
    # A clock that was wrong then or is now must not keep it from being renewed.
    return stored is None or stored.at_ms is None or abs(now_ms - stored.at_ms) >= RENEW_AFTER_MS


def refuse_foreign_members(group: str, members: Iterable[GroupMember]) -> None:
    """Kpipe never joins the asset's group, so any member is somebody else's consumer.

    Raises:
        ForeignMemberError: The group has a member.
    """
    found = list(members)
    if found:
        named = ", ".join(f"{m.client_id} at {m.host}" for m in found[:3])
        msg = f"group {group} is in use by {len(found)} other consumer(s): {named}"
        raise ForeignMemberError(
            msg,
            fix="stop them or give them another group.id; this group belongs to the asset alone",
            group=group,
            members=tuple(m.client_id for m in found),
        )


def check_partitions(described: Mapping[str, TopicDescription], partitions: Iterable[Partition]) -> None:
    """Refuse partition numbers that the topic does not have.

    Raises:
        TopicNotFoundError: A partition is missing.
    """
    for topic, number in partitions:
        count = described[topic].partitions
        if number >= count:
            msg = f"topic {topic!r} has no partition {number}: it has {count} (0 to {count - 1})"
            raise TopicNotFoundError(
                msg,
                fix="follow the topic with kafka_partitions(topic), or add partitions to the topic",
                topic=topic,
                partition=number,
            )


def gather_facts(
    clients: Clients,
    policy: PlanPolicy,
    partitions: Iterable[Partition],
    earlier: Callable[[Partition], Materialised | None],
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

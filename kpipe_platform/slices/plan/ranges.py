"""What the next slice is: pure decisions over facts that the brokers and Dagster gave. Needs no broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kpipe_platform.errors import LostRangeError, NoStartOffsetError, OffsetsVanishedError, TopicRecreatedError
from kpipe_platform.kafka.admin.groups import CommittedOffset
from kpipe_platform.kafka.model.offsets import OffsetRange, Watermarks
from kpipe_platform.kafka.model.slices import PlannedRange, Slice, lane_ids, transactional_id

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
class LastMaterialization:
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
    earlier: LastMaterialization | None = None
    log_end: int | None = None
    partitions: int | None = None
    is_added: bool = False

    @property
    def place(self) -> str:
        """The partition, for a message."""
        return f"{self.topic}/{self.partition}"


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

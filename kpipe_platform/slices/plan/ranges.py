"""Choose the next slice from facts of the brokers and Dagster. Pure functions: they call no broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kpipe_platform.errors import LostRangeError, NoStartOffsetError, OffsetsVanishedError, TopicRecreatedError
from kpipe_platform.kafka.admin.groups import CommittedOffset
from kpipe_platform.kafka.model.offsets import OffsetRange, Watermarks
from kpipe_platform.kafka.model.slices import PlannedRange, Slice, lane_ids, transactional_id

RENEW_AFTER_MS = 3_600_000
"""Age after which an empty slice stores an unchanged offset again. Brokers delete the offsets of a group that commits
nothing for ``offsets.retention.minutes``, a week by default."""

Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True)
class PlanPolicy:
    """The settings of a plan.

    Args:
        group: The asset's consumer group.
        isolation: Isolation level of the plan and the read.
        start: Where a new group starts: ``"earliest"``, ``"latest"``, ``"error"`` or milliseconds since 1970.
        on_lost_offsets: ``"error"``, or ``"skip"`` to start at the log start and record the lost offset range.
        max_records: Maximum number of offsets per partition in a slice; None: up to the log end.
        lanes: Maximum number of lanes in which a slice is written.
    """

    group: str
    isolation: Isolation = "read_committed"
    start: str | int = "earliest"
    on_lost_offsets: Literal["error", "skip"] = "error"
    max_records: int | None = None
    lanes: int = 1


@dataclass(frozen=True)
class LastMaterialization:
    """The last materialization of a partition in Dagster: a second copy of the group's offset.

    Args:
        end: End offset of the last materialization.
        topic_id: Id of the topic at that time.
        group: The consumer group of that offset. None: the run's own copy of an offset that it just committed. An
            offset does not expire during a run, so a missing one was deleted.
    """

    end: int
    topic_id: str
    group: str | None = None


@dataclass(frozen=True)
class PartitionFacts:
    """The facts of one partition from the brokers and Dagster.

    Args:
        topic_id: Current id of the topic.
        watermarks: Current log start and log end.
        committed: The group's offset; None if it has none.
        start_offset: First offset at or after the policy's start time; None if there is no such record, or the start
            policy is not a time.
        last_materialization: The last materialization in Dagster; None if there is none.
        log_end: Log end including open transactions (the high watermark). None: not read, because the group's offset
            is not past the end in ``watermarks``. For an offset from Dagster, a run reads it; a sensor tick does not.
        partitions: Current number of partitions of the topic; None: unknown.
        is_added: Whether the partition was added to the topic after the group had started in another partition.
    """

    topic: str
    partition: int
    topic_id: str
    watermarks: Watermarks
    committed: CommittedOffset | None
    start_offset: int | None = None
    last_materialization: LastMaterialization | None = None
    log_end: int | None = None
    partitions: int | None = None
    is_added: bool = False

    @property
    def place(self) -> str:
        """Topic and partition as text for messages."""
        return f"{self.topic}/{self.partition}"


def plan_range(facts: PartitionFacts, policy: PlanPolicy) -> PlannedRange:
    """Plan the next range of one partition: ``[committed, min(end, committed + max_records))``. Pure.

    Raises:
        TopicRecreatedError: The offset of the group or of Dagster belongs to an earlier topic with the same name, or
            is past the log end.
        OffsetsVanishedError: The group has no offset, although this run committed one, or Dagster has a
            materialization of another group.
        NoStartOffsetError: The group is new and the policy is ``start="error"``.
        LostRangeError: The log starts after the stored offset, and the policy is ``on_lost_offsets="error"``.
    """
    partitions = facts.partitions
    if facts.committed is None:
        begin, committed = _first_offset(facts, policy), None
        who = f"Dagster's last materialization ended at offset {begin}"
    else:
        begin = committed = facts.committed.offset
        who = f"group {policy.group} committed offset {begin}"
        stored = facts.committed.metadata
        if stored is not None and stored.partitions is not None:
            partitions = stored.partitions
        if stored is not None and stored.topic_id != facts.topic_id:
            raise _recreated(facts, policy, who, stored.topic_id)
    # The last stable offset does not pass an open transaction, so a valid offset can be past it until the
    # transaction ends. Compare with the high watermark.
    log_end = facts.log_end
    if log_end is None and facts.committed is not None:
        log_end = facts.watermarks.end
    if log_end is not None and begin > log_end:
        msg = f"{who} of {facts.place}, past the log end {log_end}: the topic was recreated or truncated"
        fix = f"choose where to start: {_set_command(facts, policy, 'earliest')}"
        raise TopicRecreatedError(msg, fix=fix, **_ids(facts, policy))
    lost = None
    if begin < facts.watermarks.log_start:
        lost = OffsetRange(facts.topic, facts.partition, begin, facts.watermarks.log_start)
        if policy.on_lost_offsets == "error":
            msg = (
                f"offsets [{lost.start}, {lost.end}) of {facts.place} were deleted, by retention or DeleteRecords, "
                f"before group {policy.group} read them"
            )
            once = _set_command(facts, policy, "earliest")
            raise LostRangeError(
                msg,
                fix=f'skip them once: {once}; or always skip lost offsets: KafkaSource(on_lost_offsets="skip")',
                lost=lost,
                **_ids(facts, policy),
            )
        begin = lost.end
    readable = max(facts.watermarks.end, begin)
    end = readable
    if policy.max_records is not None:
        end = min(end, begin + policy.max_records)
    return PlannedRange(
        range=OffsetRange(facts.topic, facts.partition, begin, end),
        topic_id=facts.topic_id,
        log_start=facts.watermarks.log_start,
        end=readable,
        committed=committed,
        lost=lost,
        is_past_stable=begin > facts.watermarks.end,
        resumed=facts.committed is None and facts.last_materialization is not None,
        partitions=partitions,
    )


def resumption_of(group: str, resumed: Sequence[OffsetRange]) -> str:
    """Return a log message that lists where a group resumes from Dagster's last materialization."""
    starts = ", ".join(f"{r.topic}/{r.partition} at {r.start}" for r in resumed[:5])
    more = f" and {len(resumed) - 5:,} more" if len(resumed) > 5 else ""
    return (
        f"the offsets of group {group} expired or were deleted; it resumes where Dagster's last materialization ended: "
        f"{starts}{more}"
    )


def _ids(facts: PartitionFacts, policy: PlanPolicy) -> dict[str, object]:
    return {"topic": facts.topic, "partition": facts.partition, "group": policy.group}


def _set_command(facts: PartitionFacts, policy: PlanPolicy, to: str | int) -> str:
    new = " --new-group" if facts.committed is None else ""
    return f"kpipe offsets set {policy.group} {facts.topic} --partition {facts.partition} --to {to}{new}"


def _recreated(facts: PartitionFacts, policy: PlanPolicy, who: str, stored_id: str) -> TopicRecreatedError:
    msg = (
        f"topic {facts.topic!r} was deleted and recreated: {who} of {facts.place} with topic id {stored_id}, but the "
        f"topic id is now {facts.topic_id}"
    )
    return TopicRecreatedError(
        msg,
        fix=f"choose where to start in the new topic: {_set_command(facts, policy, 'earliest')}",
        stored_topic_id=stored_id,
        topic_id=facts.topic_id,
        **_ids(facts, policy),
    )


def _first_offset(facts: PartitionFacts, policy: PlanPolicy) -> int:
    last = facts.last_materialization
    if last is not None and last.topic_id != facts.topic_id:
        # The brokers delete the group's offsets when the topic is deleted.
        who = f"Dagster's last materialization ended at offset {last.end}"
        raise _recreated(facts, policy, who, last.topic_id)
    if last is not None and last.group == policy.group:
        return last.end
    if last is not None:
        known = f"this run committed offset {last.end}"
        if last.group is not None:
            known = f"Dagster's last materialization ended at offset {last.end} of group {last.group}"
        msg = (
            f"group {policy.group} has no offset for {facts.place}, although {known}: the offset was deleted, or the "
            "group was renamed"
        )
        raise OffsetsVanishedError(
            msg,
            fix="continue from there: " + _set_command(facts, policy, max(last.end, facts.watermarks.log_start)),
            earlier_end=last.end,
            **_ids(facts, policy),
        )
    if policy.start == "error":
        msg = f'group {policy.group} has no offset for {facts.place}, and KafkaSource has start="error"'
        raise NoStartOffsetError(
            msg, fix=f"set the start offset: {_set_command(facts, policy, 'earliest')}", **_ids(facts, policy)
        )
    return start_of(facts, policy.start)


def start_of(facts: PartitionFacts, start: str | int) -> int:
    """Return the start offset of a group without an offset. Pure.

    Args:
        facts: The partition. A partition that was added after the group had started in others is read from the log
            start, because all its records are newer than the group.
        start: The start policy. ``"error"`` does not raise here; it gives the log start.
    """
    watermarks = facts.watermarks
    if facts.is_added:
        return watermarks.log_start
    if start == "latest":
        return watermarks.end
    if isinstance(start, int):
        return watermarks.end if facts.start_offset is None else min(facts.start_offset, watermarks.end)
    return watermarks.log_start


def plan_slice(
    facts: Iterable[PartitionFacts], policy: PlanPolicy, *, run_id: str, slice_id: str, now_ms: int | None = None
) -> Slice:
    """Plan one slice over the given partitions. Pure. Raises the errors of ``plan_range``.

    Args:
        facts: Facts of the partitions.
        policy: The plan's policy.
        run_id: Id of the run that takes the slice.
        slice_id: Id of the slice.
        now_ms: Current time to find offsets to renew, milliseconds since the epoch; None: renew none.
    """
    known = sorted(facts, key=lambda f: (f.topic, f.partition))
    ranges = tuple(replace(plan_range(f, policy), renew=_is_old(f, now_ms)) for f in known)
    units = {f.committed.metadata.unit for f in known if f.committed and f.committed.metadata}
    own = transactional_id(policy.group, [planned.range for planned in ranges], units)
    # A run that was killed before any of its lanes committed leaves only open transactions. Fence all possible lanes.
    fence = units - {own, ""} | lane_ids(own, policy.lanes)
    return Slice(policy.group, run_id, slice_id, ranges, tuple(sorted(fence)), unit=own)


def _is_old(facts: PartitionFacts, now_ms: int | None) -> bool:
    """Return whether the group's offset must be renewed. True if its age is unknown."""
    if now_ms is None or facts.committed is None:
        return False
    stored = facts.committed.metadata
    # Use the absolute difference: a wrong clock, then or now, must not prevent the renewal.
    return stored is None or stored.at_ms is None or abs(now_ms - stored.at_ms) >= RENEW_AFTER_MS

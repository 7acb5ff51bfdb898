"""Plan consecutive slices of a unit: the first with a full plan, the following ones with cheaper short plans.

A full plan reads all facts from the brokers. A short plan reads only the log start and log end, because the last slice
that this run committed defines where the next one starts. A plan may be wrong about the group without losing or
repeating records: the writer compares the group's offsets before it commits. A full plan every few seconds checks what
short plans omit (the topic id and the group's members).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import (
    ForeignMemberError,
    KpipeError,
    LostRangeError,
    OffsetConflictError,
    OffsetsPendingError,
    OffsetsVanishedError,
    TerminalError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.admin.groups import CommittedOffset
from kpipe_platform.kafka.admin.topics import TopicDescription, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition, read_watermarks
from kpipe_platform.kafka.model.slices import Slice, dotted_id, lane_ids, transactional_id
from kpipe_platform.kafka.transactions.lanes import settle, unsettled
from kpipe_platform.kafka.transactions.slice import abort_lingering
from kpipe_platform.slices.plan.facts import gather_facts
from kpipe_platform.slices.plan.ranges import (
    RENEW_AFTER_MS,
    LastMaterialization,
    PartitionFacts,
    PlanPolicy,
    plan_slice,
)

logger = logging.getLogger(__name__)

ASK_ALL_EVERY_S = 5.0
"""Interval between full plans, seconds: the longest delay until a change that short plans omit is noticed. The offset
comparison in the writer usually detects it sooner."""

_REFUSALS = (ForeignMemberError, LostRangeError, OffsetsVanishedError, TopicNotFoundError, TopicRecreatedError)


def partitions_of(clients: Clients, topics: Iterable[KafkaTopic], numbers: Sequence[int] | None) -> list[Partition]:
    """Return the partitions with these numbers of each topic, or all partitions if `numbers` is None.

    Raises:
        ConfigError: A topic is not readable.
        TopicNotFoundError: A topic does not exist.
    """
    partitions = []
    for topic in topics:
        topic.require_readable()
        wanted: Iterable[int] = numbers or ()
        if numbers is None:
            wanted = range(describe_topics(clients, [topic.name])[topic.name].partitions)
        partitions += [(topic.name, number) for number in wanted]
    return partitions


def plan_next(
    clients: Clients,
    policy: PlanPolicy,
    partitions: Iterable[Partition],
    *,
    run_id: str,
    slice_id: str | None = None,
    last_materialization: Callable[[Partition], LastMaterialization | None] = lambda _: None,
) -> Slice:
    """Make a full plan of the next slice. Also settles lanes and aborts transactions that a dead run left unfinished.

    Args:
        clients: Clients of the source's cluster.
        policy: The plan's policy.
        partitions: Pairs of topic and partition number.
        run_id: Id of the run that takes the slice.
        slice_id: Id of the slice; None: generate a new one.
        last_materialization: Returns the last materialization of a partition that Dagster has recorded.

    Raises:
        KpipeError: One of the errors of ``kpipe_platform.slices.plan.ranges.plan_range``.
    """
    wanted, name = list(partitions), slice_id or _new_id()
    try:
        facts = gather_facts(clients, policy, wanted, last_materialization)
    except OffsetsPendingError:
        # A run was killed after it added its offsets to a transaction and before it committed. The current owner of
        # the slice may abort that transaction; a run that is still alive is only fenced.
        ranges = [OffsetRange(topic, number, 0, 0) for topic, number in wanted]
        for own in (transactional_id(policy.group, ranges), dotted_id(policy.group, ranges)):
            for lingering in (own, *sorted(lane_ids(own, policy.lanes))):
                abort_lingering(clients.settings, lingering)
        facts = gather_facts(clients, policy, wanted, last_materialization)
    while unsettled(stands := {(f.topic, f.partition): f.committed for f in facts}):
        settle(clients.settings, policy.group, stands, run_id=run_id, slice_id=name)
        facts = gather_facts(clients, policy, wanted, last_materialization)
    return plan_slice(facts, policy, run_id=run_id, slice_id=name, now_ms=int(time.time() * 1000))


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


class SlicePlanner:
    """Plans consecutive slices of a unit. A planned slice counts as committed unless `failed` is called.

    Args:
        policy: The plans' policy.
        topics: The topics.
        numbers: Kafka partitions of each topic; None: all.
        run_id: Id of the run that takes the slices.
        last_materialization: Returns the last materialization of a partition that Dagster has recorded.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(
        self,
        policy: PlanPolicy,
        topics: Sequence[KafkaTopic],
        numbers: Sequence[int] | None,
        *,
        run_id: str,
        last_materialization: Callable[[Partition], LastMaterialization | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._topics = topics
        self._numbers = numbers
        self._run_id = run_id
        self._last_materialization = last_materialization
        self._clock = clock
        self._planned: Slice | None = None
        self._done: Slice | None = None
        # Dagster has not yet recorded a materialization of what this run committed.
        self._ends: dict[Partition, LastMaterialization] = {}
        self._is_short = False
        self._asked_all_at = self._renewed_at = clock()

    def next(self, clients: Clients) -> Slice:
        """Plan the next slice.

        Raises:
            KpipeError: The slice cannot be planned.
        """
        self._settle()
        done = self._done
        self._is_short = done is not None and self._clock() - self._asked_all_at < ASK_ALL_EVERY_S
        if done is not None and self._is_short:
            try:
                self._planned = self._plan_after(clients, done)
            except TerminalError:
                # The full plan raises a more precise error.
                self._is_short = False
            else:
                return self._planned
        asked_at = self._clock()
        self._planned = self._ask_all(clients)
        self._asked_all_at = asked_at
        return self._planned

    def failed(self, clients: Clients, error: Exception) -> None:
        """Record that the planned slice was not committed, or only in part. The next plan is a full plan.

        Raises:
            KpipeError: The plan was a short one, and a full plan finds the reason of the failure. The given error is
                the cause.
        """
        was_short, self._is_short, self._planned, self._done = self._is_short, False, None, None
        # Transient errors are retried with a new plan or state their reason. An offset conflict does not state it.
        unclear = isinstance(error, OffsetConflictError | TerminalError)
        if not was_short or not unclear:
            return
        try:
            self._ask_all(clients)
        except _REFUSALS as refusal:
            raise refusal from error
        except KpipeError as other:
            logger.debug("a full plan found no more precise reason for %s: %s", error, other)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the last slice. `has_new` needs their log ends."""
        self._settle()
        return [] if self._done is None else [(p.range.topic, p.range.partition) for p in self._done.ranges]

    def has_new(
        self, ends: Mapping[Partition, int] | None, described: Mapping[str, TopicDescription] | None = None
    ) -> bool:
        """Return whether to plan again: a log end moved, or another change needs a full plan.

        Args:
            ends: Log ends of at least `partitions`; None: the brokers did not respond. The next plan then retries as
                the policy defines, or raises the reason.
            described: The topic descriptions, if the poll requested them.
        """
        self._settle()
        done = self._done
        if done is None or ends is None:
            self._done = None
            return True
        moved = [ends[(p.range.topic, p.range.partition)] - p.range.end for p in done.ranges]
        # Do not plan again if the log end is before the offset only because of a known open transaction.
        known = [p.is_past_stable for p in done.ranges]
        if any(by > 0 or (by < 0 and not past) for by, past in zip(moved, known, strict=True)):
            return True
        if self._clock() - self._renewed_at >= RENEW_AFTER_MS / 1000:
            # Only a full plan renews offsets.
            self._renewed_at, self._done = self._clock(), None
            return True
        if described is not None and self._has_changed(done, described):
            self._done = None
            return True
        return False

    def _has_changed(self, done: Slice, described: Mapping[str, TopicDescription]) -> bool:
        """Return whether a topic was recreated, or its number of partitions changed."""
        partitions = sum(described[topic.name].partitions for topic in self._topics)
        recreated = any(described[p.range.topic].topic_id != p.topic_id for p in done.ranges)
        return recreated or (self._numbers is None and partitions != len(done.ranges))

    def _settle(self) -> None:
        """Mark the last planned slice as committed, unless it failed."""
        if self._planned is not None:
            planned, self._planned = self._planned, None
            self._committed(planned)

    def _committed(self, slice_: Slice) -> None:
        self._done = slice_
        if slice_.moves_offsets:
            self._renewed_at = self._clock()
        for planned in slice_.ranges:
            r = planned.range
            self._ends[(r.topic, r.partition)] = LastMaterialization(r.end, planned.topic_id)

    def _ask_all(self, clients: Clients) -> Slice:
        return plan_next(
            clients,
            self._policy,
            partitions_of(clients, self._topics, self._numbers),
            run_id=self._run_id,
            last_materialization=self._last,
        )

    def _last(self, topic_partition: Partition) -> LastMaterialization | None:
        return self._ends.get(topic_partition) or self._last_materialization(topic_partition)

    def _plan_after(self, clients: Clients, done: Slice) -> Slice:
        # Fencing costs one producer per stale id, and the first plan already fenced the lanes of earlier runs.
        policy = replace(self._policy, lanes=1)
        topic_partitions = [(planned.range.topic, planned.range.partition) for planned in done.ranges]
        watermarks = read_watermarks(clients, topic_partitions, policy.isolation)
        facts = [
            PartitionFacts(
                topic=planned.range.topic,
                partition=planned.range.partition,
                topic_id=planned.topic_id,
                watermarks=watermarks[topic_partition],
                committed=CommittedOffset(planned.range.end),
                partitions=planned.partitions,
            )
            for planned, topic_partition in zip(done.ranges, topic_partitions, strict=True)
        ]
        return plan_slice(facts, policy, run_id=done.run_id, slice_id=_new_id())

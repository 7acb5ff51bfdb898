"""The consecutive slices of one run: planned cheaply after the first, and waited for when there is nothing new.

The first plan of a run asks the brokers everything (see ``kpipe_platform.slices.plan``). A slice that this run itself
has committed says where the next one begins; only the log's start and end are asked for it. The compare in the writer
stays the lock, so a plan may be wrong about the group: nothing is lost or repeated by that. What the short plan does
not look at (the topic's id, the group's members) is looked at every few seconds.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import (
    ForeignMemberError,
    KpipeError,
    LostRangeError,
    OffsetConflictError,
    OffsetsVanishedError,
    TerminalError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.io_managers.pipeline import Pipeline
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.groups import CommittedOffset
from kpipe_platform.kafka.offsets import Partition, watermarks
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.kafka.topics import describe_topics
from kpipe_platform.slices.plan.log_ends import Lookout
from kpipe_platform.slices.plan.ranges import RENEW_AFTER_MS, LastMaterialization, PartitionFacts, plan_slice

logger = logging.getLogger(__name__)

# What a short plan does not look at is noticed this much later at most, by the compare mostly sooner.
ASK_ALL_EVERY_S = 5.0
_REFUSALS = (ForeignMemberError, LostRangeError, OffsetsVanishedError, TopicNotFoundError, TopicRecreatedError)


class Follower:
    """Plans the slices of some Kafka partitions that are taken together, one after another.

    Args:
        pipeline: The step's resources.
        topics: The topics.
        numbers: Kafka partitions of each; None: all.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        topics: Sequence[KafkaTopic],
        numbers: Sequence[int] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._topics = topics
        self._numbers = numbers
        self._clock = clock
        self._done: Slice | None = None
        # What this run has committed is not yet a materialisation that Dagster holds.
        self._left: dict[Partition, LastMaterialization] = {}
        self._is_short = False
        self._watched: set[Partition] = set()
        self._asked_all_at = clock()
        self._described_at = clock()
        self._renewed_at = clock()

    # Plan

    def plan(self, clients: Clients) -> Slice:
        """The next slice.

        Raises:
            KpipeError: One of the plan's refusals.
        """
        done = self._done
        self._is_short = done is not None and self._clock() - self._asked_all_at < ASK_ALL_EVERY_S
        if done is not None and self._is_short:
            try:
                return self._after(clients, done)
            except TerminalError:
                # The long plan says more of it.
                self._is_short = False
        asked_at = self._clock()
        slice_ = self._ask_all(clients)
        self._asked_all_at = self._described_at = asked_at
        return slice_

    def _ask_all(self, clients: Clients) -> Slice:
        return self._pipeline.plan(clients, self._topics, self._numbers, earlier=self._earlier)

    def _earlier(self, place: Partition) -> LastMaterialization | None:
        return self._left.get(place) or self._pipeline.step.earlier(place)

    def _after(self, clients: Clients, done: Slice) -> Slice:
        pipeline = self._pipeline
        # Each id to fence costs a producer; what an earlier run's lanes left is fenced by the first plan.
        policy = replace(pipeline.source.policy(done.group, pipeline.scaling), lanes=1)
        places = [(planned.range.topic, planned.range.partition) for planned in done.ranges]
        marks = watermarks(clients, places, policy.isolation)
        facts = [
            PartitionFacts(
                topic=planned.range.topic,
                partition=planned.range.partition,
                topic_id=planned.topic_id,
                marks=marks[place],
                committed=CommittedOffset(planned.range.end),
                partitions=planned.partitions,
            )
            for planned, place in zip(done.ranges, places, strict=True)
        ]
        return plan_slice(facts, policy, run_id=done.run_id, slice_id=uuid.uuid4().hex[:16])

    def committed(self, slice_: Slice) -> None:
        """The planned slice is committed, all of it."""
        self._done = slice_
        if slice_.moves_offsets:
            self._renewed_at = self._clock()
        for planned in slice_.ranges:
            r = planned.range
            self._left[(r.topic, r.partition)] = LastMaterialization(r.end, planned.topic_id)

    def failed(self, clients: Clients, error: Exception) -> None:
        """The planned slice is not committed, or not all of it: the next plan asks everything.

        Raises:
            KpipeError: What the long plan would have refused, where the plan was a short one; caused by the error.
        """
        was_short, self._is_short, self._done = self._is_short, False, None
        # What is transient is planned again, or says what it is by itself; an offset that moved does not say why.
        unclear = isinstance(error, OffsetConflictError | TerminalError)
        if not was_short or not unclear:
            return
        try:
            self._ask_all(clients)
        except _REFUSALS as refusal:
            raise refusal from error
        except KpipeError as other:
            logger.debug("why %s failed is not known better: %s", error, other)

    # Wait

    def has_new(self, clients: Clients, lookout: Lookout) -> bool:
        """Whether the log's end has moved since the last slice, or something else is to be looked at by a plan."""
        done = self._done
        if done is None:
            return True
        try:
            self._watched |= {(p.range.topic, p.range.partition) for p in done.ranges}
            ends = lookout.ends(self._watched)
            moved = [ends[(p.range.topic, p.range.partition)] - p.range.end for p in done.ranges]
            # An end before the offset that an open transaction explained already is no reason to plan again.
            known = [p.is_past_stable for p in done.ranges]
            if any(by > 0 or (by < 0 and not past) for by, past in zip(moved, known, strict=True)):
                return True
            if self._clock() - self._renewed_at >= RENEW_AFTER_MS / 1000:
                # Only a plan that asks everything finds that an offset is to be renewed.
                self._renewed_at, self._done = self._clock(), None
                return True
            return self._has_changed(clients, done)
        except KpipeError as error:
            # The plan asks again, as often as the policy says, or says what is wrong.
            logger.warning("cannot look for new records: %s", error)
            self._done = None
            return True

    def _has_changed(self, clients: Clients, done: Slice) -> bool:
        """Whether a topic was created anew or has more partitions; asked every few seconds."""
        if self._clock() - self._described_at < ASK_ALL_EVERY_S:
            return False
        self._described_at = self._clock()
        described = describe_topics(clients, [topic.name for topic in self._topics])
        recreated = any(described[p.range.topic].topic_id != p.topic_id for p in done.ranges)
        partitions = sum(found.partitions for found in described.values())
        if recreated or (self._numbers is None and partitions != len(done.ranges)):
            self._done = None
            return True
        return False

    def leave(self, lookout: Lookout) -> None:
        """Wait no more."""
        lookout.leave(self._watched)

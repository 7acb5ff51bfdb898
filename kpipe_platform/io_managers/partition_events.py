"""What a run tells of the Kafka partitions that it works on: started, then completed or failed, once each.

However many slices a run takes of a partition, and however often it tries, the change is told once. Work goes on in
threads, and the log takes events from any; observations are stored in the step's own thread, which looks for them
while it waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import dagster as dg

from kpipe_platform.io_managers.step import Step, StepId
from kpipe_platform.kafka.commit_metadata import SliceCounts
from kpipe_platform.kafka.offsets import OffsetRange, Partition
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind, log_events, shortened
from kpipe_platform.partitions.observations import observations_of
from kpipe_platform.slices.report import SliceReport

logger = logging.getLogger(__name__)

Observe = Callable[[dg.AssetObservation], object]
"""Stores an observation; called in the step's thread."""


class StepEvents:
    """The partition events of one step.

    Args:
        step: The step.
        topics: The topics that it reads.
        observe: Stores observations; None: events are logged only.
    """

    def __init__(self, step: Step, topics: Sequence[str], observe: Observe | None) -> None:
        self._step = step
        self._topics = list(topics)
        self._observe = observe
        self._waiting: SimpleQueue[list[PartitionEvent]] = SimpleQueue()
        self._lock = threading.Lock()
        self._watches: list[Watch] = []

    def watch(self, numbers: Sequence[int] | None) -> Watch:
        """Watch the work on some Kafka partitions that are taken together; None: on all of them."""
        made = Watch(self, self._topics, numbers)
        with self._lock:
            self._watches.append(made)
        return made

    def tell(self, kind: PartitionEventKind, found: Iterable[Found], reason: str | None = None) -> None:
        """Tell of one change; in any thread."""
        step = self._step
        events = [
            PartitionEvent(
                kind,
                f.topic,
                f.partition,
                step.group,
                asset=step.asset_key.to_user_string(),
                run_id=step.run_id,
                start=None if f.range is None else f.range.start,
                end=None if f.range is None else f.range.end,
                counts=f.counts,
                reason=reason,
            )
            for f in found
        ]
        log_events(events)
        if self._observe is not None and events:
            self._waiting.put(events)

    def deliver(self) -> None:
        """Store the observations that wait, in the step's thread. Raises nothing: the run does not depend on it."""
        while self._observe is not None:
            try:
                events = self._waiting.get_nowait()
            except Empty:
                return
            try:
                partitioned = self._step.partition_keys is not None
                for observation in observations_of(events, self._step.asset_key, partitioned=partitioned):
                    self._observe(observation)
            except Exception:
                logger.exception("cannot store an observation of %s", self._step.asset_key.to_user_string())

    def close(self, failure: str | None = None) -> None:
        """The step ends: work that was begun and of which nothing was heard since has failed.

        Args:
            failure: Why the step ends early. Where no partition was begun for it, all of the step's have failed.
        """
        with self._lock:
            watches = list(self._watches)
        if failure is not None and not watches:
            keys = self._step.partition_keys
            numbers = [None] if keys is None else [[int(key)] for key in keys if key.isdecimal()]
            watches = [self.watch(number) for number in numbers]
            for watch in watches:
                watch.ended(failure)
        for watch in watches:
            watch.cut_off(failure or "the run ended")
        self.deliver()


@dataclass(frozen=True)
class Found:
    """One partition of a change.

    Args:
        topic: Topic.
        partition: Kafka partition; None: all.
        range: The offsets concerned.
        counts: Counted records by name.
    """

    topic: str
    partition: int | None
    range: OffsetRange | None = None
    counts: dict[str, int] = field(default_factory=dict)


class Watch:
    """Follows the slices of some Kafka partitions that one run takes together, and tells their start and their end.

    Args:
        events: Takes what is told.
        topics: The topics.
        numbers: Kafka partitions; None: all.
    """

    def __init__(self, events: StepEvents, topics: Sequence[str], numbers: Sequence[int] | None) -> None:
        self._events = events
        self._topics = topics
        self._numbers = numbers
        # A step that is terminated ends what its threads may be about to end.
        self._lock = threading.Lock()
        self._slice: Slice | None = None
        self._starts: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._totals: dict[Partition, SliceCounts] = {}
        self._counted_output = True
        self._over = False

    def planned(self, slice_: Slice) -> None:
        """The next slice is known. A partition without anything to read is not told of."""
        with self._lock:
            self._slice = slice_
            new = [
                p.range
                for p in slice_.ranges
                if not p.range.is_empty and (p.range.topic, p.range.partition) not in self._starts
            ]
            self._starts |= {(r.topic, r.partition): r.start for r in new}
            if not self._over:
                self._events.tell(PartitionEventKind.STARTED, [Found(r.topic, r.partition, r) for r in new])

    def done(self, report: SliceReport) -> None:
        """A slice, or a part of one, is committed."""
        with self._lock:
            self._counted_output = self._counted_output and report.counted_output
            for planned, counts in zip(report.slice.ranges, report.counts, strict=True):
                place = (planned.range.topic, planned.range.partition)
                self._totals[place] = self._totals.get(place, SliceCounts()) + counts
            self._ends |= {(p.range.topic, p.range.partition): p.range.end for p in report.slice.ranges}

    def ended(self, failure: str | None = None) -> None:
        """The run takes no further slice here; because of the failure, where there is one."""
        with self._lock:
            if self._over:
                return
            self._over = True
            failed = [] if failure is None else self._failed()
            places = {(f.topic, f.partition) for f in failed}
            completed = [
                Found(*place, OffsetRange(*place, start, self._ends.get(place, start)), self._counts(place))
                for place, start in self._starts.items()
                if place not in places
            ]
            self._events.tell(PartitionEventKind.COMPLETED, completed)
            self._events.tell(PartitionEventKind.FAILED, failed, failure)

    def cut_off(self, why: str) -> None:
        """The step ends before the work was heard to."""
        with self._lock:
            begun = bool(self._starts)
        if begun:
            self.ended(why)

    def _failed(self) -> list[Found]:
        """What the last slice has not committed; all that was begun, where its plan failed."""
        ranges = [p.range for p in self._slice.ranges] if self._slice is not None else []
        left = [
            OffsetRange(r.topic, r.partition, max(r.start, self._ends.get((r.topic, r.partition), r.start)), r.end)
            for r in ranges
            if self._ends.get((r.topic, r.partition), r.start) < r.end
        ]
        if left:
            return [Found(r.topic, r.partition, r, self._counts((r.topic, r.partition))) for r in left]
        if self._starts:
            return [Found(*place, None, self._counts(place)) for place in self._starts]
        numbers: Sequence[int | None] = [None] if self._numbers is None else self._numbers
        return [Found(topic, number) for topic in self._topics for number in numbers]

    def _counts(self, place: Partition) -> dict[str, int]:
        """Counted records that were committed here; none where nothing was."""
        total = self._totals.get(place)
        if total is None:
            return {}
        written = {"written": total.written} if self._counted_output else {}
        return {"read": total.read, **written, "dead_letters": total.dead_lettered, "skipped": total.skipped}


def why_failed(instance: dg.DagsterInstance, step: StepId) -> str:
    """Why a step failed between its inputs and its output, as the events say that Dagster holds of it."""
    run_id, step_key, attempt = step
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_UP_FOR_RETRY}
    records = instance.get_records_for_run(run_id, of_type=kinds).records
    events = [record.event_log_entry.dagster_event for record in records]
    data: Any = [event.event_specific_data for event in events if event is not None and event.step_key == step_key]
    error = data[attempt - 1].error if len(data) >= attempt else None
    if error is None:
        return "the step failed before its output was stored"
    # Dagster's own error says which step failed; what it was caused by is the function's.
    while error.cause is not None:
        error = error.cause
    return shortened(error.message.strip())

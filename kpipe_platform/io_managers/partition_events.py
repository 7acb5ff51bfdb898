"""Partition events of a run: each Kafka partition is started once, then completed or failed.

This holds for any number of slices and attempts per partition. Threads process the slices and log the events. If the
asset enables observations, the step's own thread stores them while it waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import dagster as dg

from kpipe_platform.io_managers.step import Step, StepId
from kpipe_platform.kafka.model.commit_metadata import SliceCounts
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.model.slices import Slice
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
        observe: Stores observations; None: events are only logged.
    """

    def __init__(self, step: Step, topics: Sequence[str], observe: Observe | None) -> None:
        self._step = step
        self.event = partial(
            PartitionEvent, group=step.group, asset=step.asset_key.to_user_string(), run_id=step.run_id
        )
        """Creates an event of this step from the kind, the topic, the partition and further fields."""
        self._topics = list(topics)
        self._observe = observe
        self._waiting: SimpleQueue[list[PartitionEvent]] = SimpleQueue()
        self._lock = threading.Lock()
        self._watches: list[Watch] = []

    def watch(self, numbers: Sequence[int] | None) -> Watch:
        """Create a watch for Kafka partitions that are processed together; None: all partitions."""
        made = Watch(self, self._topics, numbers)
        with self._lock:
            self._watches.append(made)
        return made

    def emit(self, events: list[PartitionEvent]) -> None:
        """Log the events of one change and queue them for observation. Any thread may call it."""
        log_events(events)
        if self._observe is not None and events:
            self._waiting.put(events)

    def deliver(self) -> None:
        """Store the queued observations, in the step's thread. Logs errors, because the run does not depend on them."""
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
                logger.exception("cannot store an observation of asset %s", self._step.asset_key.to_user_string())

    def close(self, failure: str | None = None) -> None:
        """End the step: mark work that started and did not end as failed.

        Args:
            failure: Why the step ends early; None: it succeeded. If no watch exists yet, all partitions of the step are
                marked as failed.
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


class Watch:
    """Follows the slices of some Kafka partitions that one run processes together, and reports their start and end.

    Args:
        events: Takes the events.
        topics: The topics.
        numbers: Kafka partitions; None: all.
    """

    def __init__(self, events: StepEvents, topics: Sequence[str], numbers: Sequence[int] | None) -> None:
        self._events = events
        self._topics = topics
        self._numbers = numbers
        # A terminated step may end a partition at the same time as one of its threads.
        self._lock = threading.Lock()
        self._slice: Slice | None = None
        self._starts: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._totals: dict[Partition, SliceCounts] = {}
        self._counted_output = True
        self._over = False

    def planned(self, slice_: Slice) -> None:
        """Record the next slice. A partition without new records has no event."""
        with self._lock:
            self._slice = slice_
            new = [
                p.range
                for p in slice_.ranges
                if not p.range.is_empty and (p.range.topic, p.range.partition) not in self._starts
            ]
            self._starts |= {(r.topic, r.partition): r.start for r in new}
            if not self._over:
                started = partial(self._events.event, PartitionEventKind.STARTED)
                self._events.emit([started(r.topic, r.partition, start=r.start, end=r.end) for r in new])

    def done(self, report: SliceReport) -> None:
        """Record a committed slice, or a committed part of one."""
        with self._lock:
            self._counted_output = self._counted_output and report.counted_output
            for planned, counts in zip(report.slice.ranges, report.counts, strict=True):
                place = (planned.range.topic, planned.range.partition)
                self._totals[place] = self._totals.get(place, SliceCounts()) + counts
            self._ends |= {(p.range.topic, p.range.partition): p.range.end for p in report.slice.ranges}

    def ended(self, failure: str | None = None) -> None:
        """Report the end of these partitions: completed, or failed if a failure is given."""
        with self._lock:
            if self._over:
                return
            self._over = True
            failed = [] if failure is None else self._failed(failure)
            unfinished = {(event.topic, event.partition) for event in failed}
            completed = partial(self._events.event, PartitionEventKind.COMPLETED)
            self._events.emit(
                [
                    completed(*place, start=start, end=self._ends.get(place, start), counts=self._counts(place))
                    for place, start in self._starts.items()
                    if place not in unfinished
                ]
            )
            self._events.emit(failed)

    def cut_off(self, why: str) -> None:
        """Report started work as failed if the step ends before the work does."""
        with self._lock:
            begun = bool(self._starts)
        if begun:
            self.ended(why)

    def _failed(self, reason: str) -> list[PartitionEvent]:
        """Return failed events for the uncommitted ranges of the last slice; for all partitions if there are none."""
        failed = partial(self._events.event, PartitionEventKind.FAILED, reason=reason)
        left = []
        for planned in self._slice.ranges if self._slice is not None else ():
            place, end = (planned.range.topic, planned.range.partition), planned.range.end
            start = max(planned.range.start, self._ends.get(place, 0))
            if start < end:
                left.append(failed(*place, start=start, end=end, counts=self._counts(place)))
        if left:
            return left
        if self._starts:
            return [failed(*place, counts=self._counts(place)) for place in self._starts]
        numbers: Sequence[int | None] = [None] if self._numbers is None else self._numbers
        return [failed(topic, number) for topic in self._topics for number in numbers]

    def _counts(self, place: Partition) -> dict[str, int]:
        """Return the counts of committed records; empty if nothing was committed."""
        total = self._totals.get(place)
        if total is None:
            return {}
        written = {"written": total.written} if self._counted_output else {}
        return {"read": total.read, **written, "dead_letters": total.dead_lettered, "skipped": total.skipped}


def why_failed(instance: dg.DagsterInstance, step: StepId) -> str:
    """Return from Dagster's events why a step failed between its inputs and its output."""
    run_id, step_key, attempt = step
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.STEP_UP_FOR_RETRY}
    records = instance.get_records_for_run(run_id, of_type=kinds).records
    events = [record.event_log_entry.dagster_event for record in records]
    data: Any = [event.event_specific_data for event in events if event is not None and event.step_key == step_key]
    error = data[attempt - 1].error if len(data) >= attempt else None
    if error is None:
        return "the step failed before its output was stored"
    # Dagster's own error only names the failed step. Its innermost cause is the function's error.
    while error.cause is not None:
        error = error.cause
    return shortened(error.message.strip())

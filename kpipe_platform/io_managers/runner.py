"""Running a ``@kafka_asset``: consecutive slices of each Kafka partition, several partitions at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.deadletter import Retry
from kpipe_platform.errors import OffsetConflictError, PartitionsFailedError, TransientError
from kpipe_platform.io_managers.feed import StagedFeeds
from kpipe_platform.io_managers.partition_events import StepEvents, Watch
from kpipe_platform.io_managers.pipeline import Pipeline
from kpipe_platform.io_managers.report import describe
from kpipe_platform.io_managers.staged import SliceReport
from kpipe_platform.io_managers.stager import Stager, Store
from kpipe_platform.io_managers.target import Target, find_target
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.observability.events import reason_of
from kpipe_platform.policies.retry import Attempt
from kpipe_platform.spark.stage_notes import retry_of

logger = logging.getLogger(__name__)


@dataclass
class Taken:
    """What a run took of one Kafka partition, or of all of them together.

    Args:
        reports: The slices that are committed, in order.
        error: Why it stopped early; None when it did not.
    """

    reports: list[SliceReport]
    error: Exception | None = None


class FeedRunner:
    """Takes slices and writes them.

    Args:
        staged: The stage and its inputs.
        pipeline: The step's resources.
        events: Told of the partitions that are worked on.
        topic: Destination topic; None where ``store`` takes the output.
        store: The inner IO manager's store; None where the output goes to Kafka.
        clock: Monotonic seconds; injected for tests.
        sleep: Waits for seconds; injected for tests.
    """

    def __init__(
        self,
        staged: StagedFeeds,
        pipeline: Pipeline,
        events: StepEvents,
        *,
        topic: KafkaTopic | None,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._staged = staged
        self._pipeline = pipeline
        self._events = events
        self._topics = [feed.topic for feed in staged.feeds.values()]
        self._topic = topic
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._interruptible = pipeline.interruptible()
        self._interruptible.meanwhile = events.deliver

    def run_all(self, numbers: list[int] | None) -> Taken:
        """Slices over all the given Kafka partitions at once (None: over all of them), in one transaction each."""
        with self._pipeline.source.clients() as clients:
            target = find_target(self._pipeline, clients, self._topics, self._topic)
            return self._interruptible.run(lambda: self._watched(clients, target, numbers))

    def run_each(self, numbers: list[int]) -> Iterator[tuple[int, Taken]]:
        """Each Kafka partition by itself, as many at a time as the scaling allows.

        Yields:
            The partition with what was taken of it; where one fails, the others go on.
        """
        with self._pipeline.source.clients() as clients:
            target = find_target(self._pipeline, clients, self._topics, self._topic)
            # Started once, before the threads that would race for it.
            self._pipeline.engine.spark_session  # noqa: B018
            workers = min(self._pipeline.scaling.partitions_at_once, len(numbers))

            def take(number: int) -> tuple[int, Taken]:
                return number, self._watched(clients, target, [number])

            for future in self._interruptible.run_each([partial(take, number) for number in numbers], workers):
                yield future.result()

    def _watched(self, clients: Clients, target: Target, numbers: list[int] | None) -> Taken:
        watch = self._events.watch(numbers)
        taken = self._consecutive(clients, target, numbers, watch)
        error = taken.error
        if error is not None and self._interruptible.is_stopped:
            # What a terminated run's Spark jobs say of their end is not why it ended.
            watch.ended("the run was terminated")
        else:
            watch.ended(None if error is None else reason_of(error))
        return taken

    def _consecutive(self, clients: Clients, target: Target, numbers: list[int] | None, watch: Watch) -> Taken:
        limits = self._staged.limits
        began = self._clock()
        taken = Taken([])
        slices = 0
        while True:
            slice_reports: list[SliceReport] = []

            def done(report: SliceReport, reports: list[SliceReport] = slice_reports) -> None:
                reports.append(report)
                watch.done(report)

            try:
                self._next(clients, target, numbers, watch.planned, done)
            except Exception as error:  # noqa: BLE001  # the partition's, told beside what it has done
                taken.reports += slice_reports
                taken.error = error
                return taken
            last = slice_reports[-1]
            # A run that catches up ends with the slice that did it, not with an empty one after it.
            if slices and last.slice.is_empty:
                return taken
            taken.reports += slice_reports
            slices += 1
            caught_up = last.slice.is_empty or last.lag == 0
            if caught_up or (limits.max_slices is not None and slices >= limits.max_slices):
                return taken
            if limits.max_duration_s is not None and self._clock() - began >= limits.max_duration_s:
                return taken

    def _next(
        self,
        clients: Clients,
        target: Target,
        numbers: list[int] | None,
        planned: Callable[[Slice], None],
        done: Callable[[SliceReport], None],
    ) -> None:
        """The next slice, tried again after transient failures as the part that failed says."""
        failed: list[Attempt] = []
        began = self._clock()
        while True:
            # After an outage an old admin client may not find the group's coordinator again.
            fresh = self._pipeline.source.clients() if failed else nullcontext(clients)
            try:
                with fresh as asked:
                    self._one(asked, target, numbers, planned, done, tuple(map(retry_of, failed)))
            except TransientError as error:
                self._interruptible.check()
                # Another run is at work on the partition: trying again would only fence it.
                policy = None
                if not isinstance(error, OffsetConflictError):
                    policy = self._pipeline.policies.retry(error.attributes.get("part"))
                number = len(failed) + 1
                delay = policy.next_delay_s(number, self._clock() - began, error) if policy is not None else None
                if delay is None:
                    raise
                logger.warning("attempt %s failed and is made again in %.1f s: %s", number, delay, error)
                failed.append(Attempt.of(number, error, delay, int(time.time() * 1000)))
                self._sleep(delay)
            else:
                return

    def _one(
        self,
        clients: Clients,
        target: Target,
        numbers: list[int] | None,
        planned: Callable[[Slice], None],
        done: Callable[[SliceReport], None],
        retries: tuple[Retry, ...],
    ) -> None:
        began = self._clock()
        started_ms = int(time.time() * 1000)
        pipeline = self._pipeline
        try:
            slice_ = pipeline.plan(clients, self._topics, numbers)
        except TransientError as error:
            error.attributes.setdefault("part", "source")
            raise
        planned_s = self._clock() - began
        planned(slice_)

        def finished(report: SliceReport) -> None:
            nonlocal began, planned_s
            now = self._clock()
            report = replace(report, duration_s=now - began, steps_s={**report.steps_s, "plan": planned_s})
            # The parts of an isolated slice share its plan.
            began, planned_s = now, 0.0
            logger.info("slice done: %s", dict(describe(report)))
            done(report)

        self._interruptible.check()
        if slice_.is_empty:
            finished(pipeline.store_start(slice_))
            return
        stager = Stager(
            self._staged,
            pipeline,
            target,
            self._store,
            planned=(started_ms, int(planned_s * 1000)),
            retries=retries,
            clock=self._clock,
            sleep=self._sleep,
        )
        with self._interruptible.at_work(slice_):
            stager.take(slice_, finished)


def partitions_failed(failed: Mapping[int, Exception], done: list[int]) -> Exception:
    """The error of a range run of which some partitions failed."""
    if len(failed) == 1 and not done:
        return next(iter(failed.values()))
    listed = "\n".join(f"    partition {number}: {error}" for number, error in sorted(failed.items()))
    msg = f"{len(failed)} of {len(failed) + len(done)} partitions failed, the others are committed:\n{listed}"
    return PartitionsFailedError(
        msg, fix="mend the cause and run the failed partitions again", errors=dict(failed), done=done
    )

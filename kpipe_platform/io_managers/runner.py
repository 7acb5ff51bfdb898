"""Running a ``@kafka_asset``: consecutive slices of each Kafka partition, several partitions at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.deadletter import Retry
from kpipe_platform.errors import OffsetConflictError, TransientError
from kpipe_platform.io_managers.feed import StagedFeeds
from kpipe_platform.io_managers.follower import Follower
from kpipe_platform.io_managers.latency import CommitLatency
from kpipe_platform.io_managers.partition_events import StepEvents, Watch
from kpipe_platform.io_managers.pipeline import Pipeline
from kpipe_platform.io_managers.report import describe
from kpipe_platform.io_managers.staged import SliceReport
from kpipe_platform.io_managers.stager import Stager, Store
from kpipe_platform.io_managers.taken import Taken
from kpipe_platform.io_managers.tally import Tally
from kpipe_platform.io_managers.target import Target, find_target
from kpipe_platform.io_managers.turns import Turns
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.kafka.stamps import StampReader
from kpipe_platform.observability.events import reason_of
from kpipe_platform.policies.retry import Attempt
from kpipe_platform.slices.plan.log_ends import LOOK_EVERY_S, Lookout
from kpipe_platform.spark.stage_notes import retry_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Shared:
    """What the threads of a run share.

    Args:
        clients: The source's cluster.
        target: Where outputs and dead letters go.
        lookout: Looks for new records.
        turns: Who works, and who waits.
    """

    clients: Clients
    target: Target
    lookout: Lookout
    turns: Turns


class FeedRunner:
    """Takes slices and writes them.

    Args:
        staged: The stage and its inputs.
        pipeline: The step's resources.
        events: Told of the partitions that are worked on.
        topic: Destination topic; None where ``store`` takes the output.
        store: The inner IO manager's store; None where the output goes to Kafka.
        found: Called with the target when it is found, before any slice is taken.
        clock: Monotonic seconds; injected for tests.
        sleep: Waits for seconds; by default no longer than until the run is terminated. Injected for tests.
    """

    def __init__(
        self,
        staged: StagedFeeds,
        pipeline: Pipeline,
        events: StepEvents,
        *,
        topic: KafkaTopic | None,
        store: Store | None = None,
        found: Callable[[Target], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._staged = staged
        self._pipeline = pipeline
        self._events = events
        self._topics = [feed.topic for feed in staged.feeds.values()]
        self._topic = topic
        self._store = store
        self._found = found
        self._clock = clock
        self._taken: dict[int | None, Taken] = {}
        self._interruptible = pipeline.interruptible()
        self._sleep = sleep or self._interruptible.sleep
        self._interruptible.meanwhile = events.deliver

    def run_all(self, numbers: list[int] | None) -> Taken:
        """Slices over all the given Kafka partitions at once (None: over all of them), in one transaction each."""
        with self._shared(1) as shared:
            if self._staged.limits.linger_s is not None:
                # The first record that comes is not to wait for Spark, nor a termination.
                self._pipeline.engine.spark_session  # noqa: B018
            return self._interruptible.run(lambda: self._watched(shared, numbers))

    def run_each(self, numbers: list[int]) -> Iterator[tuple[int, Taken]]:
        """Each Kafka partition by itself, as many at a time as the scaling allows.

        A partition that waits for new records takes no place. With ``linger_s`` the others take turns slice by slice,
        so that one that is never caught up does not hold them back.

        Yields:
            The partition with what was taken of it; where one fails, the others go on.
        """
        at_once = min(self._pipeline.scaling.partitions_at_once, len(numbers))
        with self._shared(at_once) as shared:
            # Started once, before the threads that would race for it.
            self._pipeline.engine.spark_session  # noqa: B018
            workers = at_once if self._staged.limits.linger_s is None else len(numbers)

            def take(number: int) -> tuple[int, Taken]:
                return number, self._watched(shared, [number])

            for future in self._interruptible.run_each([partial(take, number) for number in numbers], workers):
                yield future.result()

    @property
    def taken(self) -> dict[int | None, Taken]:
        """What was taken until now, by Kafka partition; under None where all are taken together."""
        return dict(self._taken)

    @contextmanager
    def _shared(self, at_once: int) -> Iterator[_Shared]:
        clients = self._pipeline.source.clients()
        try:
            target = find_target(self._pipeline, clients, self._topics, self._topic)
            self._found(target)
            lookout = Lookout(clients, self._pipeline.source.isolation, clock=self._clock)
            yield _Shared(clients, target, lookout, Turns(at_once))
        finally:
            self._interruptible.after_work(clients.close)

    def _watched(self, shared: _Shared, numbers: list[int] | None) -> Taken:
        watch = self._events.watch(numbers)
        taken = self._taken[numbers[0] if numbers else None] = Taken()
        with ExitStack() as stack:
            latency = None
            if self._staged.limits.linger_s is not None:
                source = self._pipeline.source
                reader = StampReader(source.connection.settings, self._pipeline.step.group, source.isolation)
                latency = stack.enter_context(CommitLatency(reader))
            follower = Follower(self._pipeline, self._topics, numbers, clock=self._clock)
            stack.callback(follower.leave, shared.lookout)
            try:
                self._consecutive(shared, follower, watch, taken, latency)
            except Exception as error:  # noqa: BLE001  # the partition's, told beside what it has done
                taken.error = error
        error_ = taken.error
        if error_ is not None and self._interruptible.is_stopped:
            # What a terminated run's Spark jobs say of their end is not why it ended.
            watch.ended("the run was terminated")
        else:
            watch.ended(None if error_ is None else reason_of(error_))
        return taken

    def _consecutive(
        self, shared: _Shared, follower: Follower, watch: Watch, taken: Taken, latency: CommitLatency | None
    ) -> None:
        limits = self._staged.limits
        end = limits.end_of(self._clock())
        tally = taken.tally
        slices = 0
        quiet_since: float | None = None
        while True:
            reports: list[SliceReport] = []
            # A backlog's latency says how long nobody ran, not how fast the run is.
            follows = latency if quiet_since is not None else None

            def planned(slice_: Slice, follows: CommitLatency | None = follows) -> None:
                watch.planned(slice_)
                if follows is not None and not slice_.is_empty:
                    follows.planned(slice_)

            def done(report: SliceReport, reports: list[SliceReport] = reports) -> None:
                reports.append(report)
                watch.done(report)

            try:
                with shared.turns.one(self._interruptible.check):
                    slice_ = self._next(shared, follower, planned, done)
            except Exception:
                for report in reports:
                    tally.add(report)
                raise
            if follows is not None:
                tally.latencies.add(follows.committed())
            # A run that catches up ends with the slice that did it, not with an empty one after it; one that lost
            # offsets, or the group's own, says so though nothing is left to read.
            if not slice_.is_empty or not tally.slices or any(p.lost or p.resumed for p in slice_.ranges):
                for report in reports:
                    tally.add(report)
            slices += not slice_.is_empty
            if limits.are_reached(slices) or self._clock() >= end:
                return
            if any(planned_.backlog for planned_ in slice_.ranges):
                continue
            if limits.linger_s is None:
                return
            if quiet_since is None or any(report.total.read for report in reports):
                quiet_since = self._clock()
            if not self._await_new(shared, follower, min(quiet_since + limits.linger_s, end)):
                return

    def _await_new(self, shared: _Shared, follower: Follower, until: float) -> bool:
        """Wait for new records; False where none came until then, or the run is terminated."""
        while not self._interruptible.is_stopped:
            if follower.has_new(shared.clients, shared.lookout):
                return True
            left_s = until - self._clock()
            if left_s <= 0:
                return False
            self._sleep(min(LOOK_EVERY_S, left_s))
        return False

    def _next(
        self,
        shared: _Shared,
        follower: Follower,
        planned: Callable[[Slice], None],
        done: Callable[[SliceReport], None],
    ) -> Slice:
        """The next slice, tried again after transient failures as the part that failed says."""
        failed: list[Attempt] = []
        began = self._clock()
        while True:
            # After an outage an old admin client may not find the group's coordinator again.
            fresh = self._pipeline.source.clients() if failed else nullcontext(shared.clients)
            try:
                with fresh as asked:
                    return self._one(asked, shared.target, follower, planned, done, tuple(map(retry_of, failed)))
            except TransientError as error:
                self._interruptible.check()
                # Another run is at work on the partition: trying again would only fence it.
                policy = None
                if not isinstance(error, OffsetConflictError):
                    policy = self._pipeline.policies.retry(error.part)
                number = len(failed) + 1
                delay = policy.next_delay_s(number, self._clock() - began, error) if policy is not None else None
                if delay is None:
                    raise
                logger.warning("attempt %s failed and is made again in %.1f s: %s", number, delay, error)
                failed.append(Attempt.of(number, error, delay, int(time.time() * 1000)))
                self._sleep(delay)
                self._interruptible.check()

    def _one(
        self,
        clients: Clients,
        target: Target,
        follower: Follower,
        planned: Callable[[Slice], None],
        done: Callable[[SliceReport], None],
        retries: tuple[Retry, ...],
    ) -> Slice:
        began = self._clock()
        started_ms = int(time.time() * 1000)
        pipeline = self._pipeline
        try:
            slice_ = follower.plan(clients)
        except TransientError as error:
            error.part = error.part or "source"
            raise
        planned_s = self._clock() - began
        planned(slice_)

        def finished(report: SliceReport) -> None:
            nonlocal began, planned_s
            now = self._clock()
            report = replace(report, duration_s=now - began, steps_s={**report.steps_s, "plan": planned_s})
            # The two parts of a slice whose lanes stopped share its plan.
            began, planned_s = now, 0.0
            logger.info("slice done: %s", dict(describe(Tally.of([report]))))
            done(report)

        self._interruptible.check()
        try:
            if slice_.is_empty:
                finished(pipeline.store_start(slice_))
            else:
                stager = Stager(
                    self._staged,
                    pipeline,
                    target,
                    self._store,
                    planned=(started_ms, int(planned_s * 1000)),
                    retries=retries,
                    check=self._interruptible.check,
                    tag_jobs=self._interruptible.tag_jobs,
                    clock=self._clock,
                    sleep=self._sleep,
                )
                with self._interruptible.at_work(slice_, pipeline.scaling.in_flight_per_partition):
                    stager.take(slice_, finished)
        except Exception as error:
            if not self._interruptible.is_stopped:
                follower.failed(clients, error)
            raise
        follower.committed(slice_)
        return slice_

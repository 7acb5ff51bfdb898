"""Run: schedule the slices of all units of a run.

The caller's thread tracks the state of each unit: ready, in progress, waiting for records, or finished. Worker threads
take the slices of ready units. A poll every 50 ms reads the log ends of all waiting units.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from kpipe_platform.codecs.topics import Destination
from kpipe_platform.kafka.client.calls import run_in_thread
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.read.samples import TimestampReader
from kpipe_platform.policies.actions import stops
from kpipe_platform.policies.faults import Component
from kpipe_platform.slices.plan.log_ends import POLL_INTERVAL_S, LogEndPoller, LogEnds
from kpipe_platform.slices.plan.planner import SlicePlanner
from kpipe_platform.slices.report import PartitionResult
from kpipe_platform.slices.run.events import RunEvent, TargetPrepared, UnitFinished
from kpipe_platform.slices.run.latency import CommitLatency
from kpipe_platform.slices.run.schedule import Action, Progress, after_slice, next_action
from kpipe_platform.slices.run.take import SliceResult, SliceTaker, UnitRun
from kpipe_platform.slices.run.workers import WAKE_UP_S, SliceWorkers
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.target import prepare_target
from kpipe_platform.slices.values import DeferredStage, Store, Unit
from kpipe_platform.slices.write.delivery import open_delivery


@dataclass(frozen=True)
class _Polled:
    """The log ends of waiting units."""

    units: list[UnitRun]
    found: LogEnds


class SliceRunner:
    """Takes slices and processes them.

    Args:
        stage: The stage and its inputs.
        settings: The run's settings.
        destination: Where outputs are written in Kafka; None if ``store`` takes the output.
        store: Stores outputs outside Kafka; None if outputs go to Kafka.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(
        self,
        stage: DeferredStage,
        settings: SliceSettings,
        destination: Destination | None,
        store: Store | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        isolates = stage.isolate and not stops(settings.policies.action(Component.STAGE))
        self._stage = replace(stage, isolate=isolates)
        self._settings = settings
        self._topics = [each.topic for each in stage.inputs.values()]
        self._destination = destination
        self._store = store
        self._clock = clock
        self._events: SimpleQueue[RunEvent | Future[Any]] = SimpleQueue()
        self._waiting: list[UnitRun] = []
        self.results: dict[int | None, PartitionResult] = {}
        """Results so far by Kafka partition. The key is None if one unit has all partitions."""

    def run(self, units: Sequence[Unit], handle: Callable[[RunEvent], None]) -> list[PartitionResult]:
        """Take slices of each unit separately, several units at a time.

        A unit that waits for new records uses no thread. With ``linger_s``, units take turns slice by slice, so that
        a unit that never catches up does not block the others. Otherwise, a unit finishes before the next one starts.

        Args:
            units: The units.
            handle: Called with each event, in this thread.

        Returns:
            The result of each unit. If one fails, the others continue.
        """
        settings = self._settings
        at_once = min(settings.parallelism.partitions_at_once, len(units))
        # One more thread for the poll.
        workers = SliceWorkers(lambda: settings.engine.spark_session, settings.source, at_once + 1)
        with ExitStack() as stack:
            clients = Clients(settings.source)
            stack.callback(lambda: workers.after_work(clients.close))
            target = prepare_target(settings, clients, self._topics, self._destination)
            handle(TargetPrepared(target))
            latency = self._open_latency()
            if latency is not None:
                stack.callback(_close, latency, workers)
            poller = LogEndPoller(clients, settings.policy.isolation, clock=self._clock)
            taker = SliceTaker(
                stage=self._stage,
                settings=settings,
                clients=clients,
                delivery=open_delivery(settings, target, self._store),
                workers=workers,
                latency=latency,
                put=self._events.put,
                clock=self._clock,
            )
            if self._lingers or any(unit.partition is not None for unit in units):
                # Create the session before the threads race for it. The first record and a termination must not wait
                # for it either.
                settings.engine.spark_session  # noqa: B018
            with workers:
                self._schedule([self._begin(unit) for unit in units], at_once, taker, poller, handle)
        return list(self.results.values())

    def undelivered(self) -> Iterator[RunEvent]:
        """Yield the events of an interrupted run that were not handled.

        A waiting unit is finished. A unit whose slice was still committed is finished if that slice was its last.
        """
        while (event := self._next_event(0)) is not None:
            answer: Any = event
            if isinstance(event, Future):
                answer = None if event.cancelled() or event.exception() else event.result()
            if isinstance(answer, SliceResult):
                if answer.error is None and self._after(answer) != "take":
                    yield UnitFinished(answer.unit.result)
            elif isinstance(answer, RunEvent):
                yield answer
        for unit in self._waiting:
            yield UnitFinished(unit.result)

    @property
    def _lingers(self) -> bool:
        return self._stage.limits.linger_s is not None

    def _open_latency(self) -> CommitLatency | None:
        if not self._lingers:
            return None
        policy = self._settings.policy
        return CommitLatency(TimestampReader(self._settings.source, policy.group, policy.isolation))

    def _begin(self, unit: Unit) -> UnitRun:
        settings = self._settings
        planner = SlicePlanner(
            settings.policy,
            self._topics,
            None if unit.partition is None else [unit.partition],
            run_id=settings.run.run_id,
            last_materialization=settings.run.last_materialization,
            clock=self._clock,
        )
        result = self.results[unit.partition] = PartitionResult(unit)
        return UnitRun(planner, result, Progress(self._clock()) if self._lingers else None)

    def _schedule(
        self,
        units: Sequence[UnitRun],
        at_once: int,
        taker: SliceTaker,
        poller: LogEndPoller,
        handle: Callable[[RunEvent], None],
    ) -> None:
        ready, waiting = deque(units), self._waiting
        working, is_polling, poll_at = 0, False, self._clock()

        def put(unit: UnitRun, action: Action) -> None:
            if action == "finish":
                handle(UnitFinished(unit.result))
            elif action == "wait":
                waiting.append(unit)
            elif self._lingers:
                ready.append(unit)
            else:
                ready.appendleft(unit)

        while ready or waiting or working:
            while ready and working < at_once:
                unit = ready.popleft()
                unit.progress = unit.progress or Progress(self._clock())
                self._submit(taker.workers, partial(taker.take, unit))
                working += 1
            if waiting and not is_polling and self._clock() >= poll_at:
                self._submit(taker.workers, partial(_poll, poller, list(waiting)))
                is_polling, poll_at = True, self._clock() + POLL_INTERVAL_S
            poll_in_s = poll_at - self._clock() if waiting and not is_polling else WAKE_UP_S
            event = self._next_event(min(max(poll_in_s, 0), WAKE_UP_S))
            answer = event.result() if isinstance(event, Future) else event
            if isinstance(answer, SliceResult):
                working -= 1
                put(answer.unit, self._after(answer))
            elif isinstance(answer, _Polled):
                is_polling = False
                for unit in answer.units:
                    waiting.remove(unit)
                    put(unit, self._after_poll(unit, answer.found))
            elif answer is not None:
                handle(answer)

    def _submit(self, workers: SliceWorkers, work: Callable[[], Any]) -> None:
        workers.submit(work).add_done_callback(self._events.put)

    def _next_event(self, timeout_s: float) -> RunEvent | Future[Any] | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def _after(self, taken: SliceResult) -> Action:
        unit = taken.unit
        if taken.slice is None or unit.progress is None:
            unit.result.error = taken.error
            return "finish"
        unit.progress, action = after_slice(
            unit.progress,
            self._stage.limits,
            is_empty=taken.slice.is_empty,
            records=taken.records,
            has_backlog=any(planned.backlog for planned in taken.slice.ranges),
            now_s=self._clock(),
        )
        return action

    def _after_poll(self, unit: UnitRun, log_ends: LogEnds) -> Action:
        if unit.progress is None or unit.planner.has_new(log_ends.ends, log_ends.topics):
            return "take"
        return next_action(unit.progress, self._stage.limits, self._clock())


def _close(latency: CommitLatency, workers: SliceWorkers) -> None:
    if workers.is_stopped:
        # Unreachable brokers must not delay a terminated run.
        run_in_thread(latency.close)
    else:
        latency.close()


def _poll(poller: LogEndPoller, units: list[UnitRun]) -> _Polled:
    return _Polled(units, poller.poll(topic_partition for unit in units for topic_partition in unit.planner.partitions))

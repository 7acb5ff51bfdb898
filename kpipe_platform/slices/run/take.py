"""Take the next slice of a unit in a thread: plan it, process it and retry transient failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from kpipe_platform.dead_letters import Retry, Segment
from kpipe_platform.errors import OffsetConflictError, TransientError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.policies.retry import Attempt
from kpipe_platform.slices.plan.planner import SlicePlanner
from kpipe_platform.slices.process import process_slice
from kpipe_platform.slices.report import PartitionResult, SliceReport
from kpipe_platform.slices.run.events import RunEvent, SliceCommitted, SliceStarted
from kpipe_platform.slices.run.latency import CommitLatency
from kpipe_platform.slices.run.schedule import Progress
from kpipe_platform.slices.run.workers import SliceWorkers
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.values import DeferredStage, PlannedSlice
from kpipe_platform.slices.write.deliveries import Delivery
from kpipe_platform.spark.failures import classified
from kpipe_platform.spark.stage.notes import retry_of

logger = logging.getLogger(__name__)


@dataclass
class UnitRun:
    """One unit in a run.

    Args:
        planner: Plans its slices.
        result: Result of the unit so far.
        progress: Progress of the unit; None before its first slice.
    """

    planner: SlicePlanner
    result: PartitionResult
    progress: Progress | None = None


@dataclass(frozen=True)
class SliceResult:
    """The result of the next slice of a unit.

    Args:
        unit: The unit.
        slice: The committed slice; None if it failed.
        records: Number of records that were read.
        error: Error of the slice; None if it succeeded.
    """

    unit: UnitRun
    slice: Slice | None = None
    records: int = 0
    error: Exception | None = None


@dataclass(frozen=True)
class SliceTaker:
    """Takes slices. Any thread may call it.

    Args:
        stage: The stage and its inputs.
        settings: The run's settings.
        clients: Clients of the source's cluster.
        delivery: Writes outputs and dead letters.
        workers: The threads of the run.
        latency: Measures produce-to-commit latency; None if the run does not follow a stream.
        put: Called with each event.
        clock: Monotonic seconds; injected for tests.
    """

    stage: DeferredStage
    settings: SliceSettings
    clients: Clients
    delivery: Delivery
    workers: SliceWorkers
    latency: CommitLatency | None
    put: Callable[[RunEvent], None]
    clock: Callable[[], float] = time.monotonic

    def take(self, unit: UnitRun) -> SliceResult:
        """Take the next slice, with the retry policy of the failed component. Returns the slice's error, if any."""
        failed: list[Attempt] = []
        records = 0

        def committed(report: SliceReport) -> None:
            nonlocal records
            records += sum(counts.read for counts in report.counts)
            unit.result.summary.committed(report)
            self.put(SliceCommitted(unit.result.unit, report))

        began = self.clock()
        while True:
            try:
                # After an outage, an old admin client may fail to find the group's coordinator.
                with Clients(self.settings.source) if failed else nullcontext(self.clients) as clients:
                    slice_ = self._take_once(unit, clients, tuple(map(retry_of, failed)), committed)
                return SliceResult(unit, slice_, records)
            except TransientError as error:
                number = len(failed) + 1
                delay_s = self._delay_s(error, number, began)
                if delay_s is None:
                    return SliceResult(unit, error=error)
                logger.warning("attempt %s failed; retrying in %.1f s: %s", number, delay_s, error)
                failed.append(Attempt.of(number, error, delay_s, int(time.time() * 1000)))
                self.workers.sleep(delay_s)
                if self.workers.is_stopped:
                    return SliceResult(unit, error=error)
            except Exception as error:  # noqa: BLE001  # the unit's, reported beside what it has done
                return SliceResult(unit, error=error)

    def _delay_s(self, error: TransientError, failures: int, began: float) -> float | None:
        """Return the seconds until the next attempt; None: do not retry."""
        # Another run is processing the partition. A retry would only fence it.
        if self.workers.is_stopped or isinstance(error, OffsetConflictError):
            return None
        policy = self.settings.policies.retry(error.part)
        return None if policy is None else policy.next_delay_s(failures, self.clock() - began, error)

    def _take_once(
        self, unit: UnitRun, clients: Clients, retries: tuple[Retry, ...], committed: Callable[[SliceReport], None]
    ) -> Slice:
        began, started_ms = self.clock(), int(time.time() * 1000)
        try:
            slice_ = unit.planner.next(clients)
        except TransientError as error:
            error.part = error.part or "source"
            raise
        plan_s = self.clock() - began
        self.put(SliceStarted(unit.result.unit, slice_))
        # The latency of a backlog would measure the time without a run, not the speed of this run.
        follows = unit.progress is not None and unit.progress.quiet_since_s is not None
        latency = self.latency if follows and not slice_.is_empty else None
        reading = None if latency is None else latency.planned(slice_)

        def timed(report: SliceReport) -> None:
            nonlocal began, plan_s
            now = self.clock()
            report = replace(report, duration_s=now - began, steps_s={**report.steps_s, "plan": plan_s})
            # Count the plan once if a slice whose lanes stopped is reported in two parts.
            began, plan_s = now, 0.0
            committed(report)

        planned = PlannedSlice(slice_, (Segment("plan", started_ms, int(plan_s * 1000)),), retries)
        try:
            self.workers.check()
            working = nullcontext() if slice_.is_empty else self.workers.at_work(slice_, self.delivery.writers)
            # Spark can fail in any step, for example if its Java process is killed.
            with classified(str(slice_)), working:
                process_slice(planned, self.stage, self.settings, self.delivery, self.workers, timed)
        except Exception as error:
            if not self.workers.is_stopped:
                unit.planner.failed(clients, error)
            raise
        if latency is not None and reading is not None:
            unit.result.summary.latencies.add(latency.committed(reading))
        return slice_

"""Isolate: find the records that a stage fails on, so that the rest of the slice can be written without them.

Spark does not report which record a stage failed on. The search writes nothing; see docs/adr/0009.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from kpipe_platform.errors import StageFailedError
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.policies.retry import try_again
from kpipe_platform.slices.report import IsolationCost
from kpipe_platform.slices.search import Fails, Part, failing_records, refuse_hopeless
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.stage import call_stage
from kpipe_platform.slices.values import DeferredStage, PlannedSlice, Sources, StagedSlice
from kpipe_platform.spark.sink.errors import too_many_faults
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.notes import RowFault, fault_frame, retry_of

logger = logging.getLogger(__name__)

_SAMPLES = 20
# Maximum number of parts to try at the same time.
_PARTS_AT_ONCE = 4


class Interruption(Protocol):
    """Lets a search notice that the run was terminated."""

    def check(self) -> None:
        """Raise if the run was terminated."""

    def tag_jobs(self) -> None:
        """Tag the Spark jobs that this thread starts, so that a termination cancels them."""

    def sleep(self, seconds: float) -> None:
        """Wait. Return early if the run is terminated."""


@dataclass(frozen=True)
class Isolation:
    """The result of a search.

    Args:
        failing: Records that the stage fails on alone, as ranges of one offset, each with its fault.
        cost: Cost of the search.
    """

    failing: tuple[tuple[OffsetRange, RowFault], ...]
    cost: IsolationCost


def find_failing(
    planned: PlannedSlice,
    stage: DeferredStage,
    settings: SliceSettings,
    sources: Sources,
    error: StageFailedError,
    try_out: Callable[[StagedSlice], None],
    interruption: Interruption,
) -> Isolation:
    """Find the records that the stage fails on alone, after retries.

    Args:
        planned: The slice.
        stage: The stage, which has one source.
        settings: The run's settings.
        sources: The slice's rows.
        error: The failure of the whole slice.
        try_out: Runs a stage's output to its end and writes nothing.
        interruption: Stops the search when the run is terminated.

    Raises:
        StageFailedError: The stage fails in the same way on empty input, so no record is the cause.
        DeadLetterLimitError: More records fail than the limit allows.
    """
    whole = planned.slice
    logger.warning(
        "%s: the stage failed; searching for the records that it fails on: %s", whole, shown(error, settings)
    )
    began = time.monotonic()
    for _, rows in sources.values():
        # Cache even a small slice, because it is now read many times.
        rows.cache.keep()
    calls: list[Part] = []

    def attempt(rows: Sources) -> None:
        staged = call_stage(planned, stage, rows)
        try:
            try_out(staged)
        finally:
            staged.notes.release()

    def fails(part: Part) -> StageFailedError | None:
        calls.append(part)
        interruption.check()
        # The search calls this in its own threads, which start without the tag.
        interruption.tag_jobs()
        try:
            attempt(_each(sources, lambda rows: rows.part(part)))
        except StageFailedError as failure:
            if not failure.isolable:
                raise
            return failure
        return None

    try:
        attempt(_each(sources, lambda rows: rows.none()))
    except StageFailedError as again:
        _refuse_mistake(whole, error, again)
    limit = settings.limit
    records = undecoded = 0
    if limit.ratio is not None:
        ((_, frames),) = sources.values()
        records, undecoded = frames.totals()
        refuse_hopeless([_record(whole, *place) for place in frames.sample(_SAMPLES)], fails, limit, records)
    engine = settings.engine
    # A Connect server resolves temporary views when a job runs; by then, the next call may have replaced them.
    at_once = 1 if engine.remote else min(engine.tasks_at_once, _PARTS_AT_ONCE)
    failing: list[tuple[OffsetRange, RowFault]] = []
    reasons: dict[str, int] = {}
    for record, failure in failing_records([p.range for p in whole.ranges], fails, error, at_once):
        fault = _retried(record, failure, fails, settings, interruption)
        if fault is None:
            continue
        reason = shown(failure, settings)
        logger.info("the stage fails on %s: %s", record, reason)
        failing.append((record, fault))
        reasons[reason] = reasons.get(reason, 0) + 1
        if not limit.allows(len(failing) + undecoded, records):
            raise too_many_faults(str(whole), limit, len(failing) + undecoded, records, reasons)
    return Isolation(tuple(failing), IsolationCost(len(calls), len(failing), time.monotonic() - began))


def without_failing(sources: Sources, isolation: Isolation) -> Sources:
    """Return the rows of a slice without the records that the stage fails on. Those records still count as read."""
    records = [record for record, _ in isolation.failing]
    return _each(sources, lambda rows: rows.without(records))


def add_faults(staged: StagedSlice, isolation: Isolation, settings: SliceSettings) -> None:
    """Add the records that the stage fails on to the stage's faults, so that the writer applies the fault action."""
    faults = [(r.topic, r.partition, r.start, fault.to_json()) for r, fault in isolation.failing]
    if faults:
        staged.notes.faults.append(fault_frame(settings.engine.spark_session, faults))


def shown(failure: StageFailedError, settings: SliceSettings) -> str:
    """Return the cause for logs and errors: only the exception class if messages are hidden."""
    text: str = failure.source.exception_type if settings.hide_messages else failure.cause
    return text


def _each(sources: Sources, change: Callable[[SliceFrames], SliceFrames]) -> Sources:
    return {name: (topic, change(rows)) for name, (topic, rows) in sources.items()}


def _record(whole: Slice, index: int, offset: int) -> OffsetRange:
    return replace(whole.ranges[index].range, start=offset, end=offset + 1)


def _refuse_mistake(whole: Slice, error: StageFailedError, on_no_rows: StageFailedError) -> None:
    """Raise if the stage fails in the same way on empty input: the data is not the cause."""
    if str(on_no_rows.source) == str(error.source):
        msg = f"the stage fails on {whole} and fails in the same way without any rows: {error.cause}"
        raise StageFailedError(
            msg, fix="fix the stage; no record is the cause", cause=error.cause, isolable=False
        ) from error


def _retried(
    record: OffsetRange,
    failure: StageFailedError,
    fails: Fails,
    settings: SliceSettings,
    interruption: Interruption,
) -> RowFault | None:
    """Retry a record that the stage fails on alone. Return its fault, or None if a retry succeeded."""

    def again() -> None:
        if (error := fails([record])) is not None:
            raise error

    tried = try_again(
        settings.policies.retry("stage"), again, first=failure, catch=StageFailedError, sleep=interruption.sleep
    )
    if tried.error is None:
        return None
    return RowFault(failure.source.fault(int(time.time() * 1000)), retries=tuple(map(retry_of, tried.failed)))

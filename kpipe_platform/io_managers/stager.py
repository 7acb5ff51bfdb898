"""One slice of a ``@kafka_asset``: read it, call the stage, write; isolate where the stage fails on data."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import dagster as dg

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.dead_letters import Retry, Segment
from kpipe_platform.errors import ConfigError, KpipeError, StageFailedError
from kpipe_platform.io_managers.feed import StagedFeeds
from kpipe_platform.io_managers.isolation import Fails, Part, failing_records, refuse_hopeless
from kpipe_platform.io_managers.pipeline import Pipeline, encoded
from kpipe_platform.io_managers.staged import IsolationCost, SliceReport, Staged
from kpipe_platform.io_managers.target import Target
from kpipe_platform.kafka.lanes import split
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.policies.components import stops
from kpipe_platform.policies.faults import Component
from kpipe_platform.policies.retry import try_again
from kpipe_platform.resources._compat import NoValueSentinel
from kpipe_platform.spark.convert import to_form
from kpipe_platform.spark.failures import classify, is_classified, is_sparks, may_be_timestamp
from kpipe_platform.spark.frames import SliceFrames
from kpipe_platform.spark.stage_notes import RowFault, fault_frame, noting, retry_of
from kpipe_platform.spark.stops import too_many_faults

logger = logging.getLogger(__name__)

Store = Callable[[Any], None]
Reads = Mapping[str, tuple[KafkaTopic, SliceFrames]]
_SAMPLES = 20
# One call at a time in this process: a stage may register its input as a temporary view by a fixed name, and would read
# that of another partition, or of another part, where two calls overlap.
_CALLING = threading.Lock()
# Parts of a slice that are tried at the same time, to find the records that the stage fails on.
_PARTS_AT_ONCE = 4


class Stager:
    """Takes one planned slice.

    Args:
        staged: The stage and its inputs.
        pipeline: The step's resources.
        target: Where outputs and dead letters go.
        store: The inner IO manager's store; None where the output goes to Kafka.
        planned: When the plan began, milliseconds since the epoch, and how long it took, milliseconds.
        retries: Attempts at this slice that failed before.
        check: Called before each call of a search; raises where the run was terminated.
        tag_jobs: Called in each thread of a search, so that a terminated run finds the Spark jobs started there.
        clock: Monotonic seconds; injected for tests.
        sleep: Waits for seconds; injected for tests.
    """

    def __init__(
        self,
        staged: StagedFeeds,
        pipeline: Pipeline,
        target: Target,
        store: Store | None,
        *,
        planned: tuple[int, int],
        retries: tuple[Retry, ...] = (),
        check: Callable[[], None] = lambda: None,
        tag_jobs: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._staged = staged
        self._pipeline = pipeline
        self._target = target
        self._store = store
        self._segments = (Segment("plan", *planned),)
        self._retries = retries
        self._check = check
        self._tag_jobs = tag_jobs
        self._clock = clock
        self._sleep = sleep

    def take(self, slice_: Slice, done: Callable[[SliceReport], None]) -> None:
        """Write the slice and move its offsets, whole or in parts.

        Args:
            slice_: The plan; not empty.
            done: Told of the slice, or of each part of it, when it is committed.

        Raises:
            KpipeError: Anything that went wrong; what was not told of is unmoved.
        """
        lanes = 1 if self._store is not None else self._pipeline.lanes_of(slice_)
        if lanes > 1:
            rest = self._take_lanes(slice_, lanes, done)
            if rest is None:
                return
            slice_ = rest
        try:
            report = self._take_whole(slice_, by_client=False)
        except StageFailedError as error:
            if not may_be_timestamp(error):
                raise
            logger.info("%s: perhaps Spark cannot read it, so kpipe's own client does: %s", slice_, self._shown(error))
            report = self._take_whole(slice_, by_client=True)
        done(report)

    def _take_whole(self, slice_: Slice, *, by_client: bool) -> SliceReport:
        """Write the slice at once, without the records that the stage fails on."""
        reads = self._read(slice_, by_client=by_client)
        try:
            try:
                return self._write(self._pipeline, slice_, reads)
            except StageFailedError as error:
                if not self._isolates or not error.isolable or (may_be_timestamp(error) and not by_client):
                    raise
                for _, frames in reads.values():
                    # Also a small slice: it is read many times now.
                    frames.cache.keep()
                return self._isolate(slice_, reads, error)
        finally:
            _release(reads)

    def _read(self, slice_: Slice, *, by_client: bool = False) -> Reads:
        pipeline, feeds = self._pipeline, self._staged.feeds
        return {
            name: (feed.topic, pipeline.read(slice_, feed.topic, by_client=by_client)) for name, feed in feeds.items()
        }

    def _take_lanes(self, slice_: Slice, lanes: int, done: Callable[[SliceReport], None]) -> Slice | None:
        """Write the slice in lanes.

        Returns:
            What is left of it, to be taken in one transaction; None where nothing is.
        """
        parts = split(slice_, lanes)
        reads = [self._read(lane) for lane in parts]
        staged: list[Staged] = []
        try:
            staged.extend(self._stage(lane, read) for lane, read in zip(parts, reads, strict=True))
            found = self._pipeline.write_lanes(slice_, staged, self._target)
        except StageFailedError as error:
            if not may_be_timestamp(error) and not (self._isolates and error.isolable):
                raise
            return slice_
        finally:
            for part in staged:
                part.notes.release()
            for read in reads:
                _release(read)
        if found.done is not None:
            done(found.done)
        if found.error is not None:
            raise found.error
        return found.rest

    @property
    def _isolates(self) -> bool:
        return self._staged.isolate and not stops(self._pipeline.policies.action(Component.STAGE))

    # One call of the stage

    def _write(self, pipeline: Pipeline, slice_: Slice, reads: Reads) -> SliceReport:
        staged = self._stage(slice_, reads)
        try:
            return store_output(pipeline, staged, self._target, self._store)
        except KpipeError:
            raise
        except Exception as error:
            if is_sparks(error):
                raise classify(error, str(slice_)) from error
            raise
        finally:
            staged.notes.release()

    def _try(self, slice_: Slice, reads: Reads) -> None:
        """Call the stage and compute its output, and write nothing."""
        staged = self._stage(slice_, reads)
        try:
            self._pipeline.try_out(*encoded(self._pipeline, staged, self._target))
        finally:
            staged.notes.release()

    def _stage(self, slice_: Slice, reads: Reads) -> Staged:
        feeds = self._staged.feeds
        began, started_ms = self._clock(), int(time.time() * 1000)
        with noting() as notes:
            try:
                inputs = {
                    name: to_form(reads[name][1].good, feed.form, feed.topic.value) for name, feed in feeds.items()
                }
                with _CALLING if any(feed.form == "spark" for feed in feeds.values()) else nullcontext():
                    output = self._staged.stage(inputs)
            except Exception as error:
                notes.release()
                # Where nothing is isolated, Dagster shows the user's own exception.
                if is_sparks(error) or (self._isolates and not is_classified(error)):
                    raise classify(error, str(slice_)) from error
                raise
        called = Segment("stage", started_ms, int((self._clock() - began) * 1000))
        return Staged(slice_, reads, output, notes, (*self._segments, called), self._retries)

    # Isolation

    def _isolate(self, whole: Slice, reads: Reads, error: StageFailedError) -> SliceReport:
        """Find the records that the stage fails on, then write the slice once, without them."""
        shown = self._shown(error)
        logger.warning("%s: the stage failed; searching for the records that it fails on: %s", whole, shown)
        limit, began = self._pipeline.limit, self._clock()
        calls: list[Part] = []

        def fails(part: Part) -> StageFailedError | None:
            calls.append(part)
            self._check()
            # In a thread of the search's own.
            self._tag_jobs()
            try:
                self._try(whole, {name: (topic, frames.part(part)) for name, (topic, frames) in reads.items()})
            except StageFailedError as failure:
                if not failure.isolable:
                    raise
                return failure
            return None

        self._refuse_mistake(whole, reads, error)
        ((_, frames),) = reads.values()
        records, undecoded = frames.totals() if limit.ratio is not None else (0, 0)
        if limit.ratio is not None:
            refuse_hopeless([_record(whole, *place) for place in frames.sample(_SAMPLES)], fails, limit, records)
        ranges = [planned.range for planned in whole.ranges]
        poison: list[tuple[OffsetRange, RowFault]] = []
        reasons: dict[str, int] = {}
        engine = self._pipeline.engine
        # A Connect server looks up temporary views when a job runs, where the next call may have replaced them.
        at_once = 1 if engine.remote else min(engine.tasks_at_once, _PARTS_AT_ONCE)
        for record, failure in failing_records(ranges, fails, error, at_once):
            fault = self._tried_again(record, failure, fails)
            if fault is None:
                continue
            shown = self._shown(failure)
            logger.info("the stage fails on %s: %s", record, shown)
            poison.append((record, fault))
            reasons[shown] = reasons.get(shown, 0) + 1
            failed = len(poison) + undecoded
            if not limit.allows(failed, records):
                raise too_many_faults(str(whole), limit, failed, records, reasons)
        cost = IsolationCost(len(calls), len(poison), self._clock() - began)
        return replace(self._write_without(whole, reads, poison, error), isolation=cost)

    def _shown(self, failure: StageFailedError) -> str:
        """The cause for log and errors; where a hook takes values out of messages, its class."""
        shown: str = failure.source.exception_type if self._pipeline.hides_messages else failure.cause
        return shown

    def _tried_again(self, record: OffsetRange, failure: StageFailedError, fails: Fails) -> RowFault | None:
        """The fault of a record that the stage fails on alone, after its retries; None where one succeeded."""

        def again() -> None:
            if (error := fails([record])) is not None:
                raise error

        tried = try_again(
            self._pipeline.policies.retry("stage"),
            again,
            first=failure,
            catch=StageFailedError,
            clock=self._clock,
            sleep=self._sleep,
        )
        if tried.error is None:
            return None
        return RowFault(failure.source.fault(int(time.time() * 1000)), retries=tuple(map(retry_of, tried.failed)))

    def _refuse_mistake(self, whole: Slice, reads: Reads, error: StageFailedError) -> None:
        """Refuse to isolate where the stage fails in the same way on no rows at all: the data is not the reason."""
        nothing = {name: (topic, frames.none()) for name, (topic, frames) in reads.items()}
        try:
            self._try(whole, nothing)
        except StageFailedError as again:
            if str(again.source) == str(error.source):
                msg = f"the stage fails on {whole} and on no rows at all alike: {error.cause}"
                raise StageFailedError(
                    msg, fix="fix the stage; no record is the reason", cause=error.cause, isolable=False
                ) from error

    def _write_without(
        self, whole: Slice, reads: Reads, poison: list[tuple[OffsetRange, RowFault]], first: StageFailedError
    ) -> SliceReport:
        """Write the slice without the records that the stage fails on, and apply the action to them."""
        pipeline = self._pipeline
        rest = {
            name: (topic, frames.without([record for record, _ in poison])) for name, (topic, frames) in reads.items()
        }
        places = [(r.topic, r.partition, r.start, fault.to_json()) for r, fault in poison]
        notes = None
        try:
            staged = self._stage(whole, rest)
            notes = staged.notes
            if places:
                notes.faults.append(fault_frame(pipeline.engine.spark_session, places))
            return store_output(pipeline, staged, self._target, self._store)
        except StageFailedError as error:
            if not error.isolable:
                raise
            msg = f"the stage fails on {whole}, also without the {len(poison):,} record(s) that it fails on alone: "
            raise StageFailedError(
                msg + error.cause,
                fix="fix the stage: it fails on records together that pass alone; nothing was written",
                cause=error.cause,
                isolable=False,
            ) from first
        finally:
            if notes is not None:
                notes.release()


def _record(whole: Slice, index: int, offset: int) -> OffsetRange:
    return replace(whole.ranges[index].range, start=offset, end=offset + 1)


def _release(reads: Reads) -> None:
    for _, frames in reads.values():
        frames.release()


def store_output(pipeline: Pipeline, staged: Staged, target: Target, store: Store | None) -> SliceReport:
    """Write what a stage returned, to Kafka or to the inner store.

    Raises:
        ConfigError: It is not rows but None, or one of Dagster's results, which a store would take for the output.
    """
    output = staged.output
    if output is None:
        msg = f"asset {pipeline.step.asset_key.to_user_string()} returned None, not rows to store"
        raise ConfigError(msg, fix="return the rows; a `return` may be missing. For no rows return an empty DataFrame")
    if output is NoValueSentinel or isinstance(output, dg.MaterializeResult | dg.ObserveResult | dg.Output):
        name = dg.MaterializeResult.__name__ if output is NoValueSentinel else type(output).__name__
        msg = f"asset {pipeline.step.asset_key.to_user_string()} returned a {name} without rows to store"
        raise ConfigError(
            msg, fix="return the rows themselves; add metadata by context.add_output_metadata(...) in the function"
        )
    if store is not None:
        return pipeline.store_elsewhere(staged, target, store)
    if target.topic is None:
        msg = f"the output of {staged.slice} has neither a topic nor a store"
        raise ConfigError(msg)
    return pipeline.write(*encoded(pipeline, staged, target))

"""Lanes: parts of one partition's slice that are written at the same time, each in its own transaction.

Lanes commit one after another; see ``kpipe_platform.kafka.transactions.lanes`` and docs/adr/0007. This module contains
everything that a run does differently for lanes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kpipe_platform.codecs.topics import Destination
from kpipe_platform.errors import ConfigError, KpipeError, StageFailedError
from kpipe_platform.kafka.admin.groups import committed_offsets
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.kafka.transactions.lanes import lanes_read_back, split
from kpipe_platform.slices.read import read_sources
from kpipe_platform.slices.report import SliceReport
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.stage import call_stage
from kpipe_platform.slices.target import SliceTarget
from kpipe_platform.slices.values import DeferredStage, PlannedSlice, Sources, StagedSlice
from kpipe_platform.slices.write.commit import UNANSWERED, counts_by_range
from kpipe_platform.slices.write.deliveries import report_of
from kpipe_platform.slices.write.encode import encode_output
from kpipe_platform.slices.write.spec import writer_spec
from kpipe_platform.spark.failures import may_be_timestamp
from kpipe_platform.spark.sink.lanes import LaneRows, LanesOutcome, write_lanes
from kpipe_platform.spark.sink.spec import Outcome, WriterSpec
from kpipe_platform.spark.stage.notes import StageNotes

logger = logging.getLogger(__name__)

# Minimum offsets per lane. With fewer, a lane costs more than it saves: a task and a transaction take about 100 ms.
_OFFSETS_A_LANE = 1_000


@dataclass(frozen=True)
class LanesReport:
    """The result of a slice that was processed in lanes.

    Args:
        done: The committed part; None if nothing was committed.
        rest: The remaining part, to be processed in one transaction; None if nothing remains.
        error: Error that prevents processing the rest now; None if there is none.
    """

    done: SliceReport | None
    rest: Slice | None
    error: Exception | None = None


def process_in_lanes(
    planned: PlannedSlice,
    stage: DeferredStage,
    settings: SliceSettings,
    target: SliceTarget,
    writers: int,
) -> LanesReport:
    """Process as much of a slice as possible in lanes.

    Args:
        planned: The slice.
        stage: The stage.
        settings: The run's settings.
        target: The topics for outputs and dead letters.
        writers: Maximum number of lanes.

    Raises:
        ConfigError: The number of tasks that the engine runs at once is unknown.
        KpipeError: The lanes failed. Offsets are unchanged.
    """
    whole = planned.slice
    count = _lanes_of(whole, settings, writers)
    if count == 1 or target.destination is None:
        return LanesReport(None, whole)
    topics = {name: each.topic for name, each in stage.inputs.items()}
    lanes = split(whole, count)
    sources: list[Sources] = []
    staged: list[StagedSlice] = []
    try:
        # Extend the lists one by one, so that the `finally` block releases all earlier parts if one fails.
        sources.extend(read_sources(lane, topics, settings) for lane in lanes)
        plans = (replace(planned, slice=lane) for lane in lanes)
        staged.extend(call_stage(plan, stage, rows) for plan, rows in zip(plans, sources, strict=True))
        return _write(whole, staged, settings, target, target.destination)
    except StageFailedError as error:
        if not may_be_timestamp(error) and not (stage.isolate and error.isolable):
            raise
        return LanesReport(None, whole)
    finally:
        for part in staged:
            part.notes.release()
        for each in sources:
            for _, frames in each.values():
                frames.release()


def _lanes_of(slice_: Slice, settings: SliceSettings, writers: int) -> int:
    tasks = settings.engine.known_tasks_at_once
    if tasks is None:
        msg = (
            f"asset {settings.run.asset} writes parts of a slice in parallel, but the number of tasks that the engine "
        )
        msg += "runs at once is unknown"
        raise ConfigError(msg, fix="set SparkEngine(parallelism=...) to the number of executor cores")
    return max(min(writers, tasks, slice_.span // _OFFSETS_A_LANE), 1)


def _write(
    whole: Slice, lanes: Sequence[StagedSlice], settings: SliceSettings, target: SliceTarget, destination: Destination
) -> LanesReport:
    began = time.monotonic()
    rows, specs = [], []
    columns: Mapping[str, Sequence[tuple[str, str]]] = {}
    for lane in lanes:
        encoded = encode_output(lane, destination, settings)
        columns = encoded.columns
        spec = writer_spec(lane, settings, target, "transactional")
        specs.append(spec)
        rows.append(LaneRows(encoded.rows, [frames for _, frames in lane.sources.values()], lane.notes, spec))
    try:
        outcome = write_lanes(whole, rows)
    except UNANSWERED as error:
        outcome = LanesOutcome(0, None, error)
    if isinstance(outcome.error, UNANSWERED):
        outcome = _without_answer(specs, outcome)
    rest = None if outcome.done == len(lanes) else _rest(whole, lanes[outcome.done].slice, settings)
    if outcome.outcome is None:
        return LanesReport(None, rest, outcome.error)
    committed = lanes[: outcome.done]
    ends = [planned.range.end for planned in committed[-1].slice.ranges]
    done = report_of(
        replace(whole, ranges=tuple(map(_until, whole.ranges, ends))),
        StageNotes.joined(lane.notes for lane in committed),
        outcome.outcome,
        counts_by_range(outcome.outcome, whole),
        columns,
        began,
    )
    return LanesReport(replace(done, lanes=len(lanes)), rest, outcome.error)


def _without_answer(lanes: Sequence[WriterSpec], outcome: LanesOutcome) -> LanesOutcome:
    """Read from the group's offset how many lanes were committed before their writers failed."""
    slices = [lane.slice for lane in lanes]
    try:
        done, counts = lanes_read_back(lanes[0].settings, slices)
    except KpipeError as other:
        logger.warning("%s: cannot determine how many of its lanes were committed: %s", slices[0], other)
        return outcome
    if done <= outcome.done:
        return outcome
    logger.warning("%d of %d lanes were committed according to the group's offset: %s", done, len(lanes), slices[0])
    counted = replace(outcome.outcome or Outcome("committed_earlier"), counts=dict(enumerate(counts)))
    return LanesOutcome(done, counted, None if done == len(lanes) else outcome.error)


def _rest(whole: Slice, lane: Slice, settings: SliceSettings) -> Slice:
    """Return the remaining part of a slice, from the given lane on."""
    committed = [planned.committed for planned in lane.ranges]
    if None in committed:
        # The group is new, and the failed lane may have stored its start offset.
        topic_partitions = [(p.range.topic, p.range.partition) for p in lane.ranges]
        with Clients(settings.source) as clients:
            stored = committed_offsets(clients, whole.group, topic_partitions)
        committed = [
            None if (offset := stored[topic_partition]) is None else offset.offset
            for topic_partition in topic_partitions
        ]
    return whole.rest([planned.range.start for planned in lane.ranges], committed)


def _until(planned: PlannedRange, end: int) -> PlannedRange:
    return replace(planned, range=replace(planned.range, end=end))

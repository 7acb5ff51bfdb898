"""Process one slice: read it, call the stage and write the output. Each step is a module of this package."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kpipe_platform.errors import StageFailedError, UnknownSchemaIdError
from kpipe_platform.slices.isolate import Interruption, Isolation, add_faults, find_failing, shown, without_failing
from kpipe_platform.slices.read import read_sources
from kpipe_platform.slices.report import SliceReport
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.stage import call_stage
from kpipe_platform.slices.values import DeferredStage, PlannedSlice, Sources, StagedSlice
from kpipe_platform.slices.write.commit import commit_empty
from kpipe_platform.slices.write.deliveries import Delivery
from kpipe_platform.slices.write.lanes import process_in_lanes
from kpipe_platform.spark.failures import classified, may_be_timestamp

logger = logging.getLogger(__name__)


def process_slice(
    planned: PlannedSlice,
    stage: DeferredStage,
    settings: SliceSettings,
    delivery: Delivery,
    interruption: Interruption,
    committed: Callable[[SliceReport], None],
) -> None:
    """Process a planned slice and move its offsets.

    Args:
        planned: The slice.
        stage: The stage and its inputs.
        settings: The run's settings.
        delivery: Writes outputs and dead letters.
        interruption: Stops a search for failing records when the run is terminated.
        committed: Called with the slice's report after the commit; called for each part that commits separately.

    Raises:
        KpipeError: The slice failed. Offsets of parts that were not reported are unchanged.
    """
    if planned.slice.is_empty:
        committed(commit_empty(planned.slice, settings))
        return
    if delivery.writers > 1:
        lanes = process_in_lanes(planned, stage, settings, delivery.target, delivery.writers)
        if lanes.done is not None:
            committed(lanes.done)
        if lanes.error is not None and not isinstance(lanes.error, UnknownSchemaIdError):
            raise lanes.error
        if lanes.rest is None:
            return
        planned = replace(planned, slice=lanes.rest)
    # Without transactions, an unknown id is found only after a part is written. So all ids are found first.
    process = partial(_process, planned, stage, settings, delivery, interruption, find_ids=not delivery.can_undo)
    try:
        report = _with_all_ids(planned, process)
    except StageFailedError as error:
        if not may_be_timestamp(error):
            raise
        reason = shown(error, settings)
        logger.info(
            "%s: Spark may be unable to read a timestamp; reading with the Kafka client instead: %s",
            planned.slice,
            reason,
        )
        report = _with_all_ids(planned, partial(process, by_client=True))
    committed(report)


def _with_all_ids(planned: PlannedSlice, process: Callable[..., SliceReport]) -> SliceReport:
    """Process a slice, and again if a record has a schema id that was not known."""
    try:
        return process()
    except UnknownSchemaIdError as error:
        logger.info("%s: reading again with the ids of all schemas: %s", planned.slice, error.message)
        return process(find_ids=True)


def deliver(staged: StagedSlice, delivery: Delivery) -> SliceReport:
    """Write a slice whose stage was called, then release what the stage cached.

    Raises:
        KpipeError: The write failed. Offsets are unchanged.
    """
    try:
        with classified(str(staged.slice)):
            return delivery.write(staged)
    finally:
        staged.notes.release()


def _process(
    planned: PlannedSlice,
    stage: DeferredStage,
    settings: SliceSettings,
    delivery: Delivery,
    interruption: Interruption,
    *,
    by_client: bool = False,
    find_ids: bool = False,
) -> SliceReport:
    topics = {name: each.topic for name, each in stage.inputs.items()}
    sources = read_sources(planned.slice, topics, settings, by_client=by_client, find_ids=find_ids)
    try:
        try:
            return deliver(call_stage(planned, stage, sources), delivery)
        except StageFailedError as error:
            if not stage.isolate or not error.isolable or (may_be_timestamp(error) and not by_client):
                raise
            isolation = find_failing(planned, stage, settings, sources, error, delivery.try_out, interruption)
            return _deliver_without(planned, stage, settings, delivery, sources, isolation, error)
    finally:
        for _, rows in sources.values():
            rows.release()


def _deliver_without(
    planned: PlannedSlice,
    stage: DeferredStage,
    settings: SliceSettings,
    delivery: Delivery,
    sources: Sources,
    isolation: Isolation,
    first: StageFailedError,
) -> SliceReport:
    """Write the slice once without the records that the stage fails on, and apply the fault action to those."""
    try:
        staged = call_stage(planned, stage, without_failing(sources, isolation))
        add_faults(staged, isolation, settings)
        return replace(deliver(staged, delivery), isolation=isolation.cost)
    except StageFailedError as error:
        if not error.isolable:
            raise
        count = len(isolation.failing)
        msg = f"the stage fails on {planned.slice} even without the {count:,} record(s) that it fails on alone: "
        raise StageFailedError(
            msg + error.cause,
            fix="fix the stage: it fails on a combination of records that succeed alone; nothing was written",
            cause=error.cause,
            isolable=False,
        ) from first

"""Storing a step's output and telling Dagster, partition by partition, what became of its slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg
from dagster._core.definitions.metadata import normalize_metadata
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.events import DagsterEvent

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.io_managers import ledger
from kpipe_platform.io_managers.feed import StagedFeeds
from kpipe_platform.io_managers.partition_events import StepEvents
from kpipe_platform.io_managers.pipeline import Pipeline
from kpipe_platform.io_managers.report import describe, metadata_of
from kpipe_platform.io_managers.runner import FeedRunner
from kpipe_platform.io_managers.staged import SliceReport, Staged
from kpipe_platform.io_managers.stager import store_output
from kpipe_platform.io_managers.step import kafka_partitions_of
from kpipe_platform.io_managers.taken import partitions_failed
from kpipe_platform.io_managers.tally import Tally
from kpipe_platform.io_managers.target import Target, find_target
from kpipe_platform.kafka.slices import Slice, transactional_id
from kpipe_platform.observability.events import reason_of
from kpipe_platform.slices.plan.ranges import resumption_of
from kpipe_platform.spark.failures import classify, is_sparks
from kpipe_platform.spark.stage_notes import StageNotes, current_notes

Store = Callable[[Any], None]


def emit_feeds(
    context: dg.OutputContext, staged: StagedFeeds, *, topic: KafkaTopic | None, store: Store | None
) -> Iterator[Any]:
    """Run a ``@kafka_asset``'s slices and report them.

    Yields:
        Dagster events for the partitions that are done, where others failed.

    Raises:
        KpipeError: A slice failed; what earlier slices committed stays reported.
    """
    pipeline = next(iter(staged.feeds.values())).pipeline
    topics = [feed.topic.name for feed in staged.feeds.values()]
    events = StepEvents.of(pipeline, topics, context.log_event)
    runner = FeedRunner(staged, pipeline, events, topic=topic, store=store, found=partial(_warn, context, pipeline))
    _note_metadata(dg.AssetExecutionContext.get().op_execution_context)
    try:
        yield from _emit_taken(context, runner, pipeline)
    except BaseException as error:
        events.close(reason_of(error))
        raise
    events.close()


def _note_metadata(context: dg.OpExecutionContext) -> None:
    """Let the stage call ``context.add_output_metadata``.

    For Dagster the output is there before the stage is called, and takes no metadata any more. What a call of the
    stage adds is noted instead, and reported with the slice that this call was for, once it is committed.
    """
    add = context.add_output_metadata

    def note(metadata: Mapping[str, Any], output_name: str | None = None, mapping_key: str | None = None) -> None:
        notes = current_notes()
        if notes is None:
            add(metadata, output_name, mapping_key)
        else:
            # What Dagster cannot store fails here, not after the commit.
            notes.metadata |= normalize_metadata(metadata)

    context.add_output_metadata = note  # type: ignore[method-assign]  # of this step's own object


def _emit_taken(context: dg.OutputContext, runner: FeedRunner, pipeline: Pipeline) -> Iterator[Any]:
    step = pipeline.step
    failed: dict[int, Exception] = {}
    try:
        if step.partition_keys is None:
            yield from _emit_all(context, runner, pipeline)
            return
        numbers = kafka_partitions_of(step, list)
        done: dict[int, Tally] = {}
        for number, taken in runner.run_each(numbers):
            _log(context, taken.tally)
            if taken.error is not None:
                failed[number] = taken.error
                context.log.error("partition %s: %s", number, taken.error)
                if taken.tally.slices:
                    # What it committed before it failed stays, and Dagster's second copy of the offsets follows it.
                    yield _materialisation(context, str(number), taken.tally, pipeline)
            else:
                done[number] = taken.tally
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        # A run that is terminated has committed slices all the same, one that lingers perhaps thousands.
        for place, taken in sorted(runner.taken.items(), key=lambda item: item[0] or 0):
            if taken.tally.slices and place not in failed:
                _log(context, taken.tally)
                yield _materialisation(context, None if place is None else str(place), taken.tally, pipeline)
        raise
    for number, tally in sorted(done.items()):
        if failed:
            yield _materialisation(context, str(number), tally, pipeline)
        elif len(numbers) == 1:
            context.add_output_metadata(metadata_of(tally, pipeline.distribution))
        else:
            context.step_context.add_asset_metadata(
                metadata_of(tally, pipeline.distribution), asset_key=step.asset_key, partition_key=str(number)
            )
    if failed:
        raise partitions_failed(failed, sorted(done))


def _emit_all(context: dg.OutputContext, runner: FeedRunner, pipeline: Pipeline) -> Iterator[Any]:
    """Slices over all partitions together, of an asset without partitions."""
    taken = runner.run_all(None)
    _log(context, taken.tally)
    if taken.error is not None:
        if taken.tally.slices:
            yield _materialisation(context, None, taken.tally, pipeline)
        raise taken.error
    context.add_output_metadata(metadata_of(taken.tally, pipeline.distribution))


def emit_plain(
    context: dg.OutputContext,
    output: Any,
    pipeline: Pipeline,
    *,
    topic: KafkaTopic | None,
    store: Store | None,
) -> Iterator[Any]:
    """Store what a plain asset returned, with the slices that its inputs were loaded from."""
    yield from ()
    reads = ledger.take_reads(pipeline.step.id)
    reports: list[SliceReport] = []
    try:
        interruptible = pipeline.interruptible()

        def work() -> None:
            with interruptible.at_work(_joined(pipeline, reads)):
                warn = partial(_warn, context, pipeline)
                reports.append(_store_plain(output, pipeline, reads, topic, store, warn))

        interruptible.run(work)
    except KpipeError as error:
        _end(reads, error)
        raise
    except Exception as error:
        failure: Exception = error
        if is_sparks(error):
            where = ", ".join(str(read.slice) for read in reads) or pipeline.step.step_key
            failure = classify(error, where)
        _end(reads, failure)
        if failure is error:
            raise
        raise failure from error
    except BaseException as interruption:
        _end(reads, interruption)
        if reports:
            # The run was terminated when it had committed.
            _log(context, Tally.of(reports))
            for key in pipeline.step.partition_keys or (None,):
                yield _materialisation(context, key, Tally.of(reports), pipeline)
        raise
    finally:
        for read in reads:
            read.release()
    for read in reads:
        read.watch.done(reports[0])
        read.watch.ended()
        read.events.deliver()
    tally = Tally.of(reports)
    _log(context, tally)
    context.add_output_metadata(metadata_of(tally, pipeline.distribution))


def _end(reads: Sequence[ledger.OpenRead], error: BaseException) -> None:
    for read in reads:
        read.events.close(reason_of(error))


def _store_plain(
    output: Any,
    pipeline: Pipeline,
    reads: Sequence[ledger.OpenRead],
    topic: KafkaTopic | None,
    store: Store | None,
    found: Callable[[Target], None],
) -> SliceReport:
    slice_ = _joined(pipeline, reads)
    with pipeline.source.clients() as clients:
        target = find_target(pipeline, clients, [read.topic for read in reads], topic, plain=True)
    found(target)
    if reads and slice_.is_empty:
        return pipeline.store_start(slice_)
    sources = {read.topic.name: (read.topic, read.frames) for read in reads if read.frames is not None}
    notes = StageNotes.joined(read.notes for read in reads)
    return store_output(pipeline, Staged(slice_, sources, output, notes), target, store)


def _joined(pipeline: Pipeline, reads: Sequence[ledger.OpenRead]) -> Slice:
    """One slice of all that the step read: its offsets move together."""
    if len(reads) == 1:
        return reads[0].slice
    step = pipeline.step
    names = [read.topic.name for read in reads]
    if len(set(names)) < len(names):
        msg = f"asset {step.asset_key.to_user_string()} reads a topic twice: {', '.join(sorted(names))}"
        raise ConfigError(msg, fix="read it once and use the DataFrame twice")
    slice_id = reads[0].slice.slice_id if reads else f"{step.step_key}.{step.attempt}"
    ranges = tuple(sorted((p for read in reads for p in read.slice.ranges), key=lambda p: p.range))
    ids = {read.slice.base_id for read in reads}
    return Slice(
        group=step.group,
        run_id=step.run_id,
        slice_id=slice_id,
        ranges=ranges,
        fence=tuple(sorted({f for read in reads for f in read.slice.fence})),
        unit=transactional_id(step.group, [planned.range for planned in ranges], ids),
    )


def _materialisation(
    context: dg.OutputContext, partition: str | None, tally: Tally, pipeline: Pipeline
) -> DagsterEvent:
    metadata = metadata_of(tally, pipeline.distribution)
    event = dg.AssetMaterialization(asset_key=context.asset_key, partition=partition, metadata=metadata)
    return DagsterEvent.asset_materialization(context.step_context, event)


def _warn(context: dg.OutputContext, pipeline: Pipeline, target: Target) -> None:
    """Name the partitions that nobody reads, in each run: the records in them are in no count."""
    for topic, numbers in target.left_out.items():
        context.log.warning(
            "topic %s has partition(s) %s, of which %s has no Dagster partition: no run reads them. Partition the "
            "asset by kafka_partitions(%r); if it is, observe the topic's asset, or run a sensor, which registers them",
            topic,
            ", ".join(map(str, numbers)),
            pipeline.step.asset_key.to_user_string(),
            topic,
        )


def _log(context: dg.OutputContext, tally: Tally) -> None:
    """A line or two, however many slices: Dagster stores each line of its log as an event."""
    if not tally.slices:
        return
    facts = describe(tally)
    context.log.info(
        "%s: read %s, written %s, dead letters %s, skipped %s, in %s s",
        *(facts[name] for name in ("slice", "read", "written", "dead_letters", "skipped", "seconds")),
    )
    if tally.resumed and tally.last is not None:
        context.log.warning("%s", resumption_of(tally.last.slice.group, tally.resumed))

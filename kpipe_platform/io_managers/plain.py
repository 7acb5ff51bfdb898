"""The output of a plain ``@dg.asset``: its function already ran on the slices that its inputs loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import dagster as dg

from kpipe_platform.codecs.topics import Destination
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.current import Store, store_slice_by
from kpipe_platform.io_managers.metadata import materialization_metadata
from kpipe_platform.io_managers.open_reads import OpenRead, take_reads
from kpipe_platform.io_managers.results import check_rows, log_summary, materializations, warn_left_out
from kpipe_platform.io_managers.step import KafkaStep
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.slices import Slice, transactional_id
from kpipe_platform.observability.events import reason_of
from kpipe_platform.slices.process import deliver
from kpipe_platform.slices.report import RunSummary, SliceReport
from kpipe_platform.slices.run.workers import SliceWorkers
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.target import SliceTarget, prepare_target
from kpipe_platform.slices.values import StagedSlice
from kpipe_platform.slices.write.commit import commit_empty
from kpipe_platform.slices.write.delivery import open_delivery
from kpipe_platform.spark.failures import classified
from kpipe_platform.spark.stage.notes import StageNotes


def emit_plain(
    context: dg.OutputContext,
    output: Any,
    kafka_step: KafkaStep,
    *,
    destination: Destination | None,
    store: Store | None,
) -> Iterator[Any]:
    """Store the output of a plain asset, and commit the slices that its inputs loaded."""
    settings, step = kafka_step.settings, kafka_step.step
    reads = take_reads(step.id)
    reports: list[SliceReport] = []
    try:
        workers = SliceWorkers(lambda: settings.engine.spark_session, settings.source)

        def work() -> None:
            slice_ = _joined(kafka_step, reads)
            with workers.at_work(slice_):
                warn = partial(warn_left_out, context, settings.run.asset)
                reports.append(_deliver(output, settings, slice_, reads, destination, store, warn))

        with classified(", ".join(str(read.slice) for read in reads) or step.step_key):
            workers.run(work)
    except Exception as error:
        _end(reads, error)
        raise
    except BaseException as interruption:
        _end(reads, interruption)
        if reports:
            # The run was terminated after the commit.
            summary = RunSummary.of(reports)
            log_summary(context, summary)
            for key in step.partition_keys or (None,):
                yield from materializations(context, key, summary, settings.run.provenance)
        raise
    finally:
        for read in reads:
            read.release()
    for read in reads:
        read.watch.done(reports[0])
        read.watch.ended()
        read.events.deliver()
    summary = RunSummary.of(reports)
    log_summary(context, summary)
    context.add_output_metadata(materialization_metadata(summary, settings.run.provenance))


def _end(reads: Sequence[OpenRead], error: BaseException) -> None:
    for read in reads:
        read.events.close(reason_of(error))


def _deliver(
    output: Any,
    settings: SliceSettings,
    slice_: Slice,
    reads: Sequence[OpenRead],
    destination: Destination | None,
    store: Store | None,
    prepared: Callable[[SliceTarget], None],
) -> SliceReport:
    with Clients(settings.source) as clients:
        target = prepare_target(settings, clients, [read.topic for read in reads], destination, plain=True)
    prepared(target)
    if reads and slice_.is_empty:
        return commit_empty(slice_, settings)
    sources = {read.topic.name: (read.topic, read.frames) for read in reads if read.frames is not None}
    notes = StageNotes.joined(read.notes for read in reads)
    staged = StagedSlice(slice_, sources, check_rows(settings.run.asset, output), notes)
    return deliver(staged, open_delivery(settings, target, None if store is None else store_slice_by(store)))


def _joined(kafka_step: KafkaStep, reads: Sequence[OpenRead]) -> Slice:
    """Join all slices that the step read into one, so that their offsets are committed together."""
    if len(reads) == 1:
        return reads[0].slice
    step = kafka_step.step
    names = [read.topic.name for read in reads]
    if len(set(names)) < len(names):
        msg = f"asset {step.asset_key.to_user_string()} reads a topic more than once: {', '.join(sorted(names))}"
        raise ConfigError(msg, fix="read each topic once, and reuse the DataFrame")
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

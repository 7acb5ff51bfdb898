"""The output of a ``@kafka_asset``: run its slices and report the results to Dagster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from kpipe_platform.codecs.topics import Destination
from kpipe_platform.dead_letters import Distribution
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.current import Store, store_slice_by
from kpipe_platform.io_managers.metadata import materialization_metadata
from kpipe_platform.io_managers.partition_events import StepEvents, Watch
from kpipe_platform.io_managers.results import (
    check_rows,
    log_summary,
    materializations,
    metadata_by_asset,
    outputs_by_name,
    warn_left_out,
)
from kpipe_platform.io_managers.step import KafkaStep, StepInput, kafka_partitions_of
from kpipe_platform.observability.events import reason_of
from kpipe_platform.slices.report import PartitionResult, partitions_failed
from kpipe_platform.slices.run.events import RunEvent, SliceCommitted, SliceStarted, TargetPrepared, UnitFinished
from kpipe_platform.slices.run.runner import SliceRunner
from kpipe_platform.slices.values import DeferredStage, Unit
from kpipe_platform.spark.stage.notes import current_notes

_INTERRUPTIONS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)


def emit_deferred(
    context: dg.OutputContext, stage: DeferredStage, *, destination: Destination | None, store: Store | None
) -> Iterator[Any]:
    """Run a ``@kafka_asset``'s slices and report them.

    Yields:
        Materializations of committed slices, if the run fails or is terminated.

    Raises:
        KpipeError: A slice failed. Earlier committed slices are still reported.
    """
    kafka_step = _step_of(stage)
    asset = kafka_step.settings.run.asset

    def call(inputs: Mapping[str, Any]) -> Any:
        result = stage.call(inputs)
        if destination is not None and destination.has_outputs:
            outputs = outputs_by_name(result, destination.names, asset)
            return {name: check_rows(f"{asset}, output {name!r}", output) for name, output in outputs.items()}
        return check_rows(asset, result)

    by_slice = None if store is None else store_slice_by(store)
    runner = SliceRunner(replace(stage, call=call), kafka_step.settings, destination, by_slice)
    _note_metadata(dg.AssetExecutionContext.get().op_execution_context, destination)
    listener = _Listener(context, stage, kafka_step)
    try:
        yield from _emit(context, kafka_step, runner, listener)
    except BaseException as error:
        listener.events.close("the run was terminated" if isinstance(error, _INTERRUPTIONS) else reason_of(error))
        raise
    listener.events.close()


def _step_of(stage: DeferredStage) -> KafkaStep:
    first = next(iter(stage.inputs.values()))
    assert isinstance(first, StepInput)  # noqa: S101  # a KafkaIOManager loaded it
    return first.kafka_step


class _Listener:
    """Forwards the events of a run to Dagster's log and to the partition events."""

    def __init__(self, context: dg.OutputContext, stage: DeferredStage, kafka_step: KafkaStep) -> None:
        self._context = context
        self._asset = kafka_step.settings.run.asset
        topics = [each.topic.name for each in stage.inputs.values()]
        observe = context.log_event if kafka_step.observes_partitions else None
        self.events = StepEvents(kafka_step.step, topics, observe)
        self._watches: dict[Unit, Watch] = {}
        self.finished: set[Unit] = set()

    def handle(self, event: RunEvent) -> None:
        """Forward one event, in the step's thread."""
        if isinstance(event, TargetPrepared):
            warn_left_out(self._context, self._asset, event.target)
        elif isinstance(event, SliceStarted):
            self._watch(event.unit).planned(event.slice)
        elif isinstance(event, SliceCommitted):
            self._watch(event.unit).done(event.report)
        elif isinstance(event, UnitFinished):
            self._finished(event.result)
        self.events.deliver()

    def _finished(self, result: PartitionResult) -> None:
        error = result.error
        self.finished.add(result.unit)
        self._watch(result.unit).ended(None if error is None else reason_of(error))
        log_summary(self._context, result.summary)
        if error is not None and result.unit.partition is not None:
            self._context.log.error("asset %s, partition %s failed: %s", self._asset, result.unit.partition, error)

    def _watch(self, unit: Unit) -> Watch:
        if unit not in self._watches:
            self._watches[unit] = self.events.watch(None if unit.partition is None else [unit.partition])
        return self._watches[unit]


def _note_metadata(context: dg.OpExecutionContext, destination: Destination | None) -> None:
    """Let the stage call ``context.add_output_metadata``.

    For Dagster, the output already exists before the stage is called and accepts no more metadata. This function
    collects the metadata of each stage call instead. It is reported with the call's slice after the commit. Without an
    output name, it is that of all outputs.
    """
    add = context.add_output_metadata
    topics: dict[str, str | None] = dict.fromkeys(context.op_def.output_dict)
    if destination is not None and destination.has_outputs:
        topics = {name: topic.name for name, topic in zip(destination.names, destination.topics, strict=True)}

    def note(metadata: Mapping[str, Any], output_name: str | None = None, mapping_key: str | None = None) -> None:
        notes = current_notes()
        if notes is None:
            add(metadata, output_name, mapping_key)
        elif output_name is not None and output_name not in topics:
            msg = f"the stage adds metadata to an output {output_name!r}, which it does not have"
            raise ConfigError(msg, fix=f"use one of {', '.join(map(repr, topics))}, or leave out output_name=")
        else:
            topic = None if output_name is None else topics[output_name]
            # Let metadata that Dagster cannot store fail here, not after the commit.
            checked = dg.AssetMaterialization("checked", metadata=metadata).metadata
            notes.metadata |= {(topic, key): value for key, value in checked.items()}

    context.add_output_metadata = note  # type: ignore[method-assign]  # of this step's own object


def _emit(context: dg.OutputContext, kafka_step: KafkaStep, runner: SliceRunner, listener: _Listener) -> Iterator[Any]:
    step, provenance = kafka_step.step, kafka_step.settings.run.provenance
    units = [Unit()] if step.partition_keys is None else [Unit(number) for number in kafka_partitions_of(step, list)]
    try:
        results = _run(runner, units, listener)
    except _INTERRUPTIONS:
        # A terminated run may have committed slices; a lingering run, perhaps thousands.
        for result in runner.results.values():
            if result.unit not in listener.finished:
                log_summary(context, result.summary)
        yield from _materializations(context, runner.results.values(), provenance)
        raise
    failed = [result.error for result in results if result.error is not None]
    if failed:
        # Report committed slices, so that Dagster's copy of the offsets matches the group's offsets.
        yield from _materializations(context, results, provenance)
        raise failed[0] if step.partition_keys is None else partitions_failed(results)
    for result in results:
        if len(units) == 1 and not step.outputs:
            context.add_output_metadata(materialization_metadata(result.summary, provenance))
            continue
        for key, metadata in metadata_by_asset(context, result.summary, provenance).items():
            # Dagster adds it to the materializations that it makes of each output after its handle_output.
            number = result.unit.partition
            partition_key = None if len(units) == 1 else str(number)
            context.step_context.add_asset_metadata(metadata, asset_key=key, partition_key=partition_key)


def _run(runner: SliceRunner, units: list[Unit], listener: _Listener) -> list[PartitionResult]:
    try:
        return runner.run(units, listener.handle)
    except BaseException:
        for event in runner.undelivered():
            listener.handle(event)
        raise


def _materializations(
    context: dg.OutputContext, results: Iterable[PartitionResult], provenance: Distribution
) -> Iterator[Any]:
    for result in results:
        if result.summary.slices:
            number = result.unit.partition
            yield from materializations(context, None if number is None else str(number), result.summary, provenance)

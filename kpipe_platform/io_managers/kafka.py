"""The IO manager of Kafka assets."""

# No postponed annotations here: Dagster reads the type of a resource dependency when it creates the class.

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pydantic import Field, PrivateAttr

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import Destination
from kpipe_platform.errors import ConfigError, OffsetsNotStoredError
from kpipe_platform.io_managers.dead_letters import DeadLetterTable, TableReader, load_dead_letters
from kpipe_platform.io_managers.deferred import emit_deferred
from kpipe_platform.io_managers.open_reads import OpenRead, forget, note_read, note_table
from kpipe_platform.io_managers.partition_events import StepEvents
from kpipe_platform.io_managers.plain import emit_plain
from kpipe_platform.io_managers.step import (
    ASSET_METADATA,
    READ_FEED,
    READ_TABLE,
    KafkaStep,
    Step,
    StepInput,
    destination_of,
    kafka_partitions_of,
    limit_of,
    policies_of,
    read_of,
    refuse_unknown,
    scaling_of,
    step_of,
    topic_of,
)
from kpipe_platform.metadata_keys import FORM, READ
from kpipe_platform.observability.events import reason_of
from kpipe_platform.partitions.groups import outputs_of
from kpipe_platform.partitions.owners import distribution_of
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.limits import NO_LIMIT
from kpipe_platform.resources._compat import io_manager_of_output
from kpipe_platform.resources.connected import Connected, connect_parts
from kpipe_platform.resources.connection import KafkaConnection
from kpipe_platform.resources.destination import KafkaDeadLetterDestination, KafkaDestination
from kpipe_platform.resources.known_names import KnownNames, require_kind
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.resources.spark import engine_of
from kpipe_platform.slices.plan.planner import partitions_of, plan_next
from kpipe_platform.slices.read import read_sources
from kpipe_platform.slices.settings import Engine, Parallelism, RunInfo, SliceSettings
from kpipe_platform.slices.values import DeferredStage, WrittenOutput
from kpipe_platform.spark.source.client_reader import is_beyond_spark
from kpipe_platform.spark.source.latest_by_key import latest_by_key
from kpipe_platform.spark.source.reader import empty_slice
from kpipe_platform.spark.source.rows import TopicCodecs
from kpipe_platform.spark.stage.convert import requested_form, to_form

# The parts of the IO manager that use its connection unless they have their own.
_PARTS: dict[str, type[Connected]] = {
    "source": KafkaSource,
    "destination": KafkaDestination,
    "dead_letter": KafkaDeadLetterDestination,
}


class StoresOffsets:
    """Marker for IO managers that commit the offsets of the slices that a step read."""

    def check_asset(self, asset: str, metadata: Mapping[str, Any]) -> None:
        """Reject an asset whose output cannot be stored, before any work starts.

        Args:
            asset: The asset's name, for messages.
            metadata: The asset's metadata.

        Raises:
            ConfigError: The output cannot be stored.
        """


class KafkaIOManager(KnownNames, dg.ConfigurableIOManager, StoresOffsets):
    """Loads an asset's Kafka input as the next slice of its topic, and writes an asset's output to Kafka.

    Offsets are committed with the output: in its transaction (exactly once), or after its acknowledgments (at least
    once).

    Args:
        connection: Connection of ``source``, ``destination`` and ``dead_letter``, unless they have their own. None:
            each has its own.
        spark: The engine: a ``SparkEngine``, or a ``LazyPySparkResource`` or ``PySparkResource`` of dagster-pyspark
            whose session has the Kafka connector.
        source: Plans and reads slices. Default: ``KafkaSource()``.
        destination: Writes outputs. Default: ``KafkaDestination()``. None, also the default without ``connection``:
            this IO manager only reads.
        dead_letter: Writes failed records whose action is ``FaultAction.DEAD_LETTER``. None: assets cannot use that
            action.
        on_fault: Default action for failed records: stop, dead_letter, skip or rethrow. The asset can override it.
        fault_policies: Default actions and retries by component, ``FaultPolicies(...).to_config()``. The asset can
            override them.

    Raises:
        ConfigError: A part has no connection, or an argument is unknown or of another kind.
    """

    # The type errors are ignored because Dagster replaces these descriptors with values.
    connection: dg.ResourceDependency[KafkaConnection | None] = Field(
        default=None,  # type: ignore[arg-type]
        description="connection of source, destination and dead_letter, unless they have their own",
    )
    spark: dg.ResourceDependency[LazyPySparkResource | PySparkResource]
    # Factories, so that Dagster, which leaves out defaults when it copies a resource, keeps a destination of None.
    source: dg.ResourceDependency[KafkaSource] = Field(default_factory=KafkaSource)  # type: ignore[arg-type]
    destination: dg.ResourceDependency[KafkaDestination | None] = Field(
        default_factory=KafkaDestination  # type: ignore[arg-type]
    )
    dead_letter: dg.ResourceDependency[KafkaDeadLetterDestination | None] = Field(
        default=None  # type: ignore[arg-type]
    )
    on_fault: str = Field(default="stop", description="stop, dead_letter, skip or rethrow")
    fault_policies: dict[str, Any] = Field(
        default={},
        description="fault action and retry policy by component: "
        '{"destination": {"action": "skip", "retry": {"max_attempts": 3}}}',
    )

    _engine: Engine | None = PrivateAttr(default=None)

    def __init__(self, **data: Any) -> None:
        super().__init__(**self._connected(data))

    @classmethod
    def configure_at_launch(cls, **kwargs: Any) -> Any:
        """Same as Dagster's, but checks the arguments immediately instead of at launch."""
        return super().configure_at_launch(**cls._connected(kwargs))

    @classmethod
    def _connected(cls, data: dict[str, Any]) -> dict[str, Any]:
        cls._refuse_unknown(data)
        require_kind(cls, data, "spark", LazyPySparkResource, PySparkResource)
        connection = data.get("connection")
        defaults = {
            "source": KafkaSource(),
            "destination": None if connection is None else KafkaDestination(),
        }
        return connect_parts(cls, {**defaults, **data}, _PARTS)

    @property
    def engine(self) -> Engine:
        """The engine of the resource ``spark``."""
        if self._engine is None:
            self._engine = engine_of(self.spark)
        return self._engine

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Release the run's tables and the slices that failed steps read."""
        if context.run is not None:
            forget(context.run.run_id)

    def load_input(self, context: dg.InputContext) -> Any:
        """Load the next slice of the upstream asset's topic.

        The input's annotation selects the form. An input with metadata ``{"kpipe/read": "table"}`` loads the whole
        topic as the latest value of each key. An input of ``dead_letter_asset`` loads the dead letters. Neither commits
        offsets.

        Raises:
            OffsetsNotStoredError: The offsets of the slice would not be stored, or storing them cannot be guaranteed.
            KpipeError: The slice cannot be planned.
        """
        topic = topic_of(_upstream_metadata(context), context.asset_key)
        how = read_of(context.definition_metadata, f"input {context.name!r} of {context.step_context.step.key}")
        form = context.definition_metadata.get(FORM) or requested_form(context.dagster_type.typing_type)
        dead_letters = DeadLetterTable.of(_upstream_metadata(context))
        if dead_letters is not None and READ not in context.definition_metadata:
            return load_dead_letters(self.table_reader(), dead_letters, context.asset_key, form)
        if how == READ_TABLE:
            return self._load_table(context, topic, form)
        kafka_step = self.kafka_step(context.step_context)
        _refuse_unstored(context.step_context, context.asset_key)
        if how == READ_FEED:
            topic.require_readable()
            return StepInput(topic, form, kafka_step)
        _refuse_untyped(context.step_context, context.asset_key)
        return self._load_slice(context.step_context, kafka_step, topic, form)

    def _load_slice(
        self, step_context: dg.StepExecutionContext, kafka_step: KafkaStep, topic: KafkaTopic, form: str
    ) -> Any:
        step, settings = kafka_step.step, kafka_step.settings
        if step.partition_keys is not None and len(step.partition_keys) > 1:
            msg = (
                f"asset {step.asset_key.to_user_string()} is a plain @dg.asset, which reads one partition per run, but "
                f"this run has {len(step.partition_keys)} partitions"
            )
            raise ConfigError(
                msg,
                fix="declare it with @kafka_asset, which calls the stage once for each partition, or materialize one "
                "partition per run (the default backfill policy)",
            )
        observe = partial(dg.DagsterEvent.asset_observation, step_context) if kafka_step.observes_partitions else None
        events = StepEvents(step, [topic.name], observe)
        try:
            with self.source.clients() as clients:
                numbers = kafka_partitions_of(step, lambda: self.source.partition_numbers(topic.name))
                slice_ = plan_next(
                    clients,
                    settings.policy,
                    partitions_of(clients, [topic], numbers),
                    run_id=step.run_id,
                    last_materialization=step.earlier,
                )
            watch = events.watch(numbers)
            watch.planned(slice_)
            events.deliver()
            if slice_.is_empty:
                note_read(step.id, OpenRead(kafka_step, slice_, topic, None, events, watch))
                topic = topic.resolved(settings.source.registry())
                good = empty_slice(self.engine.spark_session, TopicCodecs.of(topic)).good
                return to_form(good, form, topic.value_codec)
            with self.source.clients() as clients:
                # The function runs only once, so check first whether Spark's Kafka source would fail on a record.
                by_client = is_beyond_spark(clients, [p.range for p in slice_.ranges], self.source.isolation)
            # The function runs only once, so the ids of all schemas must be known before.
            read = read_sources(slice_, {topic.name: topic}, settings, by_client=by_client, find_ids=True)
            ((topic, frames),) = read.values()
            note_read(step.id, OpenRead(kafka_step, slice_, topic, frames, events, watch))
            return to_form(frames.good, form, topic.value_codec)
        except BaseException as error:
            events.close(reason_of(error))
            raise

    def _load_table(self, context: dg.InputContext, topic: KafkaTopic, form: str) -> Any:
        topic.require_readable()
        with self.source.clients() as clients:
            topic, table = latest_by_key(
                self.engine.spark_session,
                clients,
                topic,
                isolation=self.source.isolation,
                group=self.source.group(context.asset_key),
                parallelism=self.engine.tasks_at_once,
                hide_messages=self.dead_letter is not None and self.dead_letter.redact is not None,
            )
        note_table(context.step_context.run_id, table)
        return to_form(table.good, form, topic.value_codec)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> Iterator[Any]:  # type: ignore[override]
        """Write the output to the asset's topic and commit the offsets of the slices that the step read.

        Raises:
            KpipeError: A slice failed; the offsets of slices that were not committed are unchanged.
        """
        if isinstance(obj, WrittenOutput):
            # Written with the first output of its @kafka_multi_asset.
            return
        destination = self._destination(context)
        if isinstance(obj, DeferredStage):
            yield from emit_deferred(context, obj, destination=destination, store=None)
        else:
            kafka_step = self.kafka_step(context.step_context)
            yield from emit_plain(context, obj, kafka_step, destination=destination, store=None)

    def _destination(self, context: dg.OutputContext) -> Destination:
        assets = context.step_context.assets_def
        outputs = {} if assets is None else outputs_of(assets)
        if assets is None or not outputs:
            return destination_of(context.definition_metadata, context.asset_key)
        topics = {name: topic_of(assets.metadata_by_key[key], key) for name, key in outputs.items()}
        return Destination.of_outputs(topics)

    def table_reader(self) -> TableReader:
        """Return the resources that read dead-letter topics as tables."""
        return TableReader(self.source, self.engine, self.dead_letter)

    def _policies(self) -> FaultPolicies:
        return FaultPolicies.of(self.fault_policies).over(FaultPolicies.of(self.on_fault))

    def kafka_step(self, step_context: dg.StepExecutionContext) -> KafkaStep:
        """Return a step with its slice settings, from the resources and the asset's metadata."""
        step: Step = step_of(step_context, self.source.group, type(self).__name__)
        metadata = _asset_metadata(step_context, step.asset_key)
        asset = step.asset_key.to_user_string()
        refuse_unknown(metadata, ASSET_METADATA, f"asset {asset}")
        scaling = scaling_of(metadata, self.source.scaling)
        dead_letter = self.dead_letter
        is_redacting = dead_letter is not None and dead_letter.redact is not None
        settings = SliceSettings(
            run=RunInfo(
                asset=asset,
                group=step.group,
                run_id=step.run_id,
                attempt=step.attempt,
                provenance=distribution_of(step.tags, step.group, self.source.ownership),
                last_materialization=step.earlier,
                partition_keys=step.known_keys,
            ),
            engine=self.engine,
            source=self.source.connection_settings,
            policy=self.source.policy(step.group, scaling),
            policies=policies_of(metadata, self._policies()),
            destination=None if self.destination is None else self.destination.settings(is_redacting=is_redacting),
            dead_letter=None if dead_letter is None else dead_letter.settings,
            limit=limit_of(metadata, NO_LIMIT if dead_letter is None else dead_letter.limit),
            parallelism=Parallelism(scaling.partitions_at_once, scaling.in_flight_per_partition),
            hide_messages=is_redacting,
        )
        return KafkaStep(step, settings, scaling.emit_partition_execution_events)


def _upstream_metadata(context: dg.InputContext) -> Any:
    return context.upstream_output.definition_metadata if context.upstream_output is not None else {}


def _asset_metadata(step_context: dg.StepExecutionContext, asset_key: dg.AssetKey) -> dict[str, Any]:
    assets = step_context.assets_def
    return dict(assets.metadata_by_key.get(asset_key, {})) if assets is not None else {}


def _refuse_unstored(step_context: dg.StepExecutionContext, topic_asset: dg.AssetKey) -> None:
    """Reject a step if an output's IO manager does not store offsets, before any work starts.

    Raises:
        ConfigError: The IO manager cannot store the asset.
        OffsetsNotStoredError: The offsets would not move, and every run would read the same slice.
    """
    for output in step_context.step.step_outputs:
        if output.properties.asset_check_key is not None:
            continue
        stored = not output.dagster_type_key.startswith("Nothing")
        manager = io_manager_of_output(step_context, output.name)
        if not stored or not isinstance(manager, StoresOffsets):
            definition = step_context.op_def.output_def_named(output.name)
            msg = (
                f"{step_context.step.key} reads topic asset {topic_asset.to_user_string()}, but its IO manager "
                f"{definition.io_manager_key!r} does not store offsets: every run would read the same slice"
            )
            raise OffsetsNotStoredError(
                msg,
                fix="write to Kafka with KafkaIOManager, or wrap the IO manager: OffsetCommittingIOManager(inner=...)",
                step=step_context.step.key,
            )
        key = output.properties.asset_key
        if key is not None:
            manager.check_asset(key.to_user_string(), _asset_metadata(step_context, key))


def _refuse_untyped(step_context: dg.StepExecutionContext, topic_asset: dg.AssetKey) -> None:
    """Reject a plain asset without a return annotation, before any work starts.

    Dagster skips the IO manager for a MaterializeResult without a value, unless the output has a declared type that the
    missing value does not match.

    Raises:
        OffsetsNotStoredError: A run could succeed without storing the offsets.
    """
    for output in step_context.step.step_outputs:
        definition = step_context.op_def.output_def_named(output.name)
        if output.properties.asset_check_key is None and definition.dagster_type.is_any:
            msg = (
                f"{step_context.step.key} reads topic asset {topic_asset.to_user_string()}, but has no return "
                "annotation: if it returned a MaterializeResult without a value, the run would succeed without storing "
                "output or offsets"
            )
            raise OffsetsNotStoredError(
                msg,
                fix="annotate the return type, for example -> DataFrame; to add metadata, annotate "
                "-> MaterializeResult[DataFrame] and return MaterializeResult(value=..., metadata=...)",
                step=step_context.step.key,
            )

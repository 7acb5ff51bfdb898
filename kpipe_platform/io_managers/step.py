"""A Dagster step and its settings for slices, from the step's context and metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import Destination, KafkaTopics
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.metadata_keys import (
    CONSUMER_GROUP,
    DEAD_LETTER_TABLE,
    FORM,
    LIMIT,
    MULTI_ASSET,
    ON_FAULT,
    PREFIX,
    READ,
    SCALING,
    TOPIC,
    TOPIC_SETTINGS,
    TOPICS,
    stored_metadata,
)
from kpipe_platform.partitions.definition import partition_number
from kpipe_platform.partitions.groups import outputs_of
from kpipe_platform.partitions.materializations import last_materialization, ranges_of
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.policies.limits import DeadLetterLimit
from kpipe_platform.resources.scaling import PartitionScaling
from kpipe_platform.slices.plan.ranges import LastMaterialization
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.values import TopicInput

READ_SLICE, READ_FEED, READ_TABLE = "slice", "feed", "table"

ASSET_METADATA = (TOPIC, TOPIC_SETTINGS, TOPICS, MULTI_ASSET, ON_FAULT, LIMIT, SCALING, DEAD_LETTER_TABLE)
INPUT_METADATA = (READ, FORM)


StepId = tuple[str, str, int]
"""Run, step and attempt."""


@dataclass(frozen=True)
class Step:
    """A step that materializes one Kafka-reading asset.

    Args:
        asset_key: The asset; of a ``@kafka_multi_asset``, the first one.
        group: Its consumer group.
        run_id: Dagster run.
        step_key: Step of the run.
        attempt: Attempt of the step, from 1.
        partition_keys: Dagster partitions of the asset in this run; None for an unpartitioned asset.
        instance: Dagster instance, to look up the last materialization.
        tags: The run's tags, which name the deployment that requested it.
        known_keys: All of the asset's Dagster partitions; None for an unpartitioned asset.
        outputs: The assets of a ``@kafka_multi_asset`` by output name; empty for a single asset.
    """

    asset_key: dg.AssetKey
    group: str
    run_id: str
    step_key: str
    attempt: int
    partition_keys: tuple[str, ...] | None
    instance: dg.DagsterInstance
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    known_keys: frozenset[str] | None = None
    outputs: Mapping[str, dg.AssetKey] = field(default_factory=dict, hash=False)

    @property
    def id(self) -> StepId:
        """Unique id of this attempt of the step."""
        return (self.run_id, self.step_key, self.attempt)

    def earlier(self, partition: Partition) -> LastMaterialization | None:
        """Return the last materialization of a Kafka partition in Dagster; None if there is none."""
        topic, number = partition
        key = None if self.partition_keys is None else str(number)
        found = last_materialization(self.instance, self.asset_key, key)
        if found is None:
            return None
        group = str(stored_metadata(found.metadata)[CONSUMER_GROUP].value)
        ends = [each for each in ranges_of(found) if each["topic"] == topic and each["partition"] == number]
        return LastMaterialization(int(ends[0]["end"]), ends[0]["topic_id"], group) if ends else None


@dataclass(frozen=True)
class KafkaStep:
    """A step with the slice settings from its IO manager and its asset.

    Args:
        step: The step.
        settings: The settings of its slices.
        observes_partitions: Whether partition events are also stored as observations. Default False.
    """

    step: Step
    settings: SliceSettings
    observes_partitions: bool = False


@dataclass(frozen=True)
class StepInput(TopicInput):
    """A Kafka input of a ``@kafka_asset``: the topic, and the step that loaded it.

    Args:
        kafka_step: The step.
    """

    kafka_step: KafkaStep


def step_id(step_context: dg.StepExecutionContext) -> StepId:
    """Return the unique id of this attempt of the step."""
    return (step_context.run_id, step_context.step.key, step_context.previous_attempt_count + 1)


def step_of(step_context: dg.StepExecutionContext, group_of: Callable[[dg.AssetKey], str], io_manager: str) -> Step:
    """Create the step from a Dagster context.

    Raises:
        ConfigError: The step does not materialize exactly one asset.
    """
    assets = step_context.assets_def
    outputs = {} if assets is None else outputs_of(assets)
    keys = list(outputs.values()) or list(assets.keys if assets is not None else ())
    if len(keys) != 1 and not outputs:
        shown = ", ".join(key.to_user_string() for key in keys) or "no asset"
        msg = (
            f"{io_manager}: step {step_context.step.key!r} must materialize exactly one asset, but materializes {shown}"
        )
        raise ConfigError(
            msg,
            fix="read the Kafka topic in a separate asset: its offsets are committed with that asset's output; to "
            "write several topics, use @kafka_multi_asset",
            step=step_context.step.key,
        )
    taken, known = _partition_keys(step_context)
    return Step(
        asset_key=keys[0],
        group=group_of(keys[0]),
        run_id=step_context.run_id,
        step_key=step_context.step.key,
        attempt=step_context.previous_attempt_count + 1,
        partition_keys=taken,
        instance=step_context.instance,
        tags=step_context.run_tags,
        known_keys=known,
        outputs=outputs,
    )


def _partition_keys(step_context: dg.StepExecutionContext) -> tuple[tuple[str, ...] | None, frozenset[str] | None]:
    """Return the step's Dagster partitions and all of the asset's; None for an unpartitioned asset."""
    definition = step_context.entity_partitions_def
    if definition is None:
        return None, None
    if not step_context.has_partitions:
        msg = f"step {step_context.step.key!r} materializes a partitioned asset, but the run has no partition key"
        raise ConfigError(msg, fix='select a partition, for example dg.materialize(..., partition_key="0")')
    with dg.partition_loading_context(dynamic_partitions_store=step_context.instance):
        taken = tuple(definition.get_partition_keys_in_range(step_context.partition_key_range))
        return taken, frozenset(definition.get_partition_keys())


def kafka_partitions_of(step: Step, numbers: Callable[[], list[int]]) -> list[int]:
    """Return the Kafka partitions of the step: those of its Dagster partitions, or all partitions of the topic."""
    if step.partition_keys is None:
        return numbers()
    return [partition_number(key) for key in step.partition_keys]


def topic_of(metadata: Mapping[str, Any] | None, asset_key: dg.AssetKey) -> KafkaTopic:
    """Return the topic that an asset declares; by default a JSON topic named after the asset.

    Raises:
        ConfigError: The declaration is incomplete, or the asset writes several topics.
    """
    if _plain(metadata, TOPICS) is not None:
        msg = f"asset {asset_key.to_user_string()} writes several topics, so it cannot be read as one"
        raise ConfigError(msg, fix="declare a kafka_topic_asset for the topic to read")
    name, settings = _plain(metadata, TOPIC), _plain(metadata, TOPIC_SETTINGS)
    if name is None and settings is None:
        return KafkaTopic(".".join(asset_key.path))
    if not isinstance(name, str) or not isinstance(settings, Mapping):
        msg = (
            f"asset {asset_key.to_user_string()} has incomplete topic metadata: {TOPIC!r} is {name!r}, "
            f"{TOPIC_SETTINGS!r} is {settings!r}"
        )
        raise ConfigError(msg, fix='set metadata=KafkaTopic("name", value_codec=JsonCodec(...)).as_metadata()')
    return KafkaTopic.from_config({**settings, "name": name})


def destination_of(metadata: Mapping[str, Any] | None, asset_key: dg.AssetKey) -> Destination:
    """Return the topic or the topics that an asset declares; by default a JSON topic named after the asset."""
    several = _plain(metadata, TOPICS)
    if several is None:
        return Destination.of(topic_of(metadata, asset_key))
    if _plain(metadata, TOPIC) is not None:
        msg = f"asset {asset_key.to_user_string()} declares both {TOPIC} and {TOPICS}"
        raise ConfigError(msg, fix="use the metadata of one KafkaTopic or of one KafkaTopics")
    return Destination.of(KafkaTopics.from_config(several))


def scaling_of(metadata: Mapping[str, Any] | None, default: PartitionScaling) -> PartitionScaling:
    """Return the scaling that an asset declares, or the default."""
    declared = _plain(metadata, SCALING)
    return default if declared is None else PartitionScaling(**declared)


def policies_of(metadata: Mapping[str, Any] | None, default: FaultPolicies) -> FaultPolicies:
    """Return the fault policies that an asset declares, completed with the default.

    Raises:
        ConfigError: The declaration is invalid.
    """
    declared = _plain(metadata, ON_FAULT)
    return default if declared is None else FaultPolicies.of(declared).over(default)


def limit_of(metadata: Mapping[str, Any] | None, default: DeadLetterLimit) -> DeadLetterLimit:
    """Return the dead-letter limit that an asset declares, completed with the default.

    Raises:
        ConfigError: A number is out of range.
    """
    declared = _plain(metadata, LIMIT) or {}
    return replace(default, **{name: value for name, value in declared.items() if value is not None})


def read_of(metadata: Mapping[str, Any] | None, whose: str) -> str:
    """Return the read mode of an input: ``slice``, ``feed`` or ``table``.

    Args:
        metadata: The input's metadata.
        whose: The input, for messages.

    Raises:
        ConfigError: The input has an unknown read mode, or unknown ``kpipe/`` metadata.
    """
    refuse_unknown(metadata, INPUT_METADATA, whose)
    how = _plain(metadata, READ)
    if how is None:
        return READ_SLICE
    if how not in (READ_SLICE, READ_FEED, READ_TABLE):
        msg = f"{whose} has metadata {READ}={how!r}, which is not a read mode"
        raise ConfigError(msg, fix=f"use {READ_TABLE!r} to load the whole topic, or remove it to load the next slice")
    return str(how)


def refuse_unknown(metadata: Mapping[str, Any] | None, known: Sequence[str], whose: str) -> None:
    """Reject unknown ``kpipe/`` metadata, which would otherwise be ignored.

    Args:
        metadata: The declared metadata.
        known: The known names.
        whose: The asset or input, for messages.

    Raises:
        ConfigError: A name is unknown.
    """
    for name in metadata or {}:
        if name.startswith(PREFIX) and name not in known:
            msg = f"{whose} has unknown metadata {name!r}"
            raise ConfigError(msg, fix=f"use one of {', '.join(known)}, or a name without the prefix {PREFIX}")


def _plain(metadata: Mapping[str, Any] | None, name: str) -> Any:
    """Return a metadata value without Dagster's wrapper."""
    value = (metadata or {}).get(name)
    return value.value if isinstance(value, dg.MetadataValue) else value

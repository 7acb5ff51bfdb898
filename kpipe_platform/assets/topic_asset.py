"""A Kafka topic that is written outside Dagster, as an external, observable asset."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform.assets.observation import last_observations, observe_topic
from kpipe_platform.codecs import Codec, JsonCodec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.kafka import KafkaIOManager
from kpipe_platform.io_managers.step import ASSET_METADATA, refuse_unknown
from kpipe_platform.metadata_keys import KEY_CODEC, VALUE_CODEC
from kpipe_platform.partitions import kafka_partitions, partition_number, register_kafka_partitions


def kafka_topic_asset(
    topic: str,
    *,
    value_codec: Codec,
    key_codec: Codec | None = None,
    partitions: int | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    group_name: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    io_manager_key: str = "kafka_io_manager",
    readers: Sequence[dg.AssetKey | str | Sequence[str]] = (),
    groups: Sequence[str] = (),
) -> dg.SourceAsset:
    """Declare a topic that is written outside Dagster.

    Args:
        topic: Topic name.
        value_codec: Codec of the values.
        key_codec: Codec of the keys; None: RawCodec().
        partitions: Fixed number of partitions; None: dynamic, registered when the asset is observed.
        name: Asset name; None: the topic name, with all characters except ASCII letters, digits and _ replaced by _.
        key_prefix: Prefix of the asset key.
        group_name: Dagster asset group.
        description: Text for the UI.
        metadata: Further metadata.
        io_manager_key: Resource key of the KafkaIOManager that loads the asset. Observations use its source.
        readers: Keys of the assets that read the topic. An observation reports how long each has until retention
            deletes records that it has not read.
        groups: Further consumer groups to report in the same way, for example of services outside Dagster.

    Returns:
        An observable asset with the partitions of the topic. Observing it registers new partitions, and records each
        partition's end offset as the data version, with the metadata of
        ``kpipe_platform.assets.observation.PartitionObservation.metadata``. A run for one partition observes only that
        partition.

    Raises:
        ConfigError: The topic is not readable, for example JSON without a schema; or ``readers`` or ``groups`` is a
            string instead of a list.
    """
    for what, given in (("readers", readers), ("groups", groups)):
        if isinstance(given, str):
            msg = f"kafka_topic_asset({topic!r}, {what}={given!r}) is one text"
            raise ConfigError(msg, fix=f"{what}=[{given!r}]")
    declared = KafkaTopic(topic, value_codec=value_codec, key_codec=key_codec or RawCodec())
    declared.require_readable()
    refuse_unknown(metadata, ASSET_METADATA, f"kafka_topic_asset({topic!r})")
    definition = kafka_partitions(topic, partitions)
    name = name or "".join(c if c.isalnum() and c.isascii() else "_" for c in topic)
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or [])
    asset_key = dg.AssetKey([*prefix, name])

    def observe(context: dg.OpExecutionContext) -> dg.DataVersionsByPartition:
        manager = getattr(context.resources, io_manager_key)
        if not isinstance(manager, KafkaIOManager):
            msg = f"resource {io_manager_key!r} is {type(manager).__name__}, and topic {topic!r} needs a KafkaIOManager"
            raise ConfigError(msg, fix=f'Definitions(resources={{"{io_manager_key}": KafkaIOManager(...)}})')
        source = manager.source
        own = [source.group(dg.AssetKey.from_coercible(reader)) for reader in readers]
        found = observe_topic(
            source,
            topic,
            list(dict.fromkeys([*own, *groups])),
            lambda: last_observations(context.instance, asset_key),
            [partition_number(context.partition_key)] if context.has_partition_key else None,
        )
        if isinstance(definition, dg.DynamicPartitionsDefinition):
            register_kafka_partitions(context.instance, topic, found)
        with dg.partition_loading_context(dynamic_partitions_store=context.instance):
            known = set(definition.get_partition_keys())
        for number, observed in found.items():
            if str(number) not in known:
                context.log.warning(
                    "topic %s has partition %s, which the asset's %s fixed partitions leave out",
                    topic,
                    number,
                    len(known),
                )
                continue
            context.log_event(
                dg.AssetObservation(
                    asset_key=asset_key, partition=str(number), tags=observed.tags(), metadata=observed.metadata()
                )
            )
        # The observations above contain the data versions and the metadata.
        return dg.DataVersionsByPartition({})

    # Dagster marks the decorator as beta; its version is bounded, and users cannot act on the warning.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.observable_source_asset(
            key=asset_key,
            metadata={
                **declared.as_metadata(),
                VALUE_CODEC: _shown(value_codec),
                KEY_CODEC: (key_codec or RawCodec()).name,
                **(metadata or {}),
            },
            io_manager_key=io_manager_key,
            description=description or f"Kafka topic {topic}.",
            group_name=group_name,
            required_resource_keys={io_manager_key},
            partitions_def=definition,
        )
        return decorate(observe)


def _shown(codec: Codec) -> str:
    return f"json: {codec.schema}" if isinstance(codec, JsonCodec) and codec.has_schema else codec.name

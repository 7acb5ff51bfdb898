"""A Kafka topic that is written outside Dagster, as an external, observable asset."""

# No "from __future__ import annotations": Dagster reads the type of the observation's context.
import warnings
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import dagster as dg

from kpipe_platform.assets.observation import last_observations, observe_topic
from kpipe_platform.codecs import Codec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.step import ASSET_METADATA, refuse_unknown
from kpipe_platform.metadata_keys import KEY_CODEC, VALUE_CODEC
from kpipe_platform.partitions.definition import kafka_partitions, partition_number, register_kafka_partitions
from kpipe_platform.resources._compat import OBSERVATION_IS_LOGGED
from kpipe_platform.resources.lookup import source_of


def kafka_topic_asset(
    topic: str,
    *,
    value_codec: Codec,
    key_codec: Codec | None = None,
    partitions: int | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    group_name: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    kinds: AbstractSet[str] = frozenset({"kafka"}),
    automation_condition: dg.AutomationCondition | None = None,  # type: ignore[type-arg]
    io_manager_key: str = "kafka_io_manager",
    readers: Sequence[dg.AssetKey | str | Sequence[str]] = (),
    groups: Sequence[str] = (),
    deps: Sequence[Any] = (),
) -> dg.AssetsDefinition:
    """Declare a topic to read, for example one that is written outside Dagster.

    Args:
        topic: Topic name.
        value_codec: Codec of the values.
        key_codec: Codec of the keys; None: RawCodec().
        partitions: Fixed number of partitions; None: dynamic, registered when the asset is observed.
        partitions_def: Some of the topic's partitions, ``dagster.StaticPartitionsDefinition(["0", "3"])``, instead of
            ``partitions``. None: all partitions.
        name: Asset name; None: the topic name, with all characters except ASCII letters, digits and _ replaced by _.
        key_prefix: Prefix of the asset key.
        group_name: Dagster asset group.
        description: Text for the UI.
        metadata: Further metadata.
        owners: Owners in Dagster: email addresses, or team names such as ``team:orders``.
        tags: Tags of the asset.
        kinds: Kinds of the asset. Default ``{"kafka"}``.
        automation_condition: When Dagster observes the asset. Dagster requests one run for each partition; a schedule
            without a partition key observes all partitions in one run.
        io_manager_key: Resource key of the KafkaIOManager that loads the asset. Observations use its source.
        readers: Keys of the assets that read the topic. An observation reports how long each has until retention
            deletes records that it has not read.
        groups: Further consumer groups to report in the same way, for example of services outside Dagster.
        deps: Assets that write the topic, for Dagster's lineage. All of their partitions may write each partition of
            the topic, unless a ``dagster.AssetDep`` says otherwise.

    Returns:
        An observable asset with the partitions of the topic. Observing it registers new partitions, and records each
        partition's end offset as the data version, with the metadata of
        ``kpipe_platform.assets.observation.PartitionObservation.metadata``. A run for one partition or a range observes
        only those. Its ``get_asset_spec()`` is the same asset without observations, for other code locations.

    Raises:
        ConfigError: The topic is not readable, for example JSON without a schema; Dagster reserves the name;
            ``partitions_def`` has other keys than partition numbers; or an argument is a string instead of a list or
            set.
        DagsterInvalidDefinitionError: Dagster refuses an owner, a tag or the group name.
    """
    where = f"kafka_topic_asset({topic!r})"
    lists = {"readers": readers, "groups": groups, "owners": owners, "kinds": kinds, "deps": deps}
    for what, given in lists.items():
        if isinstance(given, str):
            msg = f"kafka_topic_asset({topic!r}, {what}={given!r}): expected several values, not a string"
            raise ConfigError(msg, fix=f"{what}={{{given!r}}}" if what == "kinds" else f"{what}=[{given!r}]")
    declared = KafkaTopic(topic, value_codec=value_codec, key_codec=key_codec or RawCodec())
    declared.require_readable()
    refuse_unknown(metadata, ASSET_METADATA, where)
    definition = _partitions(topic, partitions, partitions_def, where)
    name = name or "".join(c if c.isalnum() and c.isascii() else "_" for c in topic)
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or [])
    asset_key = dg.AssetKey([*prefix, name])
    description = description or f"Kafka topic {topic}."
    spec = dg.AssetSpec(
        asset_key,
        partitions_def=definition,
        group_name=group_name,
        description=description,
        metadata={
            **declared.as_metadata(),
            VALUE_CODEC: _shown(value_codec),
            KEY_CODEC: (key_codec or RawCodec()).name,
            **(metadata or {}),
        },
        owners=owners,
        tags=tags,
        kinds=set(kinds),
        automation_condition=automation_condition,
        deps=[
            dep if isinstance(dep, dg.AssetDep) else dg.AssetDep(dep, partition_mapping=dg.AllPartitionMapping())
            for dep in deps
        ],
    ).with_io_manager_key(io_manager_key)

    def observe(context: dg.AssetExecutionContext) -> dg.Output[None]:
        # Unlike a sensor's or a check's, this resource must be an IO manager: Dagster loads the asset with it.
        source = source_of(
            context.resources,
            io_manager_key,
            f"the observation of topic {topic!r}",
            wanted="a KafkaIOManager",
            argument="kafka_topic_asset(io_manager_key=...)",
        )
        own = [source.group(dg.AssetKey.from_coercible(reader)) for reader in readers]
        is_partial = context.has_partition_key or context.has_partition_key_range
        found = observe_topic(
            source,
            topic,
            list(dict.fromkeys([*own, *groups])),
            lambda: last_observations(context.instance, asset_key),
            [partition_number(key) for key in context.partition_keys] if is_partial else None,
        )
        if isinstance(definition, dg.DynamicPartitionsDefinition):
            register_kafka_partitions(context.instance, topic, found)
        with dg.partition_loading_context(dynamic_partitions_store=context.instance):
            known = set(definition.get_partition_keys())
        for number, observed in found.items():
            if str(number) not in known:
                context.log.warning(
                    "topic %s: partition %s is not observed, because the asset's %s fixed partitions do not include it",
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
        # Without this metadata, Dagster would record another observation, without a partition. The output is needed:
        # without one, Dagster would skip the assets of the same run that read the topic.
        return dg.Output(None, metadata={OBSERVATION_IS_LOGGED: True})

    # Dagster marks the decorator as beta; its version is bounded, and users cannot act on the warning.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.multi_observable_source_asset(
            specs=[spec],
            name=asset_key.to_python_identifier(),
            description=description,
            required_resource_keys={io_manager_key},
        )
        try:
            made: dg.AssetsDefinition = decorate(observe)
        except dg.DagsterInvalidDefinitionError as error:
            # Dagster names the observation after the key.
            msg = f"{where} cannot have the key {asset_key.to_user_string()}: {error}"
            raise ConfigError(msg, fix="choose another name: kafka_topic_asset(name=...)") from error
        return made


def _partitions(
    topic: str, count: int | None, given: dg.PartitionsDefinition[str] | None, where: str
) -> dg.PartitionsDefinition[str]:
    """Return the partitions of the asset.

    Raises:
        ConfigError: The given partitions are not partitions of a topic, or both arguments are given.
    """
    if given is None:
        return kafka_partitions(topic, count)
    if count is not None:
        msg = f"{where} has both partitions={count} and partitions_def="
        raise ConfigError(msg, fix="remove one of them")
    if given == kafka_partitions(topic):
        return given
    if not isinstance(given, dg.StaticPartitionsDefinition):
        msg = f"{where}: partitions_def={given!r} does not list partitions of the topic"
        raise ConfigError(msg, fix=f"remove it, or use kafka_partitions({topic!r}) or a StaticPartitionsDefinition")
    for key in given.get_partition_keys():
        if not (key.isascii() and key.isdecimal() and str(int(key)) == key):
            msg = f"{where}: partition {key!r} of partitions_def= is not a Kafka partition number"
            raise ConfigError(msg, fix='use numbers without leading zeros: StaticPartitionsDefinition(["0", "3"])')
    return given


def _shown(codec: Codec) -> str:
    if not codec.fields:
        return codec.name
    # Here, because it imports PySpark.
    from kpipe_platform.codecs.schema import to_ddl

    return f"{codec.name}: {to_ddl(codec.fields)}"

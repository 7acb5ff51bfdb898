"""Scope of a check of a Kafka asset: the run's partitions, and the asset's topics, group and materializations."""

# No "from __future__ import annotations": Dagster reads the type of the check's context.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import dagster as dg

from kpipe_platform.assets.source import Source, declared_metadata, sources_of
from kpipe_platform.assets.topics_read import read_modes, reads_slices
from kpipe_platform.checks.findings import Finding, result_of
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.step import READ_TABLE, topic_of
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.partitions.definition import partition_number
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.partitions.materializations import last_materialization, own_materializations, topics_of
from kpipe_platform.resources.lookup import source_of
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.slices.plan.lag import Waiting, gather_waiting

# Metadata by which Dagster marks an asset of which a job has only the key.
_STUB = "dagster/auto_created_stub_asset"


@dataclass(frozen=True)
class Scope:
    """The scope of one execution of a check.

    Args:
        asset_key: The asset.
        keys: Dagster partitions that the run names; None: all partitions, or the asset has none.
        partitioned: Whether the asset has Dagster partitions.
        instance: Dagster instance.
        find_source: Returns the KafkaSource that the asset is read with.
        find_topics: Returns the topics that the asset reads.
    """

    asset_key: dg.AssetKey
    keys: tuple[str, ...] | None
    partitioned: bool
    instance: dg.DagsterInstance
    find_source: Callable[[], KafkaSource]
    find_topics: Callable[[], tuple[str, ...]]

    @property
    def group(self) -> str:
        """The asset's consumer group."""
        return self.find_source().group(self.asset_key)

    @property
    def numbers(self) -> list[int] | None:
        """Kafka partition numbers that the run names; None: all."""
        return None if self.keys is None else [partition_number(key) for key in self.keys]

    def waiting(self, clients: Clients, topics: Iterable[str] | None = None) -> list[Waiting]:
        """Return the group's offset, watermarks and lag in each partition of this scope.

        Args:
            clients: The clients to use.
            topics: Topics; None: those that the asset reads.

        Raises:
            BrokerUnavailableError: No response within the deadline.
            TopicNotFoundError: A topic or a partition does not exist.
        """
        policy = self.find_source().policy(self.group)
        return gather_waiting(clients, policy, self.find_topics() if topics is None else topics, self.numbers)

    def materialized(self, limit: int = 1) -> Iterator[tuple[str | None, list[dg.AssetMaterialization]]]:
        """Yield kpipe's last materializations of each Dagster partition of this scope, the newest first."""
        keys: Iterable[str | None] = [None]
        if self.partitioned:
            every = self.instance.get_materialized_partitions(self.asset_key) if self.keys is None else self.keys
            keys = sorted(every, key=lambda key: (len(key), key))
        for key in keys:
            records = islice(own_materializations(self.instance, self.asset_key, key), limit)
            yield key, [r.asset_materialization for r in records if r.asset_materialization is not None]


@dataclass(frozen=True)
class CheckOptions:
    """The options that all checks of Kafka assets have.

    Args:
        name: Name of the check; None: the default name of the check.
        source: The topic asset(s) that the asset reads; None: found from the asset's inputs, or in its last
            materialization. A check that runs without the asset, before the first materialization, needs it.
        severity: Severity of a failure. An unknown result fails with severity WARN.
        blocking: Whether downstream assets wait for the check.
        partitioned: Whether Dagster keeps a result for each partition. False: one check for the whole asset, which a
            schedule can run without a partition.
        resource_key: Resource key of the KafkaSource that the asset is read with, or of the KafkaIOManager that has it.
    """

    name: str | None = None
    source: Source | Sequence[Source] | None = None
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    blocking: bool = False
    partitioned: bool = True
    resource_key: str = "kafka_io_manager"


def make_check(
    asset: dg.AssetsDefinition,
    name: str,
    description: str,
    evaluate: Callable[[Scope], list[Finding]],
    options: CheckOptions,
    *,
    reads_brokers: bool = True,
) -> dg.AssetChecksDefinition:
    """Create an asset check over the partitions of a run.

    Args:
        asset: The Kafka asset.
        name: Name of the check if the options have none.
        description: Text for the UI.
        evaluate: Returns the finding of each partition.
        options: The options that all checks have.
        reads_brokers: Whether the check needs the KafkaSource.

    Raises:
        ConfigError: The source of the options is not the definition of an asset.
    """
    modes = read_modes(asset)
    given = _given_topics(options.source, f"{name} check of {leading_key(asset).to_user_string()}: source")

    @dg.asset_check(
        asset=leading_key(asset),
        name=options.name or name,
        description=description,
        blocking=options.blocking,
        partitions_def=asset.partitions_def if options.partitioned else None,
        required_resource_keys={options.resource_key} if reads_brokers else None,
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        def topics() -> tuple[str, ...]:
            return given or _topics(context, leading_key(asset), modes)

        scope = Scope(
            asset_key=leading_key(asset),
            keys=_keys(context.op_execution_context, asset.partitions_def),
            partitioned=asset.partitions_def is not None,
            instance=context.instance,
            find_source=lambda: source_of(
                context.op_execution_context.resources, options.resource_key, "a check of a Kafka asset"
            ),
            find_topics=topics,
        )
        return result_of(evaluate(scope), options.severity)

    return check


def _keys(context: dg.OpExecutionContext, definition: dg.PartitionsDefinition[str] | None) -> tuple[str, ...] | None:
    if definition is None:
        return None
    if context.has_partition_key:
        return (context.partition_key,)
    if context.has_partition_key_range:
        with dg.partition_loading_context(dynamic_partitions_store=context.instance):
            return tuple(definition.get_partition_keys_in_range(context.partition_key_range))
    return None


def _given_topics(source: Source | Sequence[Source] | None, where: str) -> tuple[str, ...]:
    several = [] if source is None else sources_of(source, where)
    return tuple(topic_of(declared_metadata(one), one.key).name for one in several)


def _topics(
    context: dg.AssetCheckExecutionContext, asset_key: dg.AssetKey, modes: Mapping[dg.AssetKey, str]
) -> tuple[str, ...]:
    graph = context.job_def.asset_layer.asset_graph
    topics = []
    for key, mode in modes.items():
        if mode == READ_TABLE:
            continue
        if not graph.has(key) or _STUB in graph.get(key).metadata:
            # A job with only checks has no definitions of upstream assets.
            return _materialized_topics(context.instance, asset_key)
        metadata = graph.get(key).metadata
        if reads_slices(mode, metadata):
            topics.append(topic_of(metadata, key).name)
    return tuple(topics) or _materialized_topics(context.instance, asset_key)


def _materialized_topics(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> tuple[str, ...]:
    found = last_materialization(instance, asset_key)
    topics = () if found is None else topics_of(found)
    if not topics:
        msg = (
            f"the check cannot find the topic that asset {asset_key.to_user_string()} reads: it was never materialized"
        )
        raise ConfigError(msg, fix="pass source=... to the check, or materialize the asset first")
    return topics

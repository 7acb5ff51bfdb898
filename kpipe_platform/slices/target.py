"""Target: check and create the topics that a run writes, before any slice is planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import Destination
from kpipe_platform.dead_letters.write.redaction import load_redaction
from kpipe_platform.errors import ConfigError, DeadLetterError, TopicNotFoundError
from kpipe_platform.kafka.admin.topics import (
    TopicDescription,
    TopicLimits,
    TopicSpec,
    create_topic,
    describe_topics,
    require_spec,
    topic_limits,
    unequal_partitions,
)
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.policies.faults import FaultAction
from kpipe_platform.slices.settings import SliceSettings


@dataclass(frozen=True)
class SliceTarget:
    """The topics for the outputs and dead letters of a step.

    Args:
        destination: Where the output is written; None if another IO manager stores it.
        limits: Limits of each destination topic, by name.
        dead_letter_topics: Dead-letter topic and its limits, by source topic. Missing topics are omitted if no policy
            needs them.
        left_out: Partitions of each source topic without a Dagster partition of the asset. Contains only topics with
            such partitions.
    """

    destination: Destination | None
    limits: Mapping[str, TopicLimits]
    dead_letter_topics: Mapping[str, tuple[str, TopicLimits]]
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def prepare_target(
    settings: SliceSettings,
    clients: Clients,
    sources: Iterable[KafkaTopic],
    destination: Destination | None,
    *,
    plain: bool = False,
) -> SliceTarget:
    """Check the topics that the step writes, and create missing ones if that is declared.

    Outputs and dead letters must not go to a source topic, because the asset would read its own output. Dead letters
    must not go to a destination topic.

    Args:
        settings: The run's settings.
        clients: Clients of the source's cluster.
        sources: The source topics.
        destination: Where the output is written; None if another IO manager stores it.
        plain: Whether the asset is a plain ``@asset``, not a ``@kafka_asset``: its function already ran, once.

    Raises:
        ConfigError: A resource is missing, the clusters differ although one transaction must span them, a topic would
            be both read and written, or the destination topic does not match its declaration.
        TopicNotFoundError: A source topic does not exist, or the destination topic does not exist and no `create` is
            declared.
        IncompatibleSchemaError: The schema registry refuses the schema of the destination topic.
        DeadLetterError: A required dead-letter topic does not exist.
    """
    topics = () if destination is None else destination.topics
    _check_resources(settings, topics)
    if settings.destination is not None:
        for topic in topics:
            topic.resolved_to_write(settings.destination.connection.registry())
    names = [source.name for source in sources]
    _check_parts(settings, topics, names, plain=plain)
    # Check the sources first, so that a mistyped source name does not create a destination topic.
    described = describe_topics(clients, names) if names else {}
    left_out = _left_out(settings, described)
    writing = _writing_clients(settings, clients)
    try:
        for topic in topics:
            described_topic = _ensure(writing, topic.name, topic.create)
            _refuse_source(settings, "destination topic", described_topic, described)
            if described_topic is not None and topic.create is not None:
                require_spec(writing, described_topic, topic.create)
        dead_letter_topics = _dead_letter_topics(settings, writing, described, topics)
        limits = topic_limits(writing, [*(topic.name for topic in topics), *dead_letter_topics.values()])
    finally:
        if writing is not clients:
            writing.close()
    return SliceTarget(
        destination,
        {topic.name: limits[topic.name] for topic in topics},
        {source: (name, limits[name]) for source, name in dead_letter_topics.items()},
        left_out,
    )


def _left_out(settings: SliceSettings, sources: Mapping[str, TopicDescription]) -> dict[str, tuple[int, ...]]:
    """Return the partitions of the source topics without a Dagster partition.

    Raises:
        ConfigError: The numbers of partitions differ, but each run takes the same partition of each topic.
    """
    known = settings.run.partition_keys
    if known is None:
        return {}
    counts = {name: described.partitions for name, described in sources.items()}
    if len(set(counts.values())) > 1:
        raise unequal_partitions(f"asset {settings.run.asset}", counts)
    absent = {name: tuple(n for n in range(count) if str(n) not in known) for name, count in counts.items()}
    return {name: numbers for name, numbers in absent.items() if numbers}


def _check_resources(settings: SliceSettings, topics: Sequence[KafkaTopic]) -> None:
    asset = settings.run.asset
    destination, dead_letter = settings.destination, settings.dead_letter
    if topics and destination is None:
        shown = ", ".join(repr(topic.name) for topic in topics)
        msg = f"asset {asset} writes topic {shown}, but its KafkaIOManager has no destination"
        raise ConfigError(msg, fix="set it: KafkaIOManager(destination=KafkaDestination(...), ...)")
    if settings.policies.may(FaultAction.DEAD_LETTER) and dead_letter is None:
        msg = f"asset {asset} dead-letters failed records, but its IO manager has no dead-letter destination"
        raise ConfigError(msg, fix="set it: KafkaIOManager(dead_letter=KafkaDeadLetterDestination(...), ...)")
    if dead_letter is not None and dead_letter.redact is not None:
        # Fail now, not at the first dead letter.
        load_redaction(dead_letter.redact)
    if not topics or destination is None:
        return
    writes = destination.connection
    if destination.delivery == "exactly_once" and writes != settings.source:
        msg = f"asset {asset}: exactly-once delivery needs the same connection for source and destination"
        raise ConfigError(
            msg, fix='use one KafkaConnection for both, or set KafkaDestination(delivery="at_least_once")'
        )
    if dead_letter is not None and dead_letter.connection != writes:
        msg = f"asset {asset}: dead letters and outputs need the same connection, because one producer writes both"
        raise ConfigError(msg, fix="give KafkaDeadLetterDestination the KafkaConnection of the destination")


def _check_parts(settings: SliceSettings, topics: Sequence[KafkaTopic], sources: list[str], *, plain: bool) -> None:
    """Reject parallel writers if the stage cannot process parts of a slice."""
    destination = settings.destination
    parts = settings.parallelism.writers_per_partition
    if parts == 1 or not topics or destination is None or destination.delivery != "exactly_once" or not sources:
        return
    why = "its stage reads several topics together" if len(sources) > 1 else ""
    if plain:
        why = "only the function of a @kafka_asset can be called for each part"
    if why:
        msg = f"asset {settings.run.asset} cannot write {parts} parts of a slice in parallel: {why}"
        raise ConfigError(
            msg, fix="set scaling=PartitionScaling(execution_mode=...) without RELAX_ORDERING_WITHIN_PARTITION"
        )


def _writing_clients(settings: SliceSettings, clients: Clients) -> Clients:
    where = settings.destination or settings.dead_letter
    if where is None or where.connection == clients.settings:
        return clients
    return Clients(where.connection)


def _dead_letter_topics(
    settings: SliceSettings, writing: Clients, sources: Mapping[str, TopicDescription], written: Sequence[KafkaTopic]
) -> dict[str, str]:
    if settings.dead_letter is None:
        return {}
    needed = settings.policies.may(FaultAction.DEAD_LETTER)
    topics = {source: settings.dead_letter.topic.replace("{source_topic}", source) for source in sources}
    for source, name in list(topics.items()):
        spec = TopicSpec(sources[source].partitions) if settings.dead_letter.create_topic else None
        if name in {topic.name for topic in written}:
            asset = settings.run.asset
            msg = f"asset {asset} writes its dead letters to its destination topic {name!r}"
            raise ConfigError(msg, fix='use a separate topic: KafkaDeadLetterDestination(topic="...")')
        try:
            _refuse_source(settings, "dead-letter topic", _ensure(writing, name, spec), sources)
        except TopicNotFoundError as error:
            if not needed:
                # Only a rule or a row function of the stage could still create a dead letter; the run then fails.
                del topics[source]
                continue
            msg = f"the dead-letter topic {name!r} of source topic {source!r} does not exist"
            raise DeadLetterError(
                msg,
                fix=f"create it: kpipe topics create {name}, or set KafkaDeadLetterDestination(create_topic=True)",
                topic=name,
            ) from error
    return topics


def _refuse_source(
    settings: SliceSettings, what: str, written: TopicDescription | None, sources: Mapping[str, TopicDescription]
) -> None:
    """Reject a topic that the asset reads. Compares ids, because another cluster may have a topic of the same name."""
    if written is not None and written.topic_id in {source.topic_id for source in sources.values()}:
        asset = settings.run.asset
        msg = f"the {what} of asset {asset} is {written.name!r}, which the asset reads"
        raise ConfigError(
            msg, fix="write to another topic; otherwise the asset would read its own output in an endless loop"
        )


def _ensure(clients: Clients, name: str, spec: TopicSpec | None) -> TopicDescription | None:
    """Describe a topic, or create it if it does not exist and `spec` is given. Returns None if this call created it."""
    try:
        return describe_topics(clients, [name])[name]
    except TopicNotFoundError:
        if spec is None:
            raise
    return None if create_topic(clients, name, spec) else describe_topics(clients, [name])[name]

"""Where a step's outputs and dead letters go, checked before any work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError, DeadLetterError, TopicNotFoundError
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.topics import (
    TopicDescription,
    TopicLimits,
    TopicSpec,
    create_topic,
    describe_topics,
    require_spec,
    topic_limits,
)
from kpipe_platform.partitions import unequal
from kpipe_platform.policies.faults import FaultAction

if TYPE_CHECKING:
    from kpipe_platform.io_managers.pipeline import Pipeline


@dataclass(frozen=True)
class Target:
    """Where outputs and dead letters of a step go.

    Args:
        topic: Destination topic; None where another IO manager stores the output.
        limits: What the destination topic takes.
        dead_letter_topics: Dead-letter topic and its limits, by source topic; without those that do not exist, where
            no policy asks for them.
        left_out: Partitions of each source topic that no Dagster partition of the asset takes; only topics that have
            some.
    """

    topic: KafkaTopic | None
    limits: TopicLimits
    dead_letter_topics: Mapping[str, tuple[str, TopicLimits]]
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def find_target(
    pipeline: Pipeline,
    clients: Clients,
    sources: Iterable[KafkaTopic],
    topic: KafkaTopic | None,
    *,
    plain: bool = False,
) -> Target:
    """Check, and create where declared, the topics that the step writes.

    What is written must be another topic than what is read, and dead letters another than outputs: an asset would read
    what it has written.

    Args:
        pipeline: The step's resources.
        clients: Clients of the source's cluster.
        sources: The topics that are read.
        topic: Destination topic; None where another IO manager stores the output.
        plain: The asset is no ``@kafka_asset``: its stage ran already, once.

    Raises:
        ConfigError: A resource is missing, the clusters differ where one transaction must span them, or the destination
            topic is not as it is declared.
        TopicNotFoundError: The destination topic does not exist and is not declared to be created, or is, and a source
            does not exist.
        DeadLetterError: A dead-letter topic does not exist.
    """
    _check_resources(pipeline, topic)
    names = [source.name for source in sources]
    _check_lanes(pipeline, topic, names, plain=plain)
    # Before a topic is created: a mistyped source is not to leave a new topic behind.
    described = describe_topics(clients, names) if names else {}
    left_out = _left_out(pipeline, described)
    writing = _writing_clients(pipeline, clients)
    try:
        if topic is not None:
            found = _ensure(writing, topic.name, topic.create)
            _refuse_source(pipeline, "destination topic", found, described)
            if found is not None and topic.create is not None:
                require_spec(writing, found, topic.create)
        letters = _dead_letter_topics(pipeline, writing, described, topic)
        limits = topic_limits(writing, [*([topic.name] if topic else []), *letters.values()])
    finally:
        if writing is not clients:
            writing.close()
    return Target(
        topic,
        limits[topic.name] if topic else TopicLimits(),
        {source: (letter, limits[letter]) for source, letter in letters.items()},
        left_out,
    )


def _left_out(pipeline: Pipeline, sources: Mapping[str, TopicDescription]) -> dict[str, tuple[int, ...]]:
    """Partitions of the source topics that no run of the asset takes.

    Raises:
        ConfigError: The topics differ in their number of partitions, and the runs take the same one of each.
    """
    known = pipeline.step.known_keys
    if known is None:
        return {}
    counts = {name: found.partitions for name, found in sources.items()}
    if len(set(counts.values())) > 1:
        raise unequal(f"asset {pipeline.step.asset_key.to_user_string()}", counts)
    absent = {name: tuple(n for n in range(count) if str(n) not in known) for name, count in counts.items()}
    return {name: numbers for name, numbers in absent.items() if numbers}


def _check_resources(pipeline: Pipeline, topic: KafkaTopic | None) -> None:
    asset = pipeline.step.asset_key.to_user_string()
    destination, dead_letter = pipeline.destination, pipeline.dead_letter
    if topic is not None and destination is None:
        msg = f"asset {asset} writes topic {topic.name!r}, but its KafkaIOManager has no destination"
        raise ConfigError(msg, fix="KafkaIOManager(destination=KafkaDestination(...), ...)")
    if pipeline.policies.may(FaultAction.DEAD_LETTER) and dead_letter is None:
        msg = f"asset {asset} dead-letters failed records, but its IO manager has no dead-letter destination"
        raise ConfigError(msg, fix="KafkaIOManager(dead_letter=KafkaDeadLetterDestination(...), ...)")
    if dead_letter is not None:
        dead_letter.check()
    if topic is None or destination is None:
        return
    writes = destination.connection.settings
    if destination.delivery == "exactly_once" and writes != pipeline.source.connection.settings:
        msg = f"asset {asset}: exactly once needs source and destination on one cluster and one connection"
        raise ConfigError(msg, fix='use one KafkaConnection for both, or KafkaDestination(delivery="at_least_once")')
    if dead_letter is not None and dead_letter.connection.settings != writes:
        msg = f"asset {asset}: dead letters are written by the destination's producer, on its cluster"
        raise ConfigError(msg, fix="give KafkaDeadLetterDestination the destination's KafkaConnection")


def _check_lanes(pipeline: Pipeline, topic: KafkaTopic | None, sources: list[str], *, plain: bool) -> None:
    """Refuse a stage of which no parts can be taken, where parts are asked for."""
    destination = pipeline.destination
    parts = pipeline.scaling.in_flight_per_partition
    if parts == 1 or topic is None or destination is None or destination.delivery != "exactly_once" or not sources:
        return
    why = "its stage reads several topics, whose records belong together" if len(sources) > 1 else ""
    if plain:
        why = "only the stage of a @kafka_asset can be called for each part"
    if why:
        msg = f"asset {pipeline.step.asset_key.to_user_string()} is to write {parts} parts of a slice at once: {why}"
        raise ConfigError(
            msg, fix="scaling=PartitionScaling(execution_mode=...) without RELAX_ORDERING_WITHIN_PARTITION"
        )


def _writing_clients(pipeline: Pipeline, clients: Clients) -> Clients:
    where = pipeline.destination or pipeline.dead_letter
    if where is None or where.connection.settings == clients.settings:
        return clients
    return Clients(where.connection.settings)


def _dead_letter_topics(
    pipeline: Pipeline, writing: Clients, sources: Mapping[str, TopicDescription], topic: KafkaTopic | None
) -> dict[str, str]:
    if pipeline.dead_letter is None:
        return {}
    needed = pipeline.policies.may(FaultAction.DEAD_LETTER)
    letters = {source: pipeline.dead_letter.topic_for(source) for source in sources}
    for source, letter in list(letters.items()):
        spec = TopicSpec(sources[source].partitions) if pipeline.dead_letter.create_topic else None
        if topic is not None and letter == topic.name:
            asset = pipeline.step.asset_key.to_user_string()
            msg = f"asset {asset} writes its dead letters to its destination topic {letter!r}"
            raise ConfigError(msg, fix='give them a topic of their own: KafkaDeadLetterDestination(topic="...")')
        try:
            _refuse_source(pipeline, "dead-letter topic", _ensure(writing, letter, spec), sources)
        except TopicNotFoundError as error:
            if not needed:
                # Only a rule or a row function of the stage could ask for it, and then the run fails.
                del letters[source]
                continue
            msg = f"the dead-letter topic {letter!r} of topic {source!r} does not exist"
            raise DeadLetterError(
                msg,
                fix=f"kpipe topics create {letter}, or KafkaDeadLetterDestination(create_topic=True)",
                topic=letter,
            ) from error
    return letters


def _refuse_source(
    pipeline: Pipeline, what: str, found: TopicDescription | None, sources: Mapping[str, TopicDescription]
) -> None:
    """Refuse a topic that the asset reads. By its id: another cluster may have one of that name."""
    if found is not None and found.topic_id in {source.topic_id for source in sources.values()}:
        asset = pipeline.step.asset_key.to_user_string()
        msg = f"the {what} of asset {asset} is {found.name!r}, which the asset reads"
        raise ConfigError(msg, fix="write to another topic: the asset would read what it has written, without end")


def _ensure(clients: Clients, name: str, spec: TopicSpec | None) -> TopicDescription | None:
    """Find a topic, or create it by its spec; None where this call created it."""
    try:
        return describe_topics(clients, [name])[name]
    except TopicNotFoundError:
        if spec is None:
            raise
    return None if create_topic(clients, name, spec) else describe_topics(clients, [name])[name]

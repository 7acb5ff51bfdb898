"""Topics: describe them with their id, read the limits for records, and create them explicitly.

Source: KIP-516 (topic ids), Kafka topic configuration reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigEntry, ConfigResource, NewTopic, ResourceType
from confluent_kafka.admin import TopicDescription as DescribedTopic
from tenacity import Retrying, retry_if_exception_type

from kpipe_platform.errors import ConfigError, TopicNotFoundError
from kpipe_platform.kafka.client.calls import RequestText, ask, ask_each, kafka_error, translate, until_deadline
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition


@dataclass(frozen=True)
class TopicSpec:
    """How to create a missing topic. An existing topic must have these settings and at least this many partitions.

    Args:
        partitions: Number of partitions, at least 1.
        replication_factor: Number of replicas; None for the brokers' default. Used only for creation and not compared
            with an existing topic, which has more replicas while partitions are reassigned.
        config: Topic settings by their Kafka names, for example ``{"retention.ms": "-1"}``.
    """

    partitions: int = 1
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.partitions < 1:
            msg = f"a topic cannot have {self.partitions} partitions"
            raise ConfigError(msg, fix="set partitions to 1 or more")
        if self.replication_factor is not None and self.replication_factor < 1:
            msg = f"a topic cannot have replication_factor {self.replication_factor}"
            raise ConfigError(msg, fix="set replication_factor to 1 or more, or omit it to use the brokers' default")


@dataclass(frozen=True)
class TopicDescription:
    """Name, id and partition count of an existing topic.

    Args:
        name: Topic name.
        topic_id: Id assigned when the topic was created; a recreated topic has a different id.
        partitions: Number of partitions.
    """

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True)
class TopicLimits:
    """Limits on the records that a topic accepts, from its configuration.

    Args:
        max_message_bytes: Largest record batch that the topic accepts, bytes (``max.message.bytes``).
        compacted: True if records need a key (``cleanup.policy`` contains ``compact``).
        create_time: True if the producer's timestamp is kept (``message.timestamp.type``).
        before_max_ms: How far in the past a timestamp may be, milliseconds; None for no limit.
        after_max_ms: How far in the future a timestamp may be, milliseconds; None for no limit.
        uncompressed: True if batches are stored, and their size is checked, without compression
            (``compression.type``).
    """

    max_message_bytes: int = 1_048_588
    compacted: bool = False
    create_time: bool = True
    before_max_ms: int | None = None
    after_max_ms: int | None = None
    uncompressed: bool = False

    def times_ms(self, now_ms: int) -> range:
        """Return the timestamps that the topic accepts, milliseconds since the epoch.

        Args:
            now_ms: Current time, milliseconds since the epoch.
        """
        if not self.create_time:
            return range(-(2**63), 2**63)
        # librdkafka interprets 0 as "now", so 1970-01-01T00:00:00.000Z cannot be sent.
        first = 1 if self.before_max_ms is None else max(1, now_ms - self.before_max_ms)
        return range(first, 2**63 if self.after_max_ms is None else now_ms + self.after_max_ms + 1)


_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Return whether this is a valid topic name."""
    return _NAME.fullmatch(name) is not None


# Long.MAX_VALUE, which means "no limit" in message.timestamp.*.max.ms.
_ANY_MS = 2**63 - 1


def describe_topics(clients: Clients, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Describe topics in one call, without creating any.

    Raises:
        TopicNotFoundError: A topic does not exist.
        BrokerUnavailableError: No answer within the deadline.
    """
    wanted = list(dict.fromkeys(names))
    settings = clients.settings
    try:
        described = ask_each(
            partial(_describe, clients, wanted),
            clients,
            lambda name: RequestText(f"describe topic {name}", {"topic": name}),
        )()
    except TopicNotFoundError as error:
        raise missing_topic(str(error.attributes["topic"]), settings.bootstrap_servers) from error
    return {name: TopicDescription(name, str(each.topic_id), len(each.partitions)) for name, each in described.items()}


def _describe(clients: Clients, names: list[str]) -> dict[str, Future[DescribedTopic]]:
    return clients.admin().describe_topics(TopicCollection(names), request_timeout=clients.settings.request_timeout_s)


def missing_topic(name: str, servers: str) -> TopicNotFoundError:
    """Build the error for a topic that does not exist; kpipe creates topics only explicitly."""
    return TopicNotFoundError(
        f"topic {name!r} does not exist at {servers}",
        fix=f"correct the name, or create it: kpipe topics create {name} --partitions N "
        "(or declare KafkaTopic(..., create=TopicSpec(...)))",
        topic=name,
    )


def topic_limits(clients: Clients, names: Iterable[str]) -> dict[str, TopicLimits]:
    """Read the limits of each topic, with one call per topic."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in dict.fromkeys(names)]
    if not resources:
        return {}
    return {resource.name: limits_from_config(_config(clients, resource)) for resource in resources}


def _config(clients: Clients, resource: ConfigResource) -> dict[str, str | None]:
    # After a topic is created, one broker may already describe it while another does not return its settings yet.
    entries = _once_visible(clients)(
        ask,
        partial(_describe_config, clients, resource),
        clients,
        f"read the settings of topic {resource.name}",
        needs="DescribeConfigs",
        topic=resource.name,
    )
    return {name: entry.value for name, entry in entries.items()}


def _describe_config(clients: Clients, resource: ConfigResource) -> Future[dict[str, ConfigEntry]]:
    return clients.admin().describe_configs([resource], request_timeout=clients.settings.request_timeout_s)[resource]


def limits_from_config(config: Mapping[str, str | None]) -> TopicLimits:
    """Build TopicLimits from a topic's configuration values. Pure."""

    def bound(name: str) -> int | None:
        value = config.get(name)
        return None if value is None or int(value) >= _ANY_MS else int(value)

    return TopicLimits(
        max_message_bytes=int(config.get("max.message.bytes") or TopicLimits.max_message_bytes),
        compacted="compact" in (config.get("cleanup.policy") or ""),
        create_time=(config.get("message.timestamp.type") or "CreateTime") == "CreateTime",
        before_max_ms=bound("message.timestamp.before.max.ms"),
        after_max_ms=bound("message.timestamp.after.max.ms"),
        uncompressed=config.get("compression.type") == "uncompressed",
    )


def create_topic(clients: Clients, name: str, spec: TopicSpec) -> bool:
    """Create a topic. Succeed if it already exists.

    Returns:
        True if this call created the topic, False if it already existed.

    Raises:
        KpipeError: The brokers refused the request, for example more replicas than brokers.
    """
    settings = clients.settings
    # In the protocol, -1 means the brokers' default.
    replicas = -1 if spec.replication_factor is None else spec.replication_factor
    new = NewTopic(name, spec.partitions, replicas, config=dict(spec.config))
    future = clients.admin().create_topics([new], request_timeout=settings.request_timeout_s)[name]
    try:
        future.result(timeout=settings.request_timeout_s + 2)
    except KafkaException as exception:
        if kafka_error(exception).code() == KafkaError.TOPIC_ALREADY_EXISTS:
            # Another run may have created it a moment ago.
            await_visible(clients, name)
            return False
        raise translate(exception, settings, f"create topic {name}", needs="Create", topic=name) from exception
    await_visible(clients, name)
    return True


def require_spec(clients: Clients, topic: TopicDescription, spec: TopicSpec) -> None:
    """Refuse a topic that does not match its declaration.

    Raises:
        ConfigError: The topic has fewer partitions, or different settings.
    """
    config = _config(clients, ConfigResource(ResourceType.TOPIC, topic.name)) if spec.config else {}
    problems = differences(spec, topic.partitions, config)
    if problems:
        msg = f"topic {topic.name!r} at {clients.settings.bootstrap_servers} does not match its TopicSpec: "
        raise ConfigError(
            msg + "; ".join(problems),
            fix="correct the TopicSpec, or change the topic with Kafka's tools (kafka-configs.sh, kafka-topics.sh)",
            topic=topic.name,
        )


def differences(spec: TopicSpec, partitions: int, config: Mapping[str, str | None]) -> list[str]:
    """Describe how a topic differs from its declaration. Pure.

    Args:
        spec: The declaration.
        partitions: Number of partitions of the topic.
        config: The topic's settings.
    """
    problems = []
    # More partitions are accepted, because a topic may grow while it is in use.
    if partitions < spec.partitions:
        problems.append(f"it has {partitions} partition(s), not {spec.partitions}")
    for name, wanted in spec.config.items():
        if name not in config:
            problems.append(f"there is no topic setting {name!r}")
        elif _normal(config[name]) != _normal(wanted):
            problems.append(f"{name} is {config[name]!r}, not {wanted!r}")
    return problems


def _normal(value: str | None) -> object:
    """Normalize a setting's value: ``delete, compact`` equals ``compact,delete``, and 0.50 equals 0.5."""
    words = sorted(word.strip().lower() for word in str(value or "").split(","))
    try:
        return [float(word) if "." in word else int(word) for word in words]
    except ValueError:
        return words


def await_visible(clients: Clients, name: str) -> TopicDescription:
    """Wait until a new topic is visible, and return its description.

    The controller confirms the creation before every broker has the topic. Until then, a broker may report that the
    topic does not exist.

    Raises:
        TopicNotFoundError: The topic is not visible within the connection's deadline.
    """
    return _once_visible(clients)(describe_topics, clients, [name])[name]


def _once_visible(clients: Clients) -> Retrying:
    return until_deadline(clients.settings, retry_if_exception_type(TopicNotFoundError))


def check_partitions(described: Mapping[str, TopicDescription], partitions: Iterable[Partition]) -> None:
    """Refuse partition numbers that the topic does not have.

    Raises:
        TopicNotFoundError: A partition is missing.
    """
    for topic, number in partitions:
        count = described[topic].partitions
        if number >= count:
            msg = f"topic {topic!r} has no partition {number}: it has {count} (0 to {count - 1})"
            raise TopicNotFoundError(
                msg,
                fix="use kafka_partitions(topic) to follow the topic, or add partitions to the topic",
                topic=topic,
                partition=number,
            )


def unequal_partitions(who: str, counts: Mapping[str, int]) -> ConfigError:
    """Build the error for an asset whose sources have different numbers of partitions.

    Args:
        who: Name of the asset, for the message.
        counts: Number of partitions of each source.
    """
    shown = ", ".join(f"{name} has {count}" for name, count in counts.items())
    return ConfigError(
        f"{who}: each run reads the same partition of every source, but the sources differ in partitions: {shown}",
        fix="give the topics the same number of partitions, read each topic in its own asset, or set partitioned=False "
        "(for a plain asset, omit partitions_def)",
    )

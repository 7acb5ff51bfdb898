"""Create topics that are ready for use when the call returns, delete them, and read their log starts and ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kpipe_platform.errors import BrokerUnavailableError, ConfigError, TopicNotFoundError
from kpipe_platform.kafka.client.calls import NO_LEADER
from kpipe_platform.testing.clients import Client, client_config

__all__ = ["Isolation", "create_topic", "delete_topic", "log_ranges"]

Isolation = Literal["read_committed", "read_uncommitted"]

_POLL_S = 0.02
# A broker may not have the metadata yet of a topic that another broker has just created.
_UNKNOWN_TOPIC_S = 1.0
_PASSING = NO_LEADER | {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART}


def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = 1,
    replication: int = 1,
    config: Mapping[str, str] | None = None,
    deadline_s: float = 30.0,
) -> str:
    """Create a topic and wait until every partition has a leader that responds to clients.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        name: Name of the topic.
        partitions: Number of partitions.
        replication: Replicas of each partition.
        config: Topic settings, for example ``{"cleanup.policy": "compact"}``. Records with old timestamps
            need ``{"retention.ms": "-1"}``, because the broker deletes records older than a week.
        deadline_s: Maximum seconds to wait.

    Returns:
        The name.

    Raises:
        ConfigError: The broker refuses the topic, because it exists or a setting is invalid.
        BrokerUnavailableError: The topic was not ready within the deadline.
    """
    admin = AdminClient(client_config(client))
    end = time.monotonic() + deadline_s
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    try:
        admin.create_topics([topic], operation_timeout=deadline_s)[name].result(deadline_s)
    except KafkaException as error:
        msg = f"The broker refused to create topic {name!r}: {error.args[0].str()}"
        raise ConfigError(msg, topic=name) from error
    while time.monotonic() < end:
        # Metadata lists a leader shortly before that broker leads. Offset requests are answered by the leaders.
        ranges = log_ranges(client, name, deadline_s=max(0.1, end - time.monotonic()))
        if len(ranges) == partitions:
            return name
        time.sleep(_POLL_S)
    msg = f"Topic {name!r} did not have leaders for all {partitions} partitions within {deadline_s:.0f} s."
    raise BrokerUnavailableError(msg, topic=name)


def delete_topic(client: Client, name: str, *, deadline_s: float = 30.0) -> None:
    """Delete a topic and wait until the broker no longer lists it.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        name: Name of the topic. A missing topic is ignored.
        deadline_s: Maximum seconds to wait.

    Raises:
        BrokerUnavailableError: The topic still existed after the deadline.
    """
    admin = AdminClient(client_config(client))
    end = time.monotonic() + deadline_s
    try:
        admin.delete_topics([name], operation_timeout=deadline_s)[name].result(deadline_s)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
    while time.monotonic() < end:
        if name not in admin.list_topics(timeout=max(0.1, end - time.monotonic())).topics:
            return
        time.sleep(_POLL_S)
    msg = f"Topic {name!r} still exists {deadline_s:.0f} s after its deletion."
    raise BrokerUnavailableError(msg, topic=name)


def log_ranges(
    client: Client,
    topic: str,
    *,
    isolation: Isolation = "read_committed",
    deadline_s: float = 30.0,
) -> dict[int, tuple[int, int]]:
    """Return the log start and end of each partition. With ``read_committed``, the end is the last stable offset.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        topic: Topic.
        isolation: Isolation level.
        deadline_s: Maximum seconds to wait, including the wait for leaders.

    Raises:
        TopicNotFoundError: The topic does not exist.
        BrokerUnavailableError: The brokers did not respond within the deadline.
    """
    admin = AdminClient(client_config(client))
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    begin = time.monotonic()
    while True:
        left_s = max(0.001, begin + deadline_s - time.monotonic())
        try:
            metadata = admin.list_topics(topic, timeout=left_s).topics[topic]
            if metadata.error is not None:
                raise KafkaException(metadata.error)
            starts = _offsets(admin, topic, list(metadata.partitions), OffsetSpec.earliest(), level, left_s)
            ends = _offsets(admin, topic, list(metadata.partitions), OffsetSpec.latest(), level, left_s)
            return {partition: (starts[partition], ends[partition]) for partition in sorted(ends)}
        except KafkaException as exception:
            error = exception.args[0]
            waited_s = time.monotonic() - begin
            unknown = error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if unknown and waited_s >= min(_UNKNOWN_TOPIC_S, deadline_s):
                msg = f"Topic {topic!r} does not exist."
                raise TopicNotFoundError(msg, topic=topic) from exception
            if error.code() not in _PASSING or waited_s >= deadline_s:
                msg = f"The log ends of topic {topic!r} cannot be read: {error.str()}"
                raise BrokerUnavailableError(msg, topic=topic) from exception
        time.sleep(_POLL_S)


def _offsets(
    admin: AdminClient,
    topic: str,
    partitions: list[int],
    spec: OffsetSpec,
    level: IsolationLevel,
    timeout_s: float,
) -> dict[int, int]:
    wanted = {TopicPartition(topic, each): spec for each in partitions}
    answers = admin.list_offsets(wanted, isolation_level=level, request_timeout=timeout_s)
    return {each.partition: future.result().offset for each, future in answers.items()}

"""Making topics that can be used as soon as the call returns."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kpipe_platform.errors import BrokerUnavailableError, ConfigError
from kpipe_platform.testing.clients import Client, client_config

__all__ = ["create_topic", "delete_topic"]

_POLL_S = 0.02


def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = 1,
    replication: int = 1,
    config: Mapping[str, str] | None = None,
    deadline_s: float = 30.0,
) -> str:
    """Create a topic and wait until every partition has a leader that a client can see.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        name: Name of the topic.
        partitions: Number of partitions.
        replication: Replicas of each partition.
        config: Topic settings, for example ``{"cleanup.policy": "compact"}``. Records with old timestamps
            need ``{"retention.ms": "-1"}``: the broker deletes what is older than a week.
        deadline_s: Seconds to wait at most.

    Returns:
        The name.

    Raises:
        ConfigError: The broker refuses the topic: it exists, or a setting is wrong.
        BrokerUnavailableError: It was not there within the deadline.
    """
    admin = AdminClient(client_config(client))
    end = time.monotonic() + deadline_s
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(config or {}))
    try:
        admin.create_topics([topic], operation_timeout=deadline_s)[name].result(deadline_s)
    except KafkaException as error:
        msg = f"The broker refuses topic {name!r}: {error.args[0].str()}"
        raise ConfigError(msg, topic=name) from error
    while time.monotonic() < end:
        found = admin.list_topics(timeout=max(0.1, end - time.monotonic())).topics.get(name)
        leaders = [] if found is None else [each.leader for each in found.partitions.values()]
        if len(leaders) == partitions and min(leaders) >= 0:
            return name
        time.sleep(_POLL_S)
    msg = f"Topic {name!r} had no leaders for its {partitions} partitions within {deadline_s:.0f} s."
    raise BrokerUnavailableError(msg, topic=name)


def delete_topic(client: Client, name: str, *, deadline_s: float = 30.0) -> None:
    """Delete a topic and wait until the broker no longer lists it.

    Args:
        client: Bootstrap servers or a librdkafka configuration.
        name: Name of the topic; nothing happens when there is none.
        deadline_s: Seconds to wait at most.

    Raises:
        BrokerUnavailableError: It was still there after the deadline.
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
    msg = f"Topic {name!r} was still there {deadline_s:.0f} s after its deletion."
    raise BrokerUnavailableError(msg, topic=name)

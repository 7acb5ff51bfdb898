"""Dagster partitions of a topic. The partition key is the Kafka partition number as text."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from kpipe_platform.errors import ConfigError


def kafka_partitions(topic: str, count: int | None = None) -> dg.PartitionsDefinition[str]:
    """Define the Dagster partitions of a topic.

    Args:
        topic: Topic name.
        count: Fixed number of partitions; None: dynamic partitions that follow the topic. Dynamic partitions are
            registered by observing the topic's asset, or by ``register_kafka_partitions``.

    Raises:
        ConfigError: count is less than 1.
    """
    if count is None:
        return dg.DynamicPartitionsDefinition(name=dynamic_name(topic))
    if count < 1:
        msg = f"kafka_partitions({topic!r}): count is {count}, below 1"
        raise ConfigError(msg, fix="set count to 1 or more, or omit it to follow the topic")
    return dg.StaticPartitionsDefinition([str(number) for number in range(count)])


def dynamic_name(topic: str) -> str:
    """Return the name of the topic's dynamic partitions in Dagster's storage."""
    return f"kafka.{topic}"


def register_kafka_partitions(instance: dg.DagsterInstance, topic: str, numbers: Iterable[int]) -> list[int]:
    """Register Kafka partitions as dynamic Dagster partitions.

    Args:
        instance: Dagster instance.
        topic: Topic name.
        numbers: The topic's partition numbers.

    Returns:
        The numbers that were new.
    """
    known = set(instance.get_dynamic_partitions(dynamic_name(topic)))
    new = [number for number in sorted(numbers) if str(number) not in known]
    if new:
        instance.add_dynamic_partitions(dynamic_name(topic), [str(number) for number in new])
    return new


def partition_number(key: str) -> int:
    """Return the Kafka partition number of a Dagster partition key.

    Raises:
        ConfigError: The key is not a partition number.
    """
    if not key.isdecimal():
        msg = f"the Dagster partition {key!r} is not a Kafka partition number"
        raise ConfigError(msg, fix="partition the asset by kafka_partitions(topic)", partition_key=key)
    return int(key)

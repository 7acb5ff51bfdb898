"""Differences between a topic's partitions and Dagster's: new partitions to register, and removed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from kpipe_platform.errors import TopicRecreatedError
from kpipe_platform.partitions.definition import dynamic_name, partition_number


@dataclass(frozen=True)
class Growth:
    """The differences between Dagster's partitions and the topic's.

    Args:
        name: Name of the dynamic partitions in Dagster's storage; None if the partitions are fixed.
        keys: Dagster's partition keys in order, the new ones last.
        new: Kafka partitions to register.
        gone: Dagster partitions that the topic does not have.
        left_out: Kafka partitions that the fixed Dagster partitions do not include.
    """

    name: str | None
    keys: tuple[str, ...]
    new: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()

    def requests(self) -> list[dg.AddDynamicPartitionsRequest]:
        """Return the Dagster requests that register the new partitions."""
        if self.name is None or not self.new:
            return []
        return [dg.AddDynamicPartitionsRequest(self.name, [str(number) for number in self.new])]


def known_keys(
    definition: dg.PartitionsDefinition[str], instance: dg.DagsterInstance
) -> tuple[str | None, tuple[str, ...]]:
    """Return the name of dynamic partitions (None for fixed ones), and Dagster's partition keys in order."""
    name = definition.name if isinstance(definition, dg.DynamicPartitionsDefinition) else None
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        return name, tuple(definition.get_partition_keys())


def is_foreign(name: str | None, topics: Sequence[str]) -> bool:
    """Return whether dynamic partitions belong to a topic that is not among the topics."""
    return name is not None and name.startswith(dynamic_name("")) and name not in map(dynamic_name, topics)


def compare(name: str | None, keys: Sequence[str], count: int) -> Growth:
    """Compare Dagster's partitions with those of a topic. Pure.

    Args:
        name: Name of the dynamic partitions; None if the partitions are fixed.
        keys: Dagster's partition keys.
        count: Number of partitions of the topic.

    Raises:
        ConfigError: A Dagster partition is not a Kafka partition number.
    """
    known = {partition_number(key) for key in keys}
    absent = tuple(number for number in range(count) if number not in known)
    gone = tuple(sorted(number for number in known if number >= count))
    if name is None:
        return Growth(None, tuple(keys), gone=gone, left_out=absent)
    return Growth(name, (*keys, *(str(number) for number in absent)), new=absent, gone=gone)


def shrunk(topic: str, number: int, count: int, name: str | None) -> TopicRecreatedError:
    """Return the error for a Dagster partition that its topic does not have."""
    msg = f"Dagster has partition {number}, but topic {topic!r} has only {count} partitions: the topic was recreated"
    fix = f"set count={count} in kafka_partitions(topic, count=...)"
    if name is not None:
        delete = f"DagsterInstance.get().delete_dynamic_partition({name!r}, '{number}')"
        fix = f"when the history of the partition is no longer needed, delete it: {delete}"
    return TopicRecreatedError(msg, fix=fix, topic=topic, partition=number)

"""Paused partitions: sensors request no runs of them until they are resumed. Dagster's storage holds the pauses.

The set of paused partitions is stored as Dagster dynamic partitions, because one can be added or deleted without a
change to the others. Time and reason of each pause are stored in a separate daemon cursor for each partition.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import dagster as dg
from sqlalchemy.exc import IntegrityError

from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind, log_events, shortened


@dataclass(frozen=True)
class Pause:
    """A paused partition.

    Args:
        since_ms: When it was paused, milliseconds since the epoch.
        reason: The operator's reason; None if none was given.
    """

    since_ms: int
    reason: str | None = None


def paused(instance: dg.DagsterInstance, group: str, topic: str) -> dict[int, Pause]:
    """Return the paused partitions of a topic for one group.

    Args:
        instance: Dagster instance.
        group: Consumer group of the asset.
        topic: Topic name.
    """
    name = _name(group, topic)
    keys = {int(number): f"{name}/{number}" for number in instance.get_dynamic_partitions(name)}
    if not keys:
        return {}
    texts = instance.daemon_cursor_storage.get_cursor_values(set(keys.values()))
    return {number: Pause(**json.loads(texts[key])) for number, key in sorted(keys.items())}


def pause(
    instance: dg.DagsterInstance,
    group: str,
    topic: str,
    partition: int,
    reason: str | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> bool:
    """Pause a partition: sensors request no further runs of it. Runs in flight finish, and manual runs still start.

    Args:
        instance: Dagster instance.
        group: Consumer group of the asset.
        topic: Topic name.
        partition: Kafka partition.
        reason: Reason for the pause, for other operators.
        clock: Returns seconds since the epoch; injected for tests.

    Returns:
        False if it was paused already; time and reason then stay unchanged.
    """
    name, number = _name(group, topic), str(partition)
    if instance.has_dynamic_partition(name, number):
        return False
    made = Pause(int(clock() * 1000), reason)
    # Stored first, so that every partition in the set has a stored pause.
    instance.daemon_cursor_storage.set_cursor_values({f"{name}/{number}": json.dumps(asdict(made))})
    try:
        instance.add_dynamic_partitions(name, [number])
    except IntegrityError:
        # Dagster's check and insert are not atomic: another process paused it in between.
        return False
    log_events(
        [
            PartitionEvent(
                PartitionEventKind.PAUSED,
                topic,
                partition,
                group,
                reason=reason and shortened(reason),
                at_ms=made.since_ms,
            )
        ]
    )
    return True


def resume(instance: dg.DagsterInstance, group: str, topic: str, partition: int) -> bool:
    """Resume a partition: sensors request runs of it again.

    Returns:
        False if it was not paused.
    """
    name, number = _name(group, topic), str(partition)
    if not instance.has_dynamic_partition(name, number):
        return False
    instance.delete_dynamic_partition(name, number)
    log_events([PartitionEvent(PartitionEventKind.RESUMED, topic, partition, group)])
    return True


def _name(group: str, topic: str) -> str:
    return f"kpipe/paused/{group}/{topic}"

"""Paused partitions: sensors ask for nothing there until they are resumed. Kept in the Dagster instance's storage.

Which partitions are paused is a set of Dagster's dynamic partitions, because adding one and deleting one changes no
other. Since when and why stands under a daemon cursor of its own for each partition.
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
        reason: Why, in the operator's words; None where nobody said.
    """

    since_ms: int
    reason: str | None = None


def paused(instance: dg.DagsterInstance, group: str, topic: str) -> dict[int, Pause]:
    """The paused partitions of a topic, for one group.

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
    """Ask for nothing more of a partition; runs in flight finish. A run that is started by hand is taken all the same.

    Args:
        instance: Dagster instance.
        group: Consumer group of the asset.
        topic: Topic name.
        partition: Kafka partition.
        reason: Why, for whoever looks at it.
        clock: Seconds since the epoch; injected for tests.

    Returns:
        False where it was paused already: then time and reason stay.
    """
    name, number = _name(group, topic), str(partition)
    if instance.has_dynamic_partition(name, number):
        return False
    made = Pause(int(clock() * 1000), reason)
    # First, so that whoever finds the partition in the set finds this too.
    instance.daemon_cursor_storage.set_cursor_values({f"{name}/{number}": json.dumps(asdict(made))})
    try:
        instance.add_dynamic_partitions(name, [number])
    except IntegrityError:
        # Dagster looks and then inserts: somebody paused it in between.
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
    """Ask for a partition again.

    Returns:
        False where it was not paused.
    """
    name, number = _name(group, topic), str(partition)
    if not instance.has_dynamic_partition(name, number):
        return False
    instance.delete_dynamic_partition(name, number)
    log_events([PartitionEvent(PartitionEventKind.RESUMED, topic, partition, group)])
    return True


def _name(group: str, topic: str) -> str:
    return f"kpipe/paused/{group}/{topic}"

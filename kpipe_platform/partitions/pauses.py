"""Paused partitions: sensors ask for nothing there until they are resumed. Kept in the Dagster instance's storage."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import dagster as dg

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
    key = _key(group, topic)
    text = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
    return {int(number): Pause(**pause) for number, pause in json.loads(text or "{}").items()}


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
    known = paused(instance, group, topic)
    if partition in known:
        return False
    made = Pause(int(clock() * 1000), reason)
    _store(instance, group, topic, {**known, partition: made})
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
    known = paused(instance, group, topic)
    if known.pop(partition, None) is None:
        return False
    _store(instance, group, topic, known)
    log_events([PartitionEvent(PartitionEventKind.RESUMED, topic, partition, group)])
    return True


def _store(instance: dg.DagsterInstance, group: str, topic: str, pauses: dict[int, Pause]) -> None:
    text = json.dumps({str(number): asdict(each) for number, each in sorted(pauses.items())})
    instance.daemon_cursor_storage.set_cursor_values({_key(group, topic): text})


def _key(group: str, topic: str) -> str:
    return f"kpipe/paused/{group}/{topic}"

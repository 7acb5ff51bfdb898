"""Paused partitions: sensors request no runs for them until they are resumed. Dagster's storage holds the pauses.

A pause belongs to an asset and a partition number, not to a topic: a run processes the same partition of every topic
that its asset reads. The set of paused partitions is stored as Dagster dynamic partitions, because one can be added or
deleted without a change to the others. Time and reason of each pause are stored in a separate daemon cursor for each
partition.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
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


def paused(instance: dg.DagsterInstance, asset_key: dg.AssetKey) -> dict[int, Pause]:
    """Return the paused partitions of an asset, in order.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
    """
    return _stored(instance, _name(asset_key))


def pause(
    instance: dg.DagsterInstance,
    asset_key: dg.AssetKey,
    partition: int,
    reason: str | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> bool:
    """Pause a partition: sensors request no further runs for it. Runs in flight finish, and manual runs still start.

    The runs of an unpartitioned asset process all partitions, so one paused partition pauses such an asset.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        partition: Kafka partition.
        reason: Reason for the pause, for other operators.
        clock: Returns seconds since the epoch; injected for tests.

    Returns:
        False if it was paused already; time and reason then stay unchanged.
    """
    made = Pause(int(clock() * 1000), reason)
    if not _store(instance, _name(asset_key), partition, made):
        return False
    event = _event(PartitionEventKind.PAUSED, asset_key, partition, made.since_ms, reason and shortened(reason))
    log_events([event])
    return True


def resume(instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: int) -> bool:
    """Resume a partition: sensors request runs for it again.

    Returns:
        False if it was not paused.
    """
    name, number = _name(asset_key), str(partition)
    if not instance.has_dynamic_partition(name, number):
        return False
    instance.delete_dynamic_partition(name, number)
    log_events([_event(PartitionEventKind.RESUMED, asset_key, partition, int(time.time() * 1000))])
    return True


def take_over(instance: dg.DagsterInstance, asset_key: dg.AssetKey, group: str, topics: Iterable[str]) -> None:
    """Move the pauses that version 0.1 stored for a consumer group and a topic to the group's asset.

    Sensors and state views call this before they read pauses, so that pauses survive the upgrade.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        group: Its consumer group.
        topics: The topics that it reads.
    """
    for topic in topics:
        former = f"{_PREFIX}{group}/{topic}"
        for number, found in _stored(instance, former).items():
            # Stored first: if this process dies in between, the next call moves the pause.
            _store(instance, _name(asset_key), number, found)
            instance.delete_dynamic_partition(former, str(number))


_PREFIX = "kpipe/paused/"


def _name(asset_key: dg.AssetKey) -> str:
    # JSON, such as ["shop", "orders"]. Version 0.1 stored consumer groups here, and none begins with a bracket.
    return f"{_PREFIX}{asset_key.to_string()}"


def _stored(instance: dg.DagsterInstance, name: str) -> dict[int, Pause]:
    keys = {int(number): f"{name}/{number}" for number in instance.get_dynamic_partitions(name)}
    if not keys:
        return {}
    texts = instance.daemon_cursor_storage.get_cursor_values(set(keys.values()))
    return {number: Pause(**json.loads(texts[key])) for number, key in sorted(keys.items())}


def _store(instance: dg.DagsterInstance, name: str, partition: int, made: Pause) -> bool:
    number = str(partition)
    if instance.has_dynamic_partition(name, number):
        return False
    # Stored first, so that every partition in the set has a stored pause.
    instance.daemon_cursor_storage.set_cursor_values({f"{name}/{number}": json.dumps(asdict(made))})
    try:
        instance.add_dynamic_partitions(name, [number])
    except IntegrityError:
        # Dagster's check and insert are not atomic: another process paused it in between.
        return False
    return True


def _event(
    kind: PartitionEventKind, asset_key: dg.AssetKey, partition: int, at_ms: int, reason: str | None = None
) -> PartitionEvent:
    return PartitionEvent(kind, None, partition, asset=asset_key.to_user_string(), reason=reason, at_ms=at_ms)

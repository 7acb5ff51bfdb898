"""Where an asset stands in each Kafka partition of a topic: a snapshot for people, monitors and `kpipe partitions`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import dagster as dg

from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.group_owners import Owners, owners_of
from kpipe_platform.kafka.ownership.status import OwnershipState
from kpipe_platform.kafka.read.samples import OldestRecord, oldest_records
from kpipe_platform.partitions import dynamic_name
from kpipe_platform.partitions.pauses import Pause, paused
from kpipe_platform.partitions.runs import asked_for, runs_in_flight
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.slices.plan.lag import Waiting, gather_waiting
from kpipe_platform.slices.plan.ranges import PlanPolicy


class Owner(Protocol):
    """Tells what this deployment owns: ``ConsumerGroupOwnership``."""

    def state(self) -> OwnershipState:
        """The partitions that are owned and that are draining, at this moment."""


@dataclass(frozen=True)
class PartitionState:
    """One Kafka partition of an asset.

    Args:
        topic: Topic.
        partition: Kafka partition.
        assigned: With an owner that was asked: whether that deployment has it. Else whether any has it; None where
            nobody shares the topic.
        owner: Which deployment has it: its instance id, or client id and host; None where that is not known.
        draining: Whether it is about to be given away and waits for work in flight; None where it is shared and no
            owner was asked: only the deployment itself knows.
        pause: Since when an operator has paused it, and why; None: it is not paused.
        in_flight: Ids of the Dagster runs that take it and are not finished, queued ones included.
        highest_completed: The last offset that the group is done with; None where it has no offset, or stands at 0.
            Offsets that a start policy or an operator left out count as done.
        committed: The group's offset: the next one to be taken; None where it has none.
        log_start: First offset that can be read.
        end: Offset behind the last that can be read, at the source's isolation.
        lag: Offsets that wait, those that were deleted unread included; no fewer than the records.
        oldest_unprocessed_age_s: Age of the first record that waits, by its own timestamp, seconds; None where
            nothing waits, where only transaction markers do, or where the record has no timestamp.
    """

    topic: str
    partition: int
    assigned: bool | None
    owner: str | None
    draining: bool | None
    pause: Pause | None
    in_flight: tuple[str, ...]
    highest_completed: int | None
    committed: int | None
    log_start: int
    end: int
    lag: int
    oldest_unprocessed_age_s: float | None

    @property
    def paused(self) -> bool:
        """Whether an operator has paused it."""
        return self.pause is not None

    @property
    def lost(self) -> int:
        """Offsets that retention deleted before they were taken."""
        return 0 if self.committed is None else max(self.log_start - self.committed, 0)


def partition_states(
    instance: dg.DagsterInstance,
    source: KafkaSource,
    asset: dg.AssetsDefinition | dg.AssetKey | str,
    topic: str,
    *,
    ownership: Owner | None = None,
    clock: Callable[[], float] = time.time,
) -> list[PartitionState]:
    """Where an asset stands in each Kafka partition of a topic that it reads; moves and joins nothing.

    The brokers are asked a number of times that does not grow with the partitions: one description of the topic, two
    lists of offsets, the group's offsets, the owners' group, and one reader of the oldest records that wait. Offsets
    that an open transaction holds are waited for 1.5 s; then those count that are stored already.

    Args:
        instance: Dagster instance.
        source: The asset's source.
        asset: The asset, or its key.
        topic: Topic name.
        ownership: This deployment's owner, for what it has and drains; None: the coordinator is asked who has what.
        clock: Seconds since the epoch; injected for tests.

    Returns:
        One state for each partition that the topic has now, in order.

    Raises:
        TopicNotFoundError: The topic does not exist.
        BrokerUnavailableError: No answer within the connection's deadline.
        KpipeError: The brokers refuse a question.
    """
    key = asset.key if isinstance(asset, dg.AssetsDefinition) else dg.AssetKey.from_coercible(asset)
    keys = _keys(instance, asset) if isinstance(asset, dg.AssetsDefinition) else None
    with source.clients() as clients:
        return read_states(
            instance, clients, source.policy(source.group(key)), topic, key, keys, ownership=ownership, clock=clock
        )


def read_states(
    instance: dg.DagsterInstance,
    clients: Clients,
    policy: PlanPolicy,
    topic: str,
    asset_key: dg.AssetKey | None,
    keys: Sequence[str] | None = None,
    *,
    ownership: Owner | None = None,
    clock: Callable[[], float] = time.time,
) -> list[PartitionState]:
    """The same for whoever knows the group only.

    Args:
        instance: Dagster instance.
        clients: The clients to use.
        policy: The group, its isolation, and where it begins.
        topic: Topic name.
        asset_key: The asset; None: of runs in flight, those that a sensor asked for are found.
        keys: The asset's Dagster partitions in their order, empty for an unpartitioned asset; None: the topic's.
        ownership: As for `partition_states`.
        clock: Likewise.
    """
    group = policy.group
    asked = asked_for(instance, group)
    waiting = gather_waiting(clients, policy, [topic], await_pending=False)
    if keys is None:
        keys = instance.get_dynamic_partitions(dynamic_name(topic)) or [str(each.partition) for each in waiting]
    by_key: dict[str | None, list[str]] = {}
    for run in [] if asset_key is None else runs_in_flight(instance, asset_key, keys):
        for taken in run.keys or (None,):
            by_key.setdefault(taken, []).append(run.run_id)
    pauses = paused(instance, group, topic)
    owns = _find_owner(clients, group, ownership)
    oldest = oldest_records(clients, group, [each.readable for each in waiting], policy.isolation)
    now_ms = int(clock() * 1000)
    return [
        _state(
            each,
            owns((each.topic, each.partition)),
            pauses.get(each.partition),
            [*asked.get((topic, each.partition), []), *by_key.get(str(each.partition), []), *by_key.get(None, [])],
            oldest.get((each.topic, each.partition)),
            now_ms,
        )
        for each in waiting
    ]


@dataclass(frozen=True)
class _Owned:
    assigned: bool | None
    owner: str | None
    draining: bool | None


def _find_owner(clients: Clients, group: str, ownership: Owner | None) -> Callable[[Partition], _Owned]:
    if ownership is not None:
        state = ownership.state()
        return lambda place: _Owned(place in state.owned, None, place in state.draining)
    owners: Owners | None = owners_of(clients, group)
    if owners is None:
        return lambda _: _Owned(None, None, False)

    def found(place: Partition) -> _Owned:
        owner = owners.owner(*place)
        return _Owned(owner is not None, owner, None)

    return found


def _state(
    waiting: Waiting,
    owned: _Owned,
    pause: Pause | None,
    runs: Iterable[str],
    oldest: OldestRecord | None,
    now_ms: int,
) -> PartitionState:
    committed = None if waiting.committed is None else waiting.committed.offset
    age_s = None
    if oldest is not None and oldest.timestamp_ms is not None:
        # A producer whose clock is ahead makes no record younger than now.
        age_s = max((now_ms - oldest.timestamp_ms) / 1000, 0.0)
    return PartitionState(
        topic=waiting.topic,
        partition=waiting.partition,
        assigned=owned.assigned,
        owner=owned.owner,
        draining=owned.draining,
        pause=pause,
        in_flight=tuple(dict.fromkeys(runs)),
        highest_completed=committed - 1 if committed else None,
        committed=committed,
        log_start=waiting.marks.log_start,
        end=waiting.marks.end,
        lag=waiting.lag,
        oldest_unprocessed_age_s=age_s,
    )


def _keys(instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> Sequence[str]:
    if asset.partitions_def is None:
        return ()
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        return tuple(asset.partitions_def.get_partition_keys())

"""The state of each Kafka partition of an asset: a snapshot for people, monitors and `kpipe partitions`."""

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
from kpipe_platform.partitions.definition import dynamic_name
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.partitions.pauses import Pause, paused, take_over
from kpipe_platform.partitions.runs import requested_runs, runs_in_flight
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.slices.plan.lag import Waiting, gather_waiting
from kpipe_platform.slices.plan.ranges import PlanPolicy


class Owner(Protocol):
    """Provides the partitions that this deployment owns: ``ConsumerGroupOwnership``."""

    def state(self) -> OwnershipState:
        """Return the partitions that are owned and those that are draining now."""


@dataclass(frozen=True)
class PartitionState:
    """One Kafka partition of an asset.

    Args:
        topic: Topic.
        partition: Kafka partition.
        assigned: If ``ownership`` was given, whether that deployment owns it. Otherwise whether any deployment owns it;
            None if the topic is not shared.
        owner: The deployment that owns it: its instance id, or its client id and host; None if unknown.
        draining: Whether the deployment gives it up and waits for work in flight; None if it is shared and no
            ``ownership`` was given, because only the owning deployment has this information.
        pause: Time and reason of an operator's pause; None: it is not paused.
        in_flight: Ids of the unfinished Dagster runs that process it, queued ones included.
        highest_completed: The last offset that the group has processed; None if the group has no offset or its offset
            is 0. Offsets that a start policy or an operator skipped count as processed.
        committed: The group's offset, the next one to be processed; None if it has none.
        log_start: First offset that can be read.
        end: Offset after the last that can be read, at the source's isolation.
        lag: Unprocessed offsets, including those that were deleted unread; an upper bound on the number of records.
        oldest_unprocessed_age_s: Age of the first unprocessed record by its own timestamp, seconds; None if there is no
            such record, only transaction markers, or if the record has no timestamp.
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
        """Whether an operator paused it."""
        return self.pause is not None

    @property
    def lost(self) -> int:
        """Number of offsets that retention deleted before they were processed."""
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
    """Return the state of each Kafka partition of a topic that an asset reads. Moves no offsets and joins no group.

    The number of broker calls does not grow with the number of partitions: one topic description, two offset listings,
    the group's offsets, the owners' group, and one reader for the oldest unprocessed records. If an open transaction
    holds offsets, the call waits for 1.5 s and then uses the offsets that are already stored.

    Args:
        instance: Dagster instance.
        source: The asset's source.
        asset: The asset, or its key.
        topic: Topic name.
        ownership: This deployment's owner, for the partitions that it owns and drains; None: the group coordinator
            provides the owners.
        clock: Returns seconds since the epoch; injected for tests.

    Returns:
        One state for each partition that the topic has now, in order.

    Raises:
        TopicNotFoundError: The topic does not exist.
        BrokerUnavailableError: No response within the connection's deadline.
        KpipeError: The brokers reject a request.
    """
    key = leading_key(asset) if isinstance(asset, dg.AssetsDefinition) else dg.AssetKey.from_coercible(asset)
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
    asset_key: dg.AssetKey,
    keys: Sequence[str] | None = None,
    *,
    ownership: Owner | None = None,
    clock: Callable[[], float] = time.time,
) -> list[PartitionState]:
    """Return the state of each Kafka partition of a topic, for callers that have the consumer group.

    Args:
        instance: Dagster instance.
        clients: The clients to use.
        policy: The group, its isolation, and where it starts.
        topic: Topic name.
        asset_key: The asset.
        keys: The asset's Dagster partitions in order, empty for an unpartitioned asset; None: the topic's.
        ownership: See `partition_states`.
        clock: See `partition_states`.
    """
    group = policy.group
    requested = requested_runs(instance, group)
    waiting = gather_waiting(clients, policy, [topic], await_pending=False)
    if keys is None:
        keys = instance.get_dynamic_partitions(dynamic_name(topic)) or [str(each.partition) for each in waiting]
    by_key: dict[str | None, list[str]] = {}
    for run in runs_in_flight(instance, asset_key, keys):
        for taken in run.keys or (None,):
            by_key.setdefault(taken, []).append(run.run_id)
    take_over(instance, asset_key, group, [topic])
    pauses = paused(instance, asset_key)
    owns = _find_owner(clients, group, ownership)
    oldest = oldest_records(clients, group, [each.readable for each in waiting], policy.isolation)
    now_ms = int(clock() * 1000)
    return [
        _state(
            each,
            owns((each.topic, each.partition)),
            pauses.get(each.partition),
            [*requested.get((topic, each.partition), []), *by_key.get(str(each.partition), []), *by_key.get(None, [])],
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
        # The clock of a producer may be ahead; the age is never negative.
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
        log_start=waiting.watermarks.log_start,
        end=waiting.watermarks.end,
        lag=waiting.lag,
        oldest_unprocessed_age_s=age_s,
    )


def _keys(instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> Sequence[str]:
    if asset.partitions_def is None:
        return ()
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        return tuple(asset.partitions_def.get_partition_keys())

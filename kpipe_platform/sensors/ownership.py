"""A sensor's membership in the group that shares partitions, and the work in flight that the member waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.events import Listener
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.partitions.owners import tags_of
from kpipe_platform.partitions.runs import runs_in_flight
from kpipe_platform.resources._compat import RUN_KEY_TAG, InstanceRef
from kpipe_platform.resources.scaling import RebalanceMode
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.sensors.tick.candidates import Target
from kpipe_platform.sensors.tick.growth import known_keys

# Seconds that a drain waits for a requested run to be created. The daemon creates it within moments after the tick. The
# wait is bounded because a test tick in the UI requests runs that are never created.
_RUN_EXPECTED_S = 15.0
# A member stays for at least this many intervals without a tick, because ticks can be late.
_INTERVALS = 3


@dataclass(frozen=True)
class _Request:
    """A run that a tick requested and that does not exist yet."""

    run_key: str
    numbers: frozenset[int]
    until_s: float


class PartitionShare:
    """One sensor's group membership. It lasts as long as the sensor's process, across ticks.

    The group shares only the partitions of the first topic; the same partition numbers of the other topics follow. An
    assignor distributes each topic separately, but a run processes the same partition number of every topic. An
    unpartitioned asset belongs to the deployment that owns partition 0, because its runs process all partitions.

    Args:
        asset: The asset of the sensor.
        interval_s: Time between ticks, seconds.
        clock: Monotonic clock, seconds.
    """

    def __init__(
        self, asset: dg.AssetsDefinition, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._partitions_def = asset.partitions_def
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._member: ConsumerGroupOwnership | None = None
        self._target: Target | None = None
        self._instance: dg.DagsterInstance | None = None
        self._reference: InstanceRef | None = None
        self._needed_until_s = 0.0
        self._ticks = 0
        self._requests: list[_Request] = []

    # ------------------------------------------------------------------------------------ the tick's thread

    def join(
        self,
        context: dg.SensorEvaluationContext,
        source: KafkaSource,
        target: Target,
        rebalance_mode: RebalanceMode,
        listener: Listener | None = None,
    ) -> ConsumerGroupOwnership | None:
        """Join the group in the background, or do nothing if the source does not share partitions.

        Args:
            context: The tick's context. Its Dagster instance holds the runs in flight.
            source: The source, whose ``ownership`` configures how partitions are shared.
            target: The asset.
            rebalance_mode: What happens to partitions that move to another deployment.
            listener: Receives each change, on the member's thread.

        Returns:
            The member; None if the source does not share partitions.

        Raises:
            ConfigError: A value is invalid.
        """
        if source.ownership is None:
            return None
        self._target = target
        self._open_instance(context)
        with self._lock:
            idle_s = max(source.ownership.idle_timeout_s, _INTERVALS * self._interval_s)
            self._needed_until_s = self._clock() + idle_s
        self._member = source.ownership.member(
            source.connection_settings,
            target.group,
            target.topics[0],
            rebalance_mode=rebalance_mode,
            in_flight=self.in_flight,
            listener=listener,
            is_needed=self.is_needed,
        )
        self._member.start()
        return self._member

    def owned(self, target: Target, partitions: int) -> frozenset[Partition] | None:
        """Return the partitions that this deployment owns; None while they are unknown.

        Args:
            target: The asset.
            partitions: Number of Kafka partitions that all of its topics have.

        Raises:
            KpipeError: The group rejected the member; see `ConsumerGroupOwnership.owned`.
        """
        member = self._member
        given = None if member is None else member.owned()
        if given is None:
            return None
        numbers = {number for _, number in given}
        if self._partitions_def is None:
            numbers = set(range(partitions)) if 0 in numbers else set()
        return frozenset((topic, number) for topic in target.topics for number in numbers)

    def tags(self) -> dict[str, str]:
        """Return the ownership tags for a run that is requested now."""
        return {} if self._member is None else tags_of(self._member)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Mark a tick in progress. Its run requests are not known yet, so no partition is given up during the tick."""
        with self._lock:
            self._ticks += 1
        try:
            yield
        finally:
            with self._lock:
                self._ticks -= 1

    def requested(self, requests: Sequence[dg.RunRequest], numbers: Sequence[Sequence[int | None]]) -> None:
        """Record the run requests of a tick. Until the runs exist, nothing else marks their partitions as in use.

        Args:
            requests: The run requests.
            numbers: The Kafka partitions of each request; None stands for all.
        """
        if self._member is None:
            return
        until_s = self._clock() + _RUN_EXPECTED_S
        with self._lock:
            self._requests += [
                _Request(str(request.run_key), frozenset(0 if n is None else n for n in taken), until_s)
                for request, taken in zip(requests, numbers, strict=True)
            ]

    def _open_instance(self, context: dg.SensorEvaluationContext) -> None:
        """Open a separate Dagster instance for the member, because the tick's instance is closed with the tick."""
        reference = context.instance_ref
        if reference is None and context.instance.is_persistent:
            reference = context.instance.get_ref()
        if reference is None:
            self._instance = context.instance
        elif reference != self._reference:
            # The instance's storages connect for each query, so an open instance holds no connection between drains.
            self._reference, self._instance = reference, dg.DagsterInstance.from_ref(reference)

    # ---------------------------------------------------------------------------------- the member's thread

    def is_needed(self) -> bool:
        """Return whether ticks still arrive. A sensor that is turned off must not withhold partitions."""
        with self._lock:
            return self._ticks > 0 or self._clock() < self._needed_until_s

    def in_flight(self, partitions: frozenset[Partition]) -> frozenset[Partition]:
        """Return those of the partitions that an unfinished (or queued) run or a requested run processes."""
        with self._lock:
            if self._ticks:
                return partitions
            requests = list(self._requests)
        instance, target = self._instance, self._target
        if instance is None or target is None:
            return frozenset()
        # Read the requests before the unfinished runs, so that a run created in between still counts as expected.
        expected = [each for each in requests if self._is_expected(instance, each)]
        with self._lock:
            self._requests = [each for each in self._requests if each not in requests or each in expected]
        busy = {number for each in expected for number in each.numbers} | self._running(instance, target)
        return frozenset(partition for partition in partitions if partition[1] in busy)

    def _is_expected(self, instance: dg.DagsterInstance, request: _Request) -> bool:
        if self._clock() >= request.until_s:
            return False
        return instance.get_runs_count(dg.RunsFilter(tags={RUN_KEY_TAG: request.run_key})) == 0

    def _running(self, instance: dg.DagsterInstance, target: Target) -> set[int]:
        if self._partitions_def is None:
            return {0} if runs_in_flight(instance, target.key, ()) else set()
        _, keys = known_keys(self._partitions_def, instance)
        runs = runs_in_flight(instance, target.key, keys)
        return {int(key) for run in runs for key in run.keys if key.isdecimal()}

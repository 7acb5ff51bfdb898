"""A sensor's part in sharing partitions: it keeps a member in the group, and tells it what work is in flight."""

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

# The daemon makes the runs that a tick requests within moments. A drain waits for them, but not for ever: a tick that
# is tried out in the UI requests runs that nobody makes. Seconds.
_RUN_EXPECTED_S = 15.0
# A member leaves after this many intervals without a tick at the earliest: ticks are late at times.
_INTERVALS = 3


@dataclass(frozen=True)
class _Request:
    """A run that a tick requested, until it exists."""

    run_key: str
    numbers: frozenset[int]
    until_s: float


class PartitionShare:
    """One sensor's part, for as long as its process lives. Its ticks come and go; the member stays.

    The group shares the partitions of the first topic only, and the same numbers of the others go with them: an
    assignor distributes each topic by itself, but a run takes the same number of each. An unpartitioned asset belongs
    to whoever has partition 0, for its runs take all.

    Args:
        asset: The asset of the sensor.
        interval_s: Time between ticks, seconds.
        clock: Seconds, never going back.
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
        """Take part from now on, in the background; nothing happens where the source shares no partitions.

        Args:
            context: The tick, whose Dagster instance has the runs in flight.
            source: Says how partitions are shared.
            target: The asset.
            rebalance_mode: What happens to partitions that another deployment is to have.
            listener: Receives each change, on the member's thread.

        Raises:
            ConfigError: A value makes no sense.
        """
        if source.ownership is None:
            return None
        self._target = target
        self._open_instance(context)
        with self._lock:
            idle_s = max(source.ownership.idle_timeout_s, _INTERVALS * self._interval_s)
            self._needed_until_s = self._clock() + idle_s
        self._member = source.ownership.member(
            source.connection.settings,
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
        """The partitions that this deployment has; None while that is not known.

        Args:
            target: The asset.
            partitions: How many Kafka partitions all of its topics have.

        Raises:
            KpipeError: The member is not let in; see `ConsumerGroupOwnership.owned`.
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
        """The tags of a run that is requested now."""
        return {} if self._member is None else tags_of(self._member)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """A tick: which runs it will request is not known yet, so nothing is given away meanwhile."""
        with self._lock:
            self._ticks += 1
        try:
            yield
        finally:
            with self._lock:
                self._ticks -= 1

    def requested(self, requests: Sequence[dg.RunRequest], numbers: Sequence[Sequence[int | None]]) -> None:
        """Remember what a tick requests: until its runs exist, nothing else shows that partitions are in use.

        Args:
            requests: The requests.
            numbers: The Kafka partitions of each; None stands for all.
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
        """An instance of the member's own: the tick's is closed with the tick."""
        reference = context.instance_ref
        if reference is None and context.instance.is_persistent:
            reference = context.instance.get_ref()
        if reference is None:
            self._instance = context.instance
        elif reference != self._reference:
            # Its storages connect anew for each question, so keeping it costs nothing between two drains.
            self._reference, self._instance = reference, dg.DagsterInstance.from_ref(reference)

    # ---------------------------------------------------------------------------------- the member's thread

    def is_needed(self) -> bool:
        """Whether ticks come: a sensor that was turned off must not keep partitions from other deployments."""
        with self._lock:
            return self._ticks > 0 or self._clock() < self._needed_until_s

    def in_flight(self, partitions: frozenset[Partition]) -> frozenset[Partition]:
        """Which of these partitions are taken by an unfinished run, queued ones included, or by a requested one."""
        with self._lock:
            if self._ticks:
                return partitions
            requests = list(self._requests)
        instance, target = self._instance, self._target
        if instance is None or target is None:
            return frozenset()
        # Before the unfinished runs: a run that is made in between still counts as expected.
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

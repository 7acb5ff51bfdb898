"""A sensor's part in sharing partitions: it joins, and tells what is in flight while its member drains."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from kpipe_platform.kafka.offsets import Partition
from kpipe_platform.kafka.ownership import ConsumerGroupOwnership
from kpipe_platform.kafka.ownership_events import Listener
from kpipe_platform.partitions.owners import tags_of
from kpipe_platform.partitions.runs import runs_in_flight
from kpipe_platform.resources._compat import RUN_KEY_TAG, InstanceRef
from kpipe_platform.resources.ownership import PartitionOwnership
from kpipe_platform.resources.scaling import RebalanceMode
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.sensors.candidates import Target
from kpipe_platform.sensors.growth import known_keys

logger = logging.getLogger(__name__)

# The daemon makes the runs that a tick asks for within moments. Until they are there a drain waits for them, but not
# for ever: a tick that is tried out in the UI asks for runs that nobody makes. Seconds.
_UNTIL_RUNS_ARE_THERE_S = 15.0
# A member leaves after this many intervals without a tick at the earliest: ticks are late at times.
_INTERVALS = 3


@dataclass(frozen=True)
class _Asked:
    """A run that a tick asked for, until it is there."""

    run_key: str
    numbers: frozenset[int]
    until_s: float


@dataclass(frozen=True)
class _View:
    """What the member's thread needs to look for runs."""

    target: Target
    reference: InstanceRef | None
    instance: dg.DagsterInstance


class PartitionShare:
    """One sensor's part, for as long as its process lives. Its ticks come and go; the member stays.

    Only the first of the target's topics is shared by the group, and the same numbers of the others go with it: an
    assignor gives each topic's partitions away by themselves, and a run takes the same number of each. An
    unpartitioned asset belongs to whoever has partition 0, for its runs take all.

    Args:
        asset: The asset that is asked for.
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
        self._watch: threading.Thread | None = None
        self._ticked_s = 0.0
        self._deciding = 0
        self._asked: list[_Asked] = []
        self._view: _View | None = None
        self._opened: tuple[InstanceRef, dg.DagsterInstance] | None = None

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
            rebalance_mode: What becomes of partitions that another deployment is to have.
            listener: Told of each change, on the member's threads.

        Raises:
            ConfigError: A value makes no sense.
        """
        if source.ownership is None:
            return None
        instance, reference = context.instance, context.instance_ref
        if reference is None and instance.is_persistent:
            reference = instance.get_ref()
        self._view = _View(target, reference, instance)
        member = source.ownership.member(
            source.connection.settings,
            target.group,
            target.topics[0],
            rebalance_mode=rebalance_mode,
            in_flight=self.in_flight,
            listener=listener,
        )
        member.start()
        self._keep(member, source.ownership)
        return member

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
        """The tags of a run that is asked for now."""
        return {} if self._member is None else tags_of(self._member)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """A tick: what it will ask for is not known yet, so nothing is given away meanwhile."""
        with self._lock:
            self._deciding += 1
        try:
            yield
        finally:
            with self._lock:
                self._deciding -= 1

    def asked(self, requests: Sequence[dg.RunRequest], numbers: Sequence[Sequence[int | None]]) -> None:
        """Remember what a tick asks for: its runs are not there yet, and partitions must not be given away by that.

        Args:
            requests: The requests.
            numbers: The Kafka partitions of each; None stands for all.
        """
        if self._member is None:
            return
        until_s = self._clock() + _UNTIL_RUNS_ARE_THERE_S
        with self._lock:
            self._asked += [
                _Asked(str(request.run_key), frozenset(0 if n is None else n for n in taken), until_s)
                for request, taken in zip(requests, numbers, strict=True)
            ]

    # ---------------------------------------------------------------------------------- the member's thread

    def in_flight(self, partitions: frozenset[Partition]) -> frozenset[Partition]:
        """Which of these partitions a run is at work on, or waits for in Dagster's queue, or was just asked for."""
        with self._lock:
            if self._deciding:
                return partitions
            asked, view = list(self._asked), self._view
        if view is None:
            return frozenset()
        instance = self._open(view)
        # Before the runs in flight: a run that is made in between is still taken to be coming.
        coming = [each for each in asked if self._is_coming(instance, each)]
        with self._lock:
            self._asked = [each for each in self._asked if each not in asked or each in coming]
        busy = {number for each in coming for number in each.numbers} | self._at_work(instance, view.target)
        return frozenset(partition for partition in partitions if partition[1] in busy)

    def _is_coming(self, instance: dg.DagsterInstance, asked: _Asked) -> bool:
        if self._clock() >= asked.until_s:
            return False
        return instance.get_runs_count(dg.RunsFilter(tags={RUN_KEY_TAG: asked.run_key})) == 0

    def _at_work(self, instance: dg.DagsterInstance, target: Target) -> set[int]:
        if self._partitions_def is None:
            return {0} if runs_in_flight(instance, target.key, ()) else set()
        _, keys = known_keys(self._partitions_def, instance)
        runs = runs_in_flight(instance, target.key, keys)
        return {int(key) for run in runs for key in run.keys if key.isdecimal()}

    def _open(self, view: _View) -> dg.DagsterInstance:
        """An instance of the member's own: the tick's is closed with the tick."""
        if view.reference is None:
            return view.instance
        if self._opened is None or self._opened[0] != view.reference:
            # Its storages connect anew for each question, so keeping it costs nothing between two drains.
            self._opened = view.reference, dg.DagsterInstance.from_ref(view.reference)
        return self._opened[1]

    # --------------------------------------------------------------------------------- leaving without ticks

    def _keep(self, member: ConsumerGroupOwnership, ownership: PartitionOwnership) -> None:
        """Note the tick, and see to it that somebody notices when there are no more."""
        idle_s = max(ownership.idle_timeout_s, _INTERVALS * self._interval_s)
        with self._lock:
            self._ticked_s = self._clock()
            is_watched = self._member is member and self._watch is not None and self._watch.is_alive()
            self._member = member
            if is_watched:
                return
            self._watch = threading.Thread(
                target=self._leave_when_idle, args=(member, idle_s), name=f"kpipe-idle-{member.group}", daemon=True
            )
            self._watch.start()

    def _leave_when_idle(self, member: ConsumerGroupOwnership, idle_s: float) -> None:
        while not member.is_closed:
            with self._lock:
                left_s = self._ticked_s + idle_s - self._clock()
                if self._deciding:
                    left_s = max(left_s, 1.0)
            if left_s <= 0:
                logger.warning(
                    "the sensor of group %s made no tick for %.0f s: its partitions are given away",
                    member.group,
                    idle_s,
                )
                member.close()
                return
            # In steps, so that a member that was closed otherwise is not kept until its sensor would be idle.
            time.sleep(min(left_s, 5.0))

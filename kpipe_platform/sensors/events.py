"""What a sensor tells of partitions: at once in the log, and in its ticks as observations of the asset.

Ownership changes on a thread of its own, between two ticks and while the brokers are away, when there is no Dagster
instance at hand: such events wait for the next tick to be observed. They keep the time at which they happened.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby

import dagster as dg

from kpipe_platform.kafka.ownership.events import Listener, OwnershipEvent
from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind, log_events
from kpipe_platform.partitions.observations import observations_of, report

logger = logging.getLogger(__name__)

Emit = Callable[[Sequence[PartitionEvent]], None]
"""Takes events of one change; safe in any thread, and quick."""

# Changes that wait for a tick; the oldest give way. A sensor that does not tick has no more use for them.
_WAITING = 1_000
# Events that are observed at once, 40 ms each at worst: a tick with a thousand partitions must not run into Dagster's
# limit of 60 s. The others wait for the next tick.
_OBSERVED_AT_ONCE = 100


def ownership_listener(emit: Emit, asset_key: dg.AssetKey | None = None) -> Listener:
    """A listener for `ConsumerGroupOwnership` that reports the change of each partition.

    Args:
        emit: Takes the events, on the member's thread: `TickEvents.emit`.
        asset_key: The asset; None: its group says enough.
    """
    asset = None if asset_key is None else asset_key.to_user_string()

    def listen(event: OwnershipEvent) -> None:
        emit(partition_events(event, asset))

    return listen


def partition_events(event: OwnershipEvent, asset: str | None = None) -> list[PartitionEvent]:
    """An ownership event by partition, in their order."""
    late = "; work on it was in flight"
    at_ms = int(time.time() * 1000)
    return [
        PartitionEvent(
            PartitionEventKind(event.kind),
            topic,
            number,
            event.group,
            asset=asset,
            member=event.member_id or None,
            reason=event.reason + (late if (topic, number) in event.in_flight else ""),
            at_ms=at_ms,
        )
        for topic, number in sorted(event.partitions)
    ]


class TickEvents:
    """The events of one sensor, that are logged at once and wait for a tick to be observed. Safe in any thread."""

    def __init__(self) -> None:
        self._waiting: deque[PartitionEvent] = deque(maxlen=_WAITING)

    def emit(self, events: Sequence[PartitionEvent]) -> None:
        """Log events, and have them observed by the next `deliver`."""
        log_events(events)
        self._waiting.extend(events)

    def observe(self, events: Sequence[PartitionEvent]) -> None:
        """Have events observed by the next `deliver`, that were logged where they happened."""
        self._waiting.extend(events)

    def listener(self, asset_key: dg.AssetKey) -> Listener:
        """The listener of an asset's `ConsumerGroupOwnership`."""
        return ownership_listener(self.emit, asset_key)

    def deliver(
        self, instance: dg.DagsterInstance, asset_key: dg.AssetKey, *, partitioned: bool, observed: bool
    ) -> None:
        """Store what waits as observations, in a tick's thread with the tick's instance; raises nothing.

        Args:
            instance: Dagster instance.
            asset_key: The asset.
            partitioned: Whether it has Dagster partitions.
            observed: ``PartitionScaling.emit_partition_execution_events``; False: what waits is dropped.
        """
        if not observed:
            self._waiting.clear()
            return
        taken: list[PartitionEvent] = []
        while self._waiting and len(taken) < _OBSERVED_AT_ONCE:
            taken.append(self._waiting.popleft())
        # A partition that was lost and assigned again since the last tick is two changes, in their order.
        for _, together in groupby(taken, key=lambda event: (event.kind, event.at_ms)):
            report(instance, observations_of(list(together), asset_key, partitioned=partitioned))

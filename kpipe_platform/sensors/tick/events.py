"""Partition events that a sensor logs: changes of ownership, and partitions that become saturated.

Ownership changes on a separate thread, also between ticks and while the brokers are unavailable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import dagster as dg

from kpipe_platform.kafka.ownership.events import Listener, OwnershipEvent
from kpipe_platform.observability.events import PartitionEvent, PartitionEventKind, log_events
from kpipe_platform.sensors.tick.candidates import WHOLE, Target
from kpipe_platform.sensors.tick.cursor import REMEMBERED
from kpipe_platform.sensors.tick.decision import Candidate, Decision, State


def ownership_listener(asset_key: dg.AssetKey) -> Listener:
    """Return a listener for `ConsumerGroupOwnership` that logs one event for each partition. It is thread-safe."""
    asset = asset_key.to_user_string()
    return lambda event: log_events(partition_events(event, asset))


def partition_events(event: OwnershipEvent, asset: str | None = None) -> list[PartitionEvent]:
    """Convert an ownership event to one event for each partition, in order of topic and partition."""
    late = "; a run on it was in flight"
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


def log_saturated(
    target: Target,
    candidates: Sequence[Candidate],
    decision: Decision,
    logged: frozenset[int],
    *,
    clock: Callable[[], float] = time.time,
) -> frozenset[int]:
    """Log the partitions that become saturated, each once for as long as it stays saturated.

    Args:
        target: The asset.
        candidates: The partitions.
        decision: Their states.
        logged: Partitions that earlier ticks logged, from the cursor.
        clock: Returns seconds since the epoch; injected for tests.

    Returns:
        The logged partitions that are still saturated, for the cursor. Their number is bounded. While the cursor is
        full, no further partition is logged, because it would be logged again at every tick.
    """
    waiting = {
        WHOLE if c.number is None else c.number: c for c in candidates if decision.states[c.number] is State.SATURATED
    }
    kept = logged.intersection(waiting)
    new = [number for number in waiting if number not in kept][: max(REMEMBERED - len(kept), 0)]
    log_events(
        PartitionEvent(
            PartitionEventKind.SATURATED,
            planned.range.topic,
            planned.range.partition,
            target.group,
            asset=target.key.to_user_string(),
            start=planned.range.start,
            end=planned.end,
            reason="the limit on partitions or runs in progress is reached",
            at_ms=int(clock() * 1000),
        )
        for number in new
        for planned in waiting[number].ranges
        if planned.end > planned.range.start
    )
    return kept.union(new)

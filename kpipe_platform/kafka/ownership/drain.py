"""Wait for work in flight before partitions are revoked. Independent of Kafka: callers pass in what to wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.events import InFlight
from kpipe_platform.kafka.ownership.status import NONE

logger = logging.getLogger(__name__)

# Interval between two checks of the work in flight, seconds; the end of a drain is noticed at most this late.
_INTERVAL_S = 0.2


def drain(
    partitions: frozenset[Partition],
    in_flight: InFlight | None,
    *,
    deadline_s: float,
    clock: Callable[[], float],
    wait: Callable[[float], object],
    why_stop: Callable[[], str | None],
) -> tuple[frozenset[Partition], str]:
    """Wait until no work is in flight.

    Args:
        partitions: The partitions to revoke.
        in_flight: Returns those of the given partitions that have work in flight; None if none ever has.
        deadline_s: Maximum wait, seconds.
        clock: Monotonic clock in seconds.
        wait: Waits for the given seconds, or less if there is a reason to check again.
        why_stop: Returns a reason to stop waiting, as text; None to continue.

    Returns:
        The partitions whose work is still in flight, and why the wait ended.
    """
    end = clock() + deadline_s
    while True:
        left = _busy(partitions, in_flight)
        if not left:
            return NONE, "no work is in flight"
        reason = why_stop()
        if reason is not None:
            return left, reason
        if clock() >= end:
            return left, f"work was still in flight after {deadline_s:g} s"
        wait(min(_INTERVAL_S, max(end - clock(), 0.01)))


def _busy(partitions: frozenset[Partition], in_flight: InFlight | None) -> frozenset[Partition]:
    if in_flight is None:
        return NONE
    try:
        return frozenset(in_flight(partitions)) & partitions
    except Exception:
        # Unknown is treated as busy; the deadline bounds the wait.
        logger.exception("cannot determine whether work is in flight on %s", sorted(partitions))
        return partitions

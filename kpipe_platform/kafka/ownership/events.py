"""Events of an owner's partitions, and what an owner calls back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.status import NONE

logger = logging.getLogger(__name__)

OwnershipEventKind = Literal["assigned", "draining", "drained", "revoked", "lost"]


@dataclass(frozen=True)
class OwnershipEvent:
    """One change of what a deployment owns.

    Args:
        kind: ``assigned`` (given by the coordinator), ``draining`` (no new work; waits for work in flight), ``drained``
            (no work is left), ``revoked`` (given away) or ``lost`` (taken away without asking).
        partitions: The partitions concerned.
        group: The asset's consumer group.
        member_id: The coordinator's id of this member; empty before it has one.
        reason: Why, in words.
        in_flight: With ``revoked``: partitions that were given away although work on them was in flight.
    """

    kind: OwnershipEventKind
    partitions: frozenset[Partition]
    group: str
    member_id: str
    reason: str
    in_flight: frozenset[Partition] = NONE


InFlight = Callable[[frozenset[Partition]], frozenset[Partition]]
"""Which of these partitions have work in flight."""

Listener = Callable[[OwnershipEvent], None]
"""Receives events."""


@dataclass(frozen=True)
class Callbacks:
    """What a member calls, all on its own thread.

    Args:
        in_flight: Which of the given partitions have work in flight; None: none has.
        listener: Receives every event.
        is_needed: Whether the member should stay in the group; None: it stays until it is closed.
    """

    in_flight: InFlight | None = None
    listener: Listener | None = None
    is_needed: Callable[[], bool] | None = None


def publish(event: OwnershipEvent, listener: Listener | None) -> None:
    """Log an event and pass it to a listener. Raises nothing."""
    logger.info("Owners of %s: %s %s: %s", event.group, event.kind, sorted(event.partitions), event.reason)
    if listener is None:
        return
    try:
        listener(event)
    except Exception:
        # The membership must not depend on what a listener does.
        logger.exception("Owners of %s: the listener failed on %s", event.group, event.kind)

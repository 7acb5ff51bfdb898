"""Ownership events and the callbacks of a member."""

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
    """One change of the partitions that a deployment owns.

    Args:
        kind: ``assigned`` (by the coordinator), ``draining`` (no new work; waiting for work in flight), ``drained``
            (no work in flight), ``revoked`` (given to another member) or ``lost`` (removed without notice).
        partitions: The affected partitions.
        group: The asset's consumer group.
        member_id: The member id that the coordinator assigned; empty before it has assigned one.
        reason: Reason for the change, as text.
        in_flight: For ``revoked``: partitions that were revoked while work on them was in flight.
    """

    kind: OwnershipEventKind
    partitions: frozenset[Partition]
    group: str
    member_id: str
    reason: str
    in_flight: frozenset[Partition] = NONE


InFlight = Callable[[frozenset[Partition]], frozenset[Partition]]
"""Returns those of the given partitions that have work in flight."""

Listener = Callable[[OwnershipEvent], None]
"""Receives events."""


@dataclass(frozen=True)
class Callbacks:
    """Callbacks of a member, all called on the member's thread.

    Args:
        in_flight: Returns those of the given partitions that have work in flight; None if none ever has.
        listener: Receives every event.
        is_needed: Returns whether the member should stay in the group; None to stay until it is closed.
    """

    in_flight: InFlight | None = None
    listener: Listener | None = None
    is_needed: Callable[[], bool] | None = None


def publish(event: OwnershipEvent, listener: Listener | None) -> None:
    """Log an event and pass it to a listener. Never raises."""
    logger.info("Owners of %s: %s %s: %s", event.group, event.kind, sorted(event.partitions), event.reason)
    if listener is None:
        return
    try:
        listener(event)
    except Exception:
        # A failing listener must not end the membership.
        logger.exception("Owners of %s: the listener failed for event %s", event.group, event.kind)

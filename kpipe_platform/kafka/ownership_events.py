"""What an owner tells about its partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.offsets import Partition
from kpipe_platform.kafka.ownership_ledger import NONE

logger = logging.getLogger(__name__)

OwnershipEventKind = Literal["assigned", "draining", "drained", "revoked", "lost"]
OwnershipStatus = Literal["joining", "member", "uncertain", "failed", "closed"]


@dataclass(frozen=True)
class OwnershipEvent:
    """One change of what a deployment owns.

    Args:
        kind: ``assigned`` (given by the coordinator, or believed again after a silence), ``draining`` (no new work;
            work in flight is waited for), ``drained`` (none is left), ``revoked`` (given away) or ``lost`` (taken
            away, or in doubt because the coordinator is silent).
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


@dataclass(frozen=True)
class OwnershipState:
    """What a deployment owns at one moment.

    Args:
        status: ``joining`` (not let in yet), ``member``, ``uncertain`` (the coordinator is silent for longer than
            the session timeout), ``failed`` (see ``problem``) or ``closed``.
        owned: Partitions that this deployment may ask work for.
        draining: Partitions that are about to be given away, and wait for work in flight.
        lost: Partitions that were taken away, or are in doubt, and were not assigned again since.
        member_id: The coordinator's id of this member; None before it has one.
        lease: What gave this deployment its partitions, for metadata; None unless ``member``.
        since_contact_s: Seconds since the coordinator last counted this member in; None before it did.
        problem: Why nothing can be owned, or why some topics cannot.
    """

    status: OwnershipStatus
    owned: frozenset[Partition]
    draining: frozenset[Partition]
    lost: frozenset[Partition]
    member_id: str | None
    lease: str | None
    since_contact_s: float | None
    problem: KpipeError | None


Listener = Callable[[OwnershipEvent], None]
"""Takes events; called on the member's threads."""


class Reporter:
    """Tells of changes, in the log and to a listener.

    Args:
        group: The asset's consumer group.
    """

    def __init__(self, group: str) -> None:
        self.listener: Listener | None = None
        self.member_id = ""
        self._group = group

    def tell(
        self,
        kind: OwnershipEventKind,
        partitions: frozenset[Partition],
        reason: str,
        in_flight: frozenset[Partition] = NONE,
    ) -> None:
        """Tell of one change; see `OwnershipEvent`."""
        event = OwnershipEvent(kind, partitions, self._group, self.member_id, reason, in_flight)
        logger.info("Owners of %s: %s %s: %s", self._group, kind, sorted(partitions), reason)
        if self.listener is None:
            return
        try:
            self.listener(event)
        except Exception:
            # The group goes on whatever becomes of the report.
            logger.exception("Owners of %s: the listener failed on %s", self._group, kind)

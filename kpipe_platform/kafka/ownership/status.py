"""State of a member's ownership, as immutable values without Kafka. Each change creates a new value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.model.offsets import Partition

NONE: frozenset[Partition] = frozenset()
"""No partitions."""

OwnershipStatus = Literal["joining", "member", "uncertain", "failed", "closed"]


@dataclass(frozen=True)
class Assignment:
    """The coordinator's assignment to one member.

    Args:
        joined: Whether the member is in the group: it has joined and has not been removed since.
        owned: Partitions on which new work may start.
        draining: Partitions that wait for work in flight before they are revoked.
        lost: Partitions that were lost and have not been assigned again since.
        changes: Number of assignments and revocations so far.
    """

    joined: bool = False
    owned: frozenset[Partition] = NONE
    draining: frozenset[Partition] = NONE
    lost: frozenset[Partition] = NONE
    changes: int = 0

    def assign(self, partitions: frozenset[Partition]) -> Assignment:
        """Return the state after the member has joined or received more partitions; the set may be empty."""
        return replace(
            self,
            joined=True,
            owned=self.owned | partitions,
            lost=self.lost - partitions,
            changes=self.changes + bool(partitions),
        )

    def drain(self, partitions: frozenset[Partition]) -> Assignment:
        """Return the state in which these partitions get no new work and are not revoked yet."""
        return replace(self, owned=self.owned - partitions, draining=self.draining | partitions)

    def revoke(self, partitions: frozenset[Partition]) -> Assignment:
        """Return the state after these partitions were revoked."""
        return replace(
            self,
            owned=self.owned - partitions,
            draining=self.draining - partitions,
            changes=self.changes + bool(partitions),
        )

    def lose(self) -> Assignment:
        """Return the state after the member was removed from the group; others may already own its partitions."""
        gone = self.owned | self.draining
        return Assignment(lost=self.lost | gone, changes=self.changes + bool(gone))


@dataclass(frozen=True)
class OwnershipState:
    """Snapshot of a deployment's ownership.

    Args:
        status: ``joining`` (not in the group yet), ``member``, ``uncertain`` (removed from the group, or no answer for
            the session timeout; it rejoins automatically), ``failed`` (see ``problem``) or ``closed``.
        owned: Partitions on which this deployment may start new work.
        draining: Partitions that wait for work in flight before they are revoked.
        lost: Partitions that were lost and have not been assigned again since.
        member_id: Member id that the coordinator assigned; None before it has assigned one.
        lease: Identifier of the current assignment, for metadata; None unless ``member``.
        problem: Why partitions of all or some topics cannot be owned; None if there is no problem.
    """

    status: OwnershipStatus
    owned: frozenset[Partition]
    draining: frozenset[Partition]
    lost: frozenset[Partition]
    member_id: str | None
    lease: str | None
    problem: KpipeError | None

"""What a member owns at one moment: values without Kafka. Each change makes a new one."""

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
    """What the coordinator has given one member.

    Args:
        joined: Whether the coordinator has let the member in and has not removed it since.
        owned: Partitions that may get new work.
        draining: Partitions that wait for work in flight before they are given away.
        lost: Partitions that were taken away and were not assigned again since.
        changes: How many times partitions have come or gone.
    """

    joined: bool = False
    owned: frozenset[Partition] = NONE
    draining: frozenset[Partition] = NONE
    lost: frozenset[Partition] = NONE
    changes: int = 0

    def assign(self, partitions: frozenset[Partition]) -> Assignment:
        """The coordinator let the member in, or gave it more partitions, or none."""
        return replace(
            self,
            joined=True,
            owned=self.owned | partitions,
            lost=self.lost - partitions,
            changes=self.changes + bool(partitions),
        )

    def drain(self, partitions: frozenset[Partition]) -> Assignment:
        """These partitions get no new work, and are not given away yet."""
        return replace(self, owned=self.owned - partitions, draining=self.draining | partitions)

    def revoke(self, partitions: frozenset[Partition]) -> Assignment:
        """These partitions were given away."""
        return replace(
            self,
            owned=self.owned - partitions,
            draining=self.draining - partitions,
            changes=self.changes + bool(partitions),
        )

    def lose(self) -> Assignment:
        """The member was removed from the group: another one may own all of its partitions already."""
        gone = self.owned | self.draining
        return Assignment(lost=self.lost | gone, changes=self.changes + bool(gone))


@dataclass(frozen=True)
class OwnershipState:
    """What a deployment owns at one moment.

    Args:
        status: ``joining`` (not let in yet), ``member``, ``uncertain`` (removed from the group, or without an answer
            for the session timeout; it joins again by itself), ``failed`` (see ``problem``) or ``closed``.
        owned: Partitions that may get new work from this deployment.
        draining: Partitions that are about to be given away and wait for work in flight.
        lost: Partitions that were taken away and were not assigned again since.
        member_id: The coordinator's id of this member; None before it has one.
        lease: What gave this deployment its partitions, for metadata; None unless ``member``.
        problem: Why nothing can be owned, or why some topics cannot.
    """

    status: OwnershipStatus
    owned: frozenset[Partition]
    draining: frozenset[Partition]
    lost: frozenset[Partition]
    member_id: str | None
    lease: str | None
    problem: KpipeError | None

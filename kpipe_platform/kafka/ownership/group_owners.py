"""Owners of an asset's partitions, read from the coordinator of the owners' group without joining the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kpipe_platform.errors import AuthorizationFailedError
from kpipe_platform.kafka.admin.groups import group_members
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition


@dataclass(frozen=True)
class Owners:
    """The members of an owners' group.

    Args:
        members: Number of members.
        by_partition: Owner of each partition: its instance id, or its client id and host.
    """

    members: int
    by_partition: Mapping[Partition, str]

    def owner(self, topic: str, partition: int) -> str | None:
        """Return the owner of a partition; None if it has no owner.

        An asset that reads several topics shares the partitions of the first topic. The partitions with the same
        number in the other topics have the same owner.
        """
        if any(shared == topic for shared, _ in self.by_partition):
            return self.by_partition.get((topic, partition))
        return next((owner for (_, number), owner in self.by_partition.items() if number == partition), None)


def owners_of(clients: Clients, group: str) -> Owners | None:
    """Read the owners from the coordinator, in one call.

    Args:
        clients: The clients to use.
        group: The asset's consumer group; its owners are the members of ``{group}.owners``.

    Returns:
        The owners; None if the group has no members or an ACL denies access to it.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    try:
        members = group_members(clients, f"{group}.owners")
    except AuthorizationFailedError:
        return None
    if not members:
        return None
    owners = {partition: member.name for member in members for partition in member.partitions}
    return Owners(len(members), owners)

"""Who owns the partitions of an asset, as the coordinator of its owners' group says; asked without joining it."""

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
        members: How many there are.
        by_partition: The member that has a partition, in words: its instance id, or its client id and host.
    """

    members: int
    by_partition: Mapping[Partition, str]

    def owner(self, topic: str, partition: int) -> str | None:
        """Who has a partition; None where nobody has.

        An asset that reads several topics shares the first of them, and the same partitions of the others go with it.
        """
        if any(shared == topic for shared, _ in self.by_partition):
            return self.by_partition.get((topic, partition))
        return next((owner for (_, number), owner in self.by_partition.items() if number == partition), None)


def owners_of(clients: Clients, group: str) -> Owners | None:
    """Ask the coordinator, in one call.

    Args:
        clients: The clients to use.
        group: The asset's consumer group; its owners are in ``{group}.owners``.

    Returns:
        None where there is no such group, or it may not be read.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    try:
        members = group_members(clients, f"{group}.owners")
    except AuthorizationFailedError:
        return None
    if not members:
        return None
    found = {partition: member.name for member in members for partition in member.partitions}
    return Owners(len(members), found)

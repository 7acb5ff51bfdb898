"""The stored offset and commit metadata of the group that stores a redrive's progress."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe_platform.kafka.admin.groups import fetch_stored
from kpipe_platform.kafka.client.clients import Clients


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The group's offset of a partition.

    Args:
        offset: Next offset to read.
        text: The commit metadata; None if there is none.
    """

    offset: int
    text: str | None


def read_stored_offset(clients: Clients, group: str, topic: str, partition: int) -> StoredOffset | None:
    """Read the group's offset of a partition and its commit metadata. Return None if the group has no offset.

    Raises:
        BrokerUnavailableError: The brokers did not respond within the deadline, for example because an open
            transaction holds the offset.
        AuthorizationFailedError: The client is not authorized to read the group.
    """
    (found,) = fetch_stored(
        clients,
        group,
        [(topic, partition)],
        isolation="read_committed",
        timeout_s=clients.settings.request_timeout_s,
    )
    # In Kafka's protocol, a negative offset without an error means that there is no offset.
    return None if found.offset < 0 else StoredOffset(found.offset, found.metadata or None)

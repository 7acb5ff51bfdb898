"""The offset of the group that holds a redrive's progress, with the text beside it."""

from __future__ import annotations

from dataclasses import dataclass

from kpipe_platform.kafka.admin.groups import fetch_stored
from kpipe_platform.kafka.client.clients import Clients


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The group's offset of a partition.

    Args:
        offset: Next offset to read.
        text: What stands beside it.
    """

    offset: int
    text: str | None


def read_stored_offset(clients: Clients, group: str, topic: str, partition: int) -> StoredOffset | None:
    """The group's offset of a partition with the text beside it; None where it has none.

    Raises:
        BrokerUnavailableError: No answer within the deadline, for example because a transaction that is neither
            committed nor aborted holds the offset.
        AuthorizationFailedError: The group may not be read.
    """
    (found,) = fetch_stored(
        clients,
        group,
        [(topic, partition)],
        isolation="read_committed",
        timeout_s=clients.settings.request_timeout_s,
    )
    # A negative offset without an error is the protocol's way to say that there is none.
    return None if found.offset < 0 else StoredOffset(found.offset, found.metadata or None)

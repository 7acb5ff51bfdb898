"""A second proof of membership, for the time in which the client gives none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.groups import group_members
from kpipe_platform.kafka.ownership_settings import OwnershipSettings

logger = logging.getLogger(__name__)

# Questions a session timeout: enough for one or two to be lost on the way.
_QUESTIONS = 8


@contextmanager
def vouched_for(
    settings: OwnershipSettings, member_id: str, clock: Callable[[], float], hear: Callable[[float], None]
) -> Iterator[None]:
    """Ask the coordinator who is in the group, for as long as the block.

    While a rebalance callback waits, librdkafka goes on with heartbeats by itself, but tells of their answers only to
    the thread that polls, and that one waits; a second thread that polled meanwhile would hang. Without another
    proof, the partitions that stay would be given up in the middle of a long drain.

    Args:
        settings: How the member takes part.
        member_id: The coordinator's id of the member.
        clock: Seconds, never going back.
        hear: Told the time of each question to which the answer names the member; on a thread of its own.
    """
    over = threading.Event()

    def ask() -> None:
        with Clients(settings.connection) as clients:
            while not over.is_set():
                sent = clock()
                try:
                    members = group_members(clients, settings.owners_group)
                except KpipeError as error:
                    logger.info("Owners of %s: %s", settings.group, error.message)
                else:
                    if any(member.member_id == member_id for member in members):
                        hear(sent)
                over.wait(settings.session_timeout_s / _QUESTIONS)

    # It is not waited for: its last question may take the connection's whole deadline.
    threading.Thread(target=ask, name=f"kpipe-owner-{settings.group}-drain", daemon=True).start()
    try:
        yield
    finally:
        over.set()

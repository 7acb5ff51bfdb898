"""Wait: where the logs of all waiting units end, in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.admin.topics import TopicDescription, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition, watermarks

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
"""Half of it is what a record waits on average before it is seen; a poll costs about 1 ms of a broker's time."""

_DESCRIBE_EVERY_S = 5.0


@dataclass(frozen=True)
class LogEnds:
    """What one poll found.

    Args:
        ends: The log end of each partition; None: the brokers did not answer, or a topic is gone.
        topics: The topics; None where they were not asked for.
    """

    ends: Mapping[Partition, int] | None
    topics: Mapping[str, TopicDescription] | None = None


class LogEndPoller:
    """Asks for the ends of logs, and every few seconds for the topics.

    Args:
        clients: Clients that stay open as long as this does.
        isolation: ``"read_committed"``: an end is the last stable offset.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(self, clients: Clients, isolation: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients = clients
        self._isolation = isolation
        self._clock = clock
        self._described_at = clock()

    def poll(self, partitions: Iterable[Partition]) -> LogEnds:
        """Ask once for all of these partitions; raises nothing of the brokers'."""
        wanted = sorted(set(partitions))
        if not wanted:
            return LogEnds({})
        try:
            found = watermarks(self._clients, wanted, self._isolation)
            ends = {place: marks.end for place, marks in found.items()}
            if self._clock() - self._described_at < _DESCRIBE_EVERY_S:
                return LogEnds(ends)
            self._described_at = self._clock()
            return LogEnds(ends, describe_topics(self._clients, sorted({topic for topic, _ in wanted})))
        except KpipeError as error:
            logger.warning("cannot look for new records: %s", error)
            return LogEnds(None)

"""Wait: poll the log ends of all waiting units in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.admin.topics import TopicDescription, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import Partition, read_watermarks

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.05
"""A record waits half of this interval on average before it is noticed. A poll costs about 1 ms of broker time."""

_DESCRIBE_EVERY_S = 5.0


@dataclass(frozen=True)
class LogEnds:
    """The result of one poll.

    Args:
        ends: The log end of each partition; None: the brokers did not respond, or a topic does not exist.
        topics: The topic descriptions; None if this poll did not request them.
    """

    ends: Mapping[Partition, int] | None
    topics: Mapping[str, TopicDescription] | None = None


class LogEndPoller:
    """Polls log ends, and topic descriptions every few seconds.

    Args:
        clients: Clients. They must stay open as long as the poller is used.
        isolation: With ``"read_committed"``, the log end is the last stable offset.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(self, clients: Clients, isolation: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients = clients
        self._isolation = isolation
        self._clock = clock
        self._described_at = clock()

    def poll(self, partitions: Iterable[Partition]) -> LogEnds:
        """Poll these partitions once. Logs `KpipeError` and returns no log ends instead of raising it."""
        wanted = sorted(set(partitions))
        if not wanted:
            return LogEnds({})
        try:
            by_partition = read_watermarks(self._clients, wanted, self._isolation)
            ends = {topic_partition: watermarks.end for topic_partition, watermarks in by_partition.items()}
            if self._clock() - self._described_at < _DESCRIBE_EVERY_S:
                return LogEnds(ends)
            self._described_at = self._clock()
            return LogEnds(ends, describe_topics(self._clients, sorted({topic for topic, _ in wanted})))
        except KpipeError as error:
            logger.warning("cannot poll the log ends for new records: %s", error)
            return LogEnds(None)

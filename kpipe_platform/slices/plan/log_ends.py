"""Waiting for new records: where the logs end, looked at for all partitions of a run at once.

Several threads may each wait for a partition of their own. Whoever looks next asks for all of them, and the others see
the answer, so the number of calls does not grow with the partitions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.offsets import Partition, watermarks

# Half of it is what a record waits on average before it is seen; a look costs about 1 ms of a broker's time.
LOOK_EVERY_S = 0.05


class Lookout:
    """Looks at the ends of partitions; in any thread.

    Args:
        clients: Clients that stay open as long as this does.
        isolation: ``"read_committed"``: an end is the last stable offset.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(self, clients: Clients, isolation: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients = clients
        self._isolation = isolation
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: set[Partition] = set()
        self._ends: dict[Partition, int] = {}
        self._looked_at: float | None = None

    def ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Where the partitions end; the answer is at most ``LOOK_EVERY_S`` old.

        Raises:
            KpipeError: No answer within the deadline, or a topic is gone.
        """
        places = list(partitions)
        with self._lock:
            self._wanted.update(places)
            if self._is_stale(places):
                found = watermarks(self._clients, sorted(self._wanted), self._isolation)
                self._ends = {place: marks.end for place, marks in found.items()}
                self._looked_at = self._clock()
            return {place: self._ends[place] for place in places}

    def leave(self, partitions: Iterable[Partition]) -> None:
        """Look at these partitions no more."""
        with self._lock:
            self._wanted.difference_update(partitions)

    def _is_stale(self, places: list[Partition]) -> bool:
        if self._looked_at is None or any(place not in self._ends for place in places):
            return True
        # A thread sleeps for about as long between two looks of its own, and is then to get a new answer.
        return self._clock() - self._looked_at >= LOOK_EVERY_S * 0.8

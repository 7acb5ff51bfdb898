"""When a server that nobody uses may drop what its clients have left."""

from __future__ import annotations

import time
from collections.abc import Callable

# By then the jobs of a client that was killed are over too: spark.connect.execute.manager.detachedTimeout and its look.
_IDLE_S = 90.0


class IdleSweep:
    """Clears once in each time of idleness.

    Args:
        clients: Number of clients that are attached; None where nobody knows.
        clear: Drops what is left.
        clock: Monotonic seconds; injected for tests.
    """

    def __init__(
        self, clients: Callable[[], int | None], clear: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clients = clients
        self._clear = clear
        self._clock = clock
        self._since: float | None = None
        self._was_used = False

    def look(self) -> None:
        """Look whether it is time; to be called every few seconds."""
        if self._clients() != 0:
            self._since, self._was_used = None, True
        elif self._since is None:
            self._since = self._clock()
        elif self._was_used and self._clock() - self._since >= _IDLE_S:
            self._was_used = False
            self._clear()

"""Decides when an unused server may drop data that its clients left behind."""

from __future__ import annotations

import time
from collections.abc import Callable

# Idle time before a sweep, seconds. By then the jobs of a killed client have ended too, after
# spark.connect.execute.manager.detachedTimeout and the interval of its check.
_IDLE_S = 90.0


class IdleSweep:
    """Clears leftover data once in each idle period.

    Args:
        clients: Returns the number of attached clients; None if unknown.
        clear: Drops the leftover data.
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
        """Clear if the server has been idle for long enough. Call this every few seconds."""
        if self._clients() != 0:
            self._since, self._was_used = None, True
        elif self._since is None:
            self._since = self._clock()
        elif self._was_used and self._clock() - self._since >= _IDLE_S:
            self._was_used = False
            self._clear()

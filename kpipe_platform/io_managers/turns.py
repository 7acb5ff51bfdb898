"""Turns of threads that work on few things at a time: whoever came first goes first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# How long a waiting thread may take to see that the run is terminated.
_LOOK_S = 0.2


class Turns:
    """Lets so many threads work at a time.

    A thread that gives its turn back and asks again stands behind those that wait: a partition that is never caught up
    does not hold the others back.

    Args:
        at_once: How many.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def one(self, check: Callable[[], None]) -> Iterator[None]:
        """Wait for a turn, and hold it.

        Args:
            check: Called while waiting; what it raises ends the wait.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._free or self._waiting[0] is not ticket:
                    self._changed.wait(_LOOK_S)
                    check()
                self._free -= 1
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

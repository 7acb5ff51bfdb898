"""One object a process and key: found again by every caller, made anew in a forked child, closed at the end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Registry(Generic[Kept]):
    """Keeps what must exist once in a process.

    Args:
        close: Ends an object that is replaced, or left when the process ends.
    """

    def __init__(self, close: Callable[[Kept], None]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Kept] = {}
        self._inherited: list[dict[Hashable, Kept]] = []
        atexit.register(self.close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def find(self, key: Hashable, made: Kept, is_same: Callable[[Kept], bool]) -> Kept:
        """The object of a key.

        Args:
            key: The key.
            made: What to keep if there is none, or only one that is not the same.
            is_same: Whether the object that is there will do.
        """
        with self._lock:
            found = self._kept.get(key)
            if found is not None and is_same(found):
                return found
            self._kept[key] = made
        if found is not None:
            self._close(found)
        return made

    def close_all(self) -> None:
        """End all objects of this process and forget them."""
        with self._lock:
            kept, self._kept = self._kept, {}
        for each in kept.values():
            self._close(each)

    def _forget(self) -> None:
        # The parent's objects have no threads here, and the lock may be held by one of the parent's. They are kept
        # from being taken apart, which needs those threads.
        self._inherited.append(self._kept)
        self._kept = {}
        self._lock = threading.Lock()

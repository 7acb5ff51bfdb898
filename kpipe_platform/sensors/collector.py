"""Python's garbage collector while a tick is at work."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Of objects that the collector tracks, a tick makes some fifteen for each partition.
_YOUNG_OBJECTS = 50_000


class _Changed:
    """The collector's thresholds as they were, for the ticks that are at work in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ticks = 0
        self.before = (0, 0, 0)
        self.ours = (0, 0, 0)


_changed = _Changed()


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let so many objects be made before the collector looks at them.

    By default it looks after every 700. What a tick knows of a thousand partitions outlives several looks and so
    counts as old, without a cycle in it; and once a quarter of a process's objects are newly old, the collector looks
    at all of them: with Dagster loaded 130 ms, after every seventh tick or so.

    Nothing is turned off. A process whose thresholds are higher, or zero (no collection), keeps them; and so it does
    where something else sets them meanwhile.
    """
    with _changed.lock:
        _changed.ticks += 1
        if _changed.ticks == 1:
            _changed.before = _changed.ours = gc.get_threshold()
            if 0 < _changed.before[0] < _YOUNG_OBJECTS:
                _changed.ours = (_YOUNG_OBJECTS, *_changed.before[1:])
                gc.set_threshold(*_changed.ours)
    try:
        yield
    finally:
        with _changed.lock:
            _changed.ticks -= 1
            if not _changed.ticks and gc.get_threshold() == _changed.ours:
                gc.set_threshold(*_changed.before)

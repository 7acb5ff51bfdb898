"""One member for each group in a process: what runs once in a process, whoever asks for it."""

from __future__ import annotations

import atexit
import os
import threading

from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership

_lock = threading.Lock()
_running: dict[tuple[str, str], ConsumerGroupOwnership] = {}

if hasattr(os, "register_at_fork"):
    # A thread of the parent that holds the lock does not exist in the child, where it would be held for ever.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def ownership_of(ownership: ConsumerGroupOwnership) -> ConsumerGroupOwnership:
    """The one of a group that this process keeps: the given one, unless an equal one is there.

    So that each tick of a sensor, which keeps nothing itself, finds the member that runs. The one that is there gets
    the callbacks of the given one; with other settings it is closed and replaced. What is kept leaves its group when
    the process ends in order, without a drain.

    Args:
        ownership: A new one, which has not been started.
    """
    key = ownership.settings.connection.bootstrap_servers, ownership.group
    with _lock:
        found = _running.get(key)
        if found is not None and found.settings == ownership.settings and not found.is_closed:
            found.callbacks = ownership.callbacks
            return found
        _running[key] = ownership
    if found is not None:
        found.close(drain=False)
    return ownership


@atexit.register
def _close_all() -> None:
    with _lock:
        kept = list(_running.values())
        _running.clear()
    for each in kept:
        each.close(drain=False)

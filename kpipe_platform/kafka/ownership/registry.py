"""Registry of ownership members: at most one per group and cluster in a process."""

from __future__ import annotations

import atexit
import os
import threading

from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership

_lock = threading.Lock()
_running: dict[tuple[str, str], ConsumerGroupOwnership] = {}

if hasattr(os, "register_at_fork"):
    # A parent thread that holds the lock does not exist in the child, so the child's lock would never be released.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def ownership_of(ownership: ConsumerGroupOwnership) -> ConsumerGroupOwnership:
    """Return this process's ownership of a group: the registered one with equal settings, else the given one.

    A sensor tick keeps no state, so it uses this to find the running member. The registered ownership receives the
    callbacks of the given one. If its settings differ, it is closed and replaced. On normal process exit, all
    registered members leave their groups without a drain.

    Args:
        ownership: A new ownership that has not been started.
    """
    key = ownership.settings.connection.bootstrap_servers, ownership.group
    with _lock:
        running = _running.get(key)
        if running is not None and running.settings == ownership.settings and not running.is_closed:
            running.callbacks = ownership.callbacks
            return running
        _running[key] = ownership
    if running is not None:
        running.close(drain=False)
    return ownership


@atexit.register
def _close_all() -> None:
    with _lock:
        kept = list(_running.values())
        _running.clear()
    for each in kept:
        each.close(drain=False)

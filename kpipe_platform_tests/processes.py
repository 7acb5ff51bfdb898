"""Processes by their ids: who descends from whom, who talks to a port; frozen, resumed, killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

# With the settings of `kpipe spark start`, and without.
_DAEMONS = ("kpipe_platform.spark.connect.worker_daemon", "pyspark.daemon")


def descendants(pid: int) -> list[int]:
    """All living descendants of a process, parents before their children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found = list(children.get(pid, []))
    for each in found:
        found += children.get(each, [])
    return found


def python_workers(pid: int) -> list[int]:
    """Python processes below a worker of Spark, or a driver, that do tasks: a daemon forks them, Python too."""
    below = descendants(pid)
    daemons = [each for each in below if any(name in command(each) for name in _DAEMONS)]
    return [each for daemon in daemons for each in descendants(daemon)]


def descendant_groups(pid: int) -> set[int]:
    """Process groups of all descendants but this process's own: Spark puts its Python workers into one of their own."""
    found = set()
    for each in descendants(pid):
        with suppress(ProcessLookupError):
            found.add(os.getpgid(each))
    return found - {os.getpgid(0)}


def command(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def send(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = 90.0, poll_s: float = 0.05) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline_s} s"
        time.sleep(poll_s)

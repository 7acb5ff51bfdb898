"""Process sessions: all processes that a service started, including those that created their own process groups."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["end_session", "session_members"]

_POLL_S = 0.1


def session_members(session: int) -> Iterator[int]:
    """Yield the running processes of a session.

    Without /proc (macOS) there are none. There, only the process group is ended, which always happens first.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            # The fields after the command in parentheses are state, parent, group and session.
            state, _, _, its_session = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                yield int(stat.parent.name)


def end_session(session: int, deadline_s: float) -> None:
    """Wait until all processes of a session have ended, and kill them with SIGKILL after the deadline."""
    end = time.monotonic() + deadline_s
    while members := list(session_members(session)):
        if time.monotonic() >= end:
            for pid in members:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(_POLL_S)

"""The little process between kpipe and a child that must not outlive it.

Run as a script, by path, with nothing but the standard library; never imported by kpipe. It starts the child
in a session of its own and then watches two things: the child, and the pipe on its standard input that only
the parent holds. The end of that pipe means that the parent is gone, however it went, even by SIGKILL: the
child is then ended too. Through the pipe the parent also asks for signals, one letter each, so that no signal
is ever sent to a pid that was recycled: the supervisor is the child's parent and knows whether it is there.

On standard output goes one line: the child's pid, or ``!`` and why it could not be started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress

TERMINATE = b"T"
KILL = b"K"
NOT_STARTED = 127
CONTROL, REPORT, LOG = 0, 1, 2


def main() -> int:
    """Run ``supervisor.py GRACE_S REMOVE_IF_ORPHANED COMMAND...``; exit with the child's code."""
    grace_s, remove_if_orphaned, *command = sys.argv[1:]
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=LOG,
            stderr=LOG,
            start_new_session=True,
        )
    except OSError as error:
        os.write(REPORT, f"!{error}\n".encode())
        return NOT_STARTED
    os.write(REPORT, f"{child.pid}\n".encode())
    os.close(REPORT)
    signal.signal(signal.SIGTERM, lambda *_: signal_group(child, signal.SIGTERM))
    orphaned = threading.Event()
    threading.Thread(target=follow_parent, args=(child, orphaned, float(grace_s)), daemon=True).start()
    code = child.wait()
    # What the child itself started goes with it.
    signal_group(child, signal.SIGKILL, even_without_leader=True)
    if orphaned.is_set() and remove_if_orphaned:
        shutil.rmtree(remove_if_orphaned, ignore_errors=True)
    return code if code >= 0 else 128 - code


def follow_parent(child: subprocess.Popen[bytes], orphaned: threading.Event, grace_s: float) -> None:
    """Do what the parent asks for; when it is gone, end the child."""
    while letter := os.read(CONTROL, 1):
        signal_group(child, signal.SIGKILL if letter == KILL else signal.SIGTERM)
    orphaned.set()
    signal_group(child, signal.SIGTERM)
    threading.Event().wait(grace_s)
    signal_group(child, signal.SIGKILL)


def signal_group(child: subprocess.Popen[bytes], signum: signal.Signals, *, even_without_leader: bool = False) -> None:
    """Signal the child and what it started; its session has the child's pid as its group."""
    if child.returncode is None or even_without_leader:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signum)


if __name__ == "__main__":
    sys.exit(main())

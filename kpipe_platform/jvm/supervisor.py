"""Supervisor process between kpipe and a child that must not outlive it.

It runs as a script, by path, with only the standard library; kpipe never imports it. It starts the child in its own
session and then watches the child and the pipe on its standard input, of which only the parent has the other end. When
that pipe closes, the parent has ended, for whatever reason, including SIGKILL, and the supervisor ends the child. The
parent also requests signals through the pipe, one byte each. The supervisor is the child's parent process and can check
that the child exists, so no signal is sent to a reused pid.

It writes one line to standard output: the child's pid, or ``!`` and the reason why the child could not be started.
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
    """Run ``supervisor.py GRACE_S REMOVE_IF_ORPHANED COMMAND...``; return the child's exit code."""
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
    # End processes that the child started.
    signal_group(child, signal.SIGKILL, even_without_leader=True)
    if orphaned.is_set() and remove_if_orphaned:
        shutil.rmtree(remove_if_orphaned, ignore_errors=True)
    return code if code >= 0 else 128 - code


def follow_parent(child: subprocess.Popen[bytes], orphaned: threading.Event, grace_s: float) -> None:
    """Send the signals that the parent requests, and end the child when the parent has ended."""
    while request := os.read(CONTROL, 1):
        signal_group(child, signal.SIGKILL if request == KILL else signal.SIGTERM)
    orphaned.set()
    signal_group(child, signal.SIGTERM)
    threading.Event().wait(grace_s)
    signal_group(child, signal.SIGKILL)


def signal_group(child: subprocess.Popen[bytes], signum: signal.Signals, *, even_without_leader: bool = False) -> None:
    """Send a signal to the child's process group, which has the child's pid as its id."""
    if child.returncode is None or even_without_leader:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signum)


if __name__ == "__main__":
    sys.exit(main())

"""Process identities that distinguish a process from a later one with the same pid."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from kpipe_platform.errors import EnvironmentSetupError

__all__ = ["PidFile", "ProcessIdentity"]

logger = logging.getLogger(__name__)

_POLL_S = 0.02


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and the start time of its process, so that a reused pid is a different identity.

    Attributes:
        pid: Process id.
        started: Opaque start time. On Linux, the boot id and the clock ticks since boot.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Identify a running process; None if there is none, or only a zombie without other threads."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    def is_running(self) -> bool:
        """Return whether this process is still running. A zombie counts as ended."""
        return _start_time(self.pid) == self.started

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this process, never to a later one with the same pid.

        Returns:
            False if the process has ended or its pid now belongs to another process.

        Raises:
            EnvironmentSetupError: The process belongs to another user.
        """
        try:
            if sys.platform == "linux":
                # The descriptor refers to one process, even if the pid is reused after the check.
                descriptor = os.pidfd_open(self.pid)
                try:
                    if not self.is_running():
                        return False
                    signal.pidfd_send_signal(descriptor, signum)
                finally:
                    os.close(descriptor)
            else:
                if not self.is_running():
                    return False
                os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            msg = f"Process {self.pid} belongs to another user, so it cannot be signaled."
            raise EnvironmentSetupError(msg, fix="run the command as that user") from error
        return True

    def wait(self, deadline_s: float) -> bool:
        """Wait until the process has ended.

        Args:
            deadline_s: Maximum wait, seconds.

        Returns:
            Whether the process has ended.
        """
        end = time.monotonic() + deadline_s
        while self.is_running():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self, deadline_s: float) -> bool:
        """End the process with SIGTERM, and with SIGKILL after the deadline.

        Args:
            deadline_s: Seconds to wait after each signal.

        Returns:
            Whether the process was running.
        """
        if not self.send(signal.SIGTERM):
            return False
        if not self.wait(deadline_s):
            logger.warning("process %s did not end within %.0f s of SIGTERM: killing it", self.pid, deadline_s)
            self.send(signal.SIGKILL)
            self.wait(deadline_s)
        return True


@dataclass(frozen=True)
class PidFile:
    """A file that contains one process identity.

    Attributes:
        path: Path of the file.
    """

    path: Path

    def write(self, identity: ProcessIdentity) -> None:
        """Write the identity atomically: a reader gets either the old file or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(identity)), encoding="utf-8")
        temporary.replace(self.path)

    def read(self) -> ProcessIdentity | None:
        """Read the identity; None if the file is missing or unreadable."""
        try:
            fields = json.loads(self.path.read_text(encoding="utf-8"))
            return ProcessIdentity(int(fields["pid"]), str(fields["started"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            logger.warning("ignoring %s: it is not a valid pid file", self.path)
            return None

    def running(self) -> ProcessIdentity | None:
        """Return the identity in the file if its process is still running, else None."""
        identity = self.read()
        return identity if identity is not None and identity.is_running() else None

    def remove(self) -> None:
        """Remove the file if it exists."""
        with suppress(FileNotFoundError):
            self.path.unlink()


def _start_time(pid: int) -> str | None:
    if sys.platform != "linux":
        return _start_time_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may contain any character, so split after the last ")".
    fields = stat.rpartition(")")[2].split()
    state, threads, start_ticks = fields[0], int(fields[17]), fields[19]
    # A killed process becomes a zombie at once, but its files and ports are released only when its last thread ends.
    if state in "ZX" and threads <= 1:
        return None
    return f"{_boot_id()}:{start_ticks}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _start_time_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()

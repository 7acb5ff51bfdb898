"""Telling a process from a later one that was given the same pid."""

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
    """A pid together with when its process started, so that a recycled pid is another identity.

    Attributes:
        pid: Process id.
        started: Opaque start time. On Linux the boot's id and clock ticks since boot.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Identify a running process; None when there is none, or only a zombie without threads."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    def is_running(self) -> bool:
        """Tell whether this very process is still there. A zombie counts as gone."""
        return _start_time(self.pid) == self.started

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this very process.

        Returns:
            False when the process is gone, or its pid belongs to another one by now.

        Raises:
            EnvironmentSetupError: The process belongs to another user.
        """
        try:
            if sys.platform == "linux":
                # The descriptor pins the process, so that the pid cannot change hands after the check.
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
            msg = f"Process {self.pid} belongs to another user: it cannot be signalled."
            raise EnvironmentSetupError(msg, fix="run the command as its user") from error
        return True

    def wait(self, deadline_s: float) -> bool:
        """Wait until the process is gone.

        Args:
            deadline_s: Seconds to wait at most.

        Returns:
            Whether it is gone.
        """
        end = time.monotonic() + deadline_s
        while self.is_running():
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self, deadline_s: float) -> bool:
        """End the process: SIGTERM, and SIGKILL once the deadline passed.

        Args:
            deadline_s: Seconds to wait between the two signals.

        Returns:
            Whether there was a process to end.
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
    """A file that holds one process identity.

    Attributes:
        path: Where it is.
    """

    path: Path

    def write(self, identity: ProcessIdentity) -> None:
        """Write the identity; a reader sees the old file or the new one, never half of it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(identity)), encoding="utf-8")
        temporary.replace(self.path)

    def read(self) -> ProcessIdentity | None:
        """Read the identity; None when there is no file, or no sense in it."""
        try:
            fields = json.loads(self.path.read_text(encoding="utf-8"))
            return ProcessIdentity(int(fields["pid"]), str(fields["started"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            logger.warning("%s is no pid file of kpipe: taken for absent", self.path)
            return None

    def running(self) -> ProcessIdentity | None:
        """The identity in the file when its process is still running, else None."""
        identity = self.read()
        return identity if identity is not None and identity.is_running() else None

    def remove(self) -> None:
        """Remove the file if it is there."""
        with suppress(FileNotFoundError):
            self.path.unlink()


def _start_time(pid: int) -> str | None:
    if sys.platform != "linux":
        return _start_time_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may hold anything: count from its last one.
    fields = stat.rpartition(")")[2].split()
    state, threads, start_ticks = fields[0], int(fields[17]), fields[19]
    # A killed process is a zombie at once, but its files and ports are free only after its last thread.
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

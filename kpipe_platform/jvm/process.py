"""Child processes that end with their parent, or that keep running until they are stopped."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm.identity import PidFile, ProcessIdentity
from kpipe_platform.jvm.logs import tail

__all__ = ["ManagedProcess"]

logger = logging.getLogger(__name__)

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_TERMINATE, _KILL = b"T", b"K"
# SIGKILL takes effect at once; a process that still exists after this time hangs in the kernel.
_KILL_DEADLINE_S = 10.0


class ManagedProcess:
    """One child process in its own session, with a log file.

    An attached child (the default) ends when its parent ends, even if the parent is killed with SIGKILL; see
    `kpipe_platform.jvm.supervisor`. A detached child outlives its parent. Its pid file identifies it later, and
    distinguishes it from a later process with the same pid.

    Args:
        command: Program and arguments.
        log_path: File to append the child's output to.
        cwd: Working folder; the parent's by default.
        env: Complete environment; the parent's by default.
        detached: Whether the child outlives its parent, False by default.
        pid_file: File for the child's identity while it runs; needed to find a detached child later.
        orphan_grace_s: Seconds between SIGTERM and SIGKILL after the parent has ended, 5 by default. Attached children
            only.
        remove_if_orphaned: Folder to delete after the parent has ended. Attached children only.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log_path: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        detached: bool = False,
        pid_file: Path | None = None,
        orphan_grace_s: float = 5.0,
        remove_if_orphaned: Path | None = None,
    ) -> None:
        self.command = [str(part) for part in command]
        self.log_path = log_path
        self.detached = detached
        self._cwd = cwd
        self._env = None if env is None else dict(env)
        self._pid_file = None if pid_file is None else PidFile(pid_file)
        self._orphan_grace_s = orphan_grace_s
        self._remove_if_orphaned = remove_if_orphaned
        self._log_start = 0
        self._identity: ProcessIdentity | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child; None before it has started and after it has ended."""
        return self._identity.pid if self._identity is not None and self.is_running() else None

    @property
    def returncode(self) -> int | None:
        """Exit code, 128 + n after signal n; None while the child runs, and always for a detached child."""
        return None if self._supervisor is None else self._supervisor.poll()

    def start(self) -> None:
        """Start the child. It is running when this returns, but it may not be ready yet.

        Raises:
            EnvironmentSetupError: The program cannot be started, or its log file cannot be written.
            RuntimeError: The child is already running.
        """
        if self.is_running():
            msg = f"{self.command[0]} is already running, as process {self.pid}"
            raise RuntimeError(msg)
        self._forget()
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with self.log_path.open("ab") as log:
                self._log_start = log.tell()
                pid = self._start_detached(log) if self.detached else self._start_attached(log)
        except OSError as error:
            msg = f"Cannot start {self.command[0]}: {error}"
            fix = f"check that the program exists and that {self.log_path} is writable"
            raise EnvironmentSetupError(msg, fix=fix) from error
        self._identity = ProcessIdentity.of(pid)
        if self._pid_file is not None and self._identity is not None:
            self._pid_file.write(self._identity)
        logger.debug("started process %s: %s", pid, self.command[0])

    def is_running(self) -> bool:
        """Return whether the child is running."""
        if self.detached:
            return self._identity is not None and self._identity.is_running()
        return self._supervisor is not None and self._supervisor.poll() is None

    def wait(self, deadline_s: float) -> bool:
        """Wait until the child has ended.

        Args:
            deadline_s: Maximum wait, seconds.

        Returns:
            Whether the child has ended.
        """
        if self.detached:
            return self._identity is None or self._identity.wait(deadline_s)
        if self._supervisor is not None:
            try:
                self._supervisor.wait(deadline_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def terminate(self) -> None:
        """Send SIGTERM to the child, without waiting for its end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the child, and wait until it has ended."""
        self._signal(signal.SIGKILL)
        self.wait(_KILL_DEADLINE_S)
        self._forget()

    def stop(self, deadline_s: float = 10.0) -> None:
        """End the child with SIGTERM, and with SIGKILL after the deadline. Does nothing if the child has ended.

        Args:
            deadline_s: Seconds to wait between the two signals, 10 by default.
        """
        self.terminate()
        if not self.wait(deadline_s):
            logger.warning("process %s did not end within %.0f s of SIGTERM: killing it", self.pid, deadline_s)
            self._signal(signal.SIGKILL)
            self.wait(_KILL_DEADLINE_S)
        self._forget()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines that the child has logged since its last start, 30 by default."""
        return tail(self.log_path, lines, start=self._log_start)

    def _start_attached(self, log: IO[bytes]) -> int:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", _SUPERVISOR),
                *(str(self._orphan_grace_s), str(self._remove_if_orphaned or "")),
                *self.command,
            ],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self._cwd,
            env=self._env,
            start_new_session=True,
        )
        assert supervisor.stdout is not None  # noqa: S101  # set by stdout=PIPE
        with supervisor.stdout as report:
            answer = report.readline().decode(errors="replace").strip()
        if not answer.isdigit():
            supervisor.communicate()
            raise OSError(answer.removeprefix("!") or "its supervisor exited at once")
        self._supervisor = supervisor
        _attached.add(self)
        return int(answer)

    def _start_detached(self, log: IO[bytes]) -> int:
        if shutil.which(self.command[0]) is None:
            msg = f"no such program: {self.command[0]}"
            raise FileNotFoundError(msg)
        # The shell exits at once, so init becomes the child's parent immediately.
        answer = subprocess.run(
            ["/bin/sh", "-c", '"$@" </dev/null >&2 & echo $!', "sh", *self.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self._cwd,
            env=self._env,
            start_new_session=True,
            check=False,
        )
        return int(answer.stdout)

    def _signal(self, signum: signal.Signals) -> None:
        if self.detached:
            if self._identity is not None:
                self._identity.send(signum)
        elif self._supervisor is not None and self._supervisor.stdin is not None:
            # A closed or broken pipe means that the child has already ended.
            with suppress(OSError, ValueError):
                self._supervisor.stdin.write(_KILL if signum == signal.SIGKILL else _TERMINATE)

    def _forget(self) -> None:
        if self.is_running():
            return
        if self._pid_file is not None:
            self._pid_file.remove()
        if self._supervisor is not None and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()

    def _abandon_in_forked_child(self) -> None:
        # A forked copy of the parent's end of the pipe would keep the child running after the parent has ended.
        if self._supervisor is not None and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()


_attached: weakref.WeakSet[ManagedProcess] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for process in list(_attached):
        process._abandon_in_forked_child()


os.register_at_fork(after_in_child=_after_fork_in_child)

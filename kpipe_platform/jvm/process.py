"""Child processes that end when they should: with their parent, or only when told to."""

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
# SIGKILL takes effect at once; a process that is still there after this long hangs in the kernel.
_KILL_DEADLINE_S = 10.0


class ManagedProcess:
    """One child process in a session of its own, with a log file.

    An attached child (the default) ends when its parent does, even when the parent is killed by SIGKILL: see
    `kpipe_platform.jvm.supervisor`. A detached child outlives its parent; it is found again by its pid file,
    which tells it from a later process with the same pid.

    Args:
        command: Program and arguments.
        log_path: File that its output is appended to.
        cwd: Working folder; the parent's by default.
        env: Whole environment; the parent's by default.
        detached: Outlive the parent.
        pid_file: Where its identity is kept while it runs; needed to find a detached child again.
        orphan_grace_s: Seconds between SIGTERM and SIGKILL once the parent is gone. Attached children only.
        remove_if_orphaned: Folder that is deleted once the parent is gone. Attached children only.
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
        """Process id of the child; None before it was started and once it is gone."""
        return self._identity.pid if self._identity is not None and self.is_running() else None

    @property
    def returncode(self) -> int | None:
        """Exit code, 128 + n after signal n; None while it runs, and always for a detached child."""
        return None if self._supervisor is None else self._supervisor.poll()

    def start(self) -> None:
        """Start the child; it runs when this returns, which says nothing about it being ready.

        Raises:
            EnvironmentSetupError: The program cannot be started, or its log file cannot be written.
            RuntimeError: It is running already.
        """
        if self.is_running():
            msg = f"{self.command[0]} is running already, as process {self.pid}"
            raise RuntimeError(msg)
        self._forget()
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with self.log_path.open("ab") as log:
                self._log_start = log.tell()
                pid = self._start_detached(log) if self.detached else self._start_attached(log)
        except OSError as error:
            msg = f"Cannot start {self.command[0]}: {error}"
            fix = f"see that the program exists and that {self.log_path} can be written"
            raise EnvironmentSetupError(msg, fix=fix) from error
        self._identity = ProcessIdentity.of(pid)
        if self._pid_file is not None and self._identity is not None:
            self._pid_file.write(self._identity)
        logger.debug("started process %s: %s", pid, self.command[0])

    def is_running(self) -> bool:
        """Tell whether the child is still there."""
        if self.detached:
            return self._identity is not None and self._identity.is_running()
        return self._supervisor is not None and self._supervisor.poll() is None

    def wait(self, deadline_s: float) -> bool:
        """Wait until the child is gone.

        Args:
            deadline_s: Seconds to wait at most.

        Returns:
            Whether it is gone.
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
        """Ask the child to end (SIGTERM), without waiting for it."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the child by SIGKILL and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self.wait(_KILL_DEADLINE_S)
        self._forget()

    def stop(self, deadline_s: float = 10.0) -> None:
        """End the child: SIGTERM, and SIGKILL once the deadline passed. Nothing happens when it is gone.

        Args:
            deadline_s: Seconds to wait between the two signals.
        """
        self.terminate()
        if not self.wait(deadline_s):
            logger.warning("process %s did not end within %.0f s of SIGTERM: killing it", self.pid, deadline_s)
            self._signal(signal.SIGKILL)
            self.wait(_KILL_DEADLINE_S)
        self._forget()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that the child logged since its last start."""
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
        assert supervisor.stdout is not None  # noqa: S101  # it was asked for above
        with supervisor.stdout as report:
            answer = report.readline().decode(errors="replace").strip()
        if not answer.isdigit():
            supervisor.communicate()
            raise OSError(answer.removeprefix("!") or "its supervisor ended at once")
        self._supervisor = supervisor
        _attached.add(self)
        return int(answer)

    def _start_detached(self, log: IO[bytes]) -> int:
        if shutil.which(self.command[0]) is None:
            msg = f"no such program: {self.command[0]}"
            raise FileNotFoundError(msg)
        # The shell ends at once, so that the child belongs to init from its first moment.
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
            # Closed, or nobody at its other end: the child is gone, and so is the need.
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
        # A forked copy of the parent's end of the pipe would keep the child alive after the parent.
        if self._supervisor is not None and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()


_attached: weakref.WeakSet[ManagedProcess] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for process in list(_attached):
        process._abandon_in_forked_child()


os.register_at_fork(after_in_child=_after_fork_in_child)

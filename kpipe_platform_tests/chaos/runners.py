"""Runners as a test sees them: processes with a JVM and Python workers, to be ended in all ways that processes end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import kpipe_platform
from kpipe_platform.jvm.identity import ProcessIdentity
from kpipe_platform_tests.processes import command, descendants, python_workers, send, wait_until

from .runner import ENGINE_GONE, NO_MORE_RUNS

# Spark's Java, and what it started, end by themselves once their driver is gone.
_ORPHANS_END_S = 60.0
_TERMINATED_S = 30.0


class Runner:
    """A place for a runner, in which one process follows another.

    Args:
        name: For files.
        servers: The brokers.
        folder: For files.
    """

    def __init__(self, name: str, servers: str, folder: Path) -> None:
        self._name = name
        self._servers = servers
        self._folder = folder / name
        self._instance = self._folder / "dagster"
        self._instance.mkdir(parents=True)
        self._no_more_runs = self._instance / NO_MORE_RUNS
        self._process: subprocess.Popen[bytes] | None = None
        self._left: set[ProcessIdentity] = set()
        self.problems: list[str] = []
        """What was said by processes that ended as none should."""

    @property
    def is_running(self) -> bool:
        """Whether there is a process; what one that has ended by itself says of it is looked at."""
        process = self._process
        if process is None or process.poll() is None:
            return process is not None
        self._process = None
        # One that is asked to end before it listens ends at once.
        if process.returncode not in (0, ENGINE_GONE, -signal.SIGTERM):
            self.problems.append(f"exit code {process.returncode}\n{self.errors()[-3_000:]}")
        return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, how: str = "follow") -> None:
        """Start a process."""
        assert not self.is_running
        root = Path(kpipe_platform.__file__).parent.parent
        self._no_more_runs.unlink(missing_ok=True)
        with (self._folder / "stdout").open("ab") as stdout, (self._folder / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kpipe_platform_tests.chaos.runner", self._servers, str(self._instance), how],
                cwd=root,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": str(root)},
            )

    def jvms(self) -> list[int]:
        """Spark's Java process, once it is there."""
        return [pid for pid in descendants(self.pid) if "SparkSubmit" in command(pid)]

    def workers(self) -> list[int]:
        """Python workers at a task."""
        return python_workers(self.pid)

    def everyone(self) -> list[int]:
        """The process and all below it."""
        return [self.pid, *descendants(self.pid)]

    def kill(self, pids: Iterable[int]) -> None:
        """End some of its processes by SIGKILL; with the first of them it is over."""
        self._remember()
        killed = list(pids)
        send(killed, signal.SIGKILL)
        if self.pid in killed:
            assert self._process is not None
            self._process.wait(30)
            self._process = None

    def terminate(self) -> None:
        """Ask it to end, as Dagster does.

        Raises:
            AssertionError: It did not within half a minute.
        """
        self._remember()
        self._no_more_runs.touch()
        send([self.pid], signal.SIGTERM)
        wait_until(lambda: not self.is_running, f"the end of runner {self._name}", _TERMINATED_S)

    def wait(self, deadline_s: float) -> None:
        """Wait until it ends by itself."""
        wait_until(lambda: not self.is_running, f"the end of runner {self._name}", deadline_s, 0.2)

    def assert_nothing_left(self) -> None:
        """Every process below those that ended has ended too."""
        wait_until(lambda: not self._orphans(), "the end of processes whose runner is gone", _ORPHANS_END_S, 0.2)

    def said(self) -> Counter[str]:
        """How runs ended, and how often."""
        file = self._folder / "stdout"
        lines = file.read_text().splitlines() if file.exists() else []
        # How to mend an error stands below it.
        return Counter(line.partition(":")[0] for line in lines if not line.startswith(" "))

    def errors(self) -> str:
        """Its standard error."""
        return (self._folder / "stderr").read_text(errors="replace")

    def close(self) -> None:
        """Leave nothing behind."""
        if self.is_running:
            self.kill(self.everyone())
        send(self._orphans(), signal.SIGKILL)

    def _remember(self) -> None:
        self._left |= {each for pid in self.everyone() if (each := ProcessIdentity.of(pid)) is not None}

    def _orphans(self) -> list[int]:
        ours = self.everyone() if self.is_running else []
        return [each.pid for each in self._left if each.is_running() and each.pid not in ours]

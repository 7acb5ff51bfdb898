"""Start `dagster dev` as a child of `kpipe dev`, and stop it without interrupting active runs.

A SIGINT to the process of `dagster dev` alone ends the webserver and the daemon, so that no further run starts, and
makes the code servers exit once their runs are finished. A SIGINT to its process group also reaches the runs: each
cancels its Spark jobs and aborts its transactions.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from kpipe_platform.cli.dev.runs import ActiveRuns
from kpipe_platform.cli.dev.sessions import end_session
from kpipe_platform.cli.dev.signals import StopSignals
from kpipe_platform.jvm.ports import LOOPBACK
from kpipe_platform.jvm.process import ManagedProcess

__all__ = ["DagsterServices"]

DEFINITIONS = "kpipe_platform.definitions"

_POLL_S = 0.2
_POLL_RUNS_S = 1.0
# Without active runs, there is no need to wait longer for the webserver's open requests and the daemon's tick.
_IDLE_DEADLINE_S = 8.0
# Time for a run to cancel its jobs and abort its transactions. Kafka is stopped after that; the complete shutdown
# should take at most 15 s.
_END_DEADLINE_S = 11.0
_KILL_DEADLINE_S = 1.0
# The child is started with SIGINT ignored, so that this terminal's Ctrl-C does not reach it. Its own children would
# inherit that, and Dagster would ignore the SIGINT that stops it, so the handler is restored here. The child leads the
# session, and the rest of the session is killed when it exits. It therefore waits for the code servers, whose children
# are the runs.
_RUN_DAGSTER = """
import os, runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    runpy.run_module("dagster", run_name="__main__", alter_sys=True)
except KeyboardInterrupt:
    pass
finally:
    while True:
        try:
            os.wait()
        except KeyboardInterrupt:
            continue
        except ChildProcessError:
            break
"""
_SUPERSEDED = "ignore:Function `dev_command` is superseded"


class DagsterServices:
    """The webserver, daemon and code servers of `dagster dev`.

    Args:
        port: Port of the UI.
        log: Their log file.
        environment: Their environment, including DAGSTER_HOME.
        say: Shows a line on the terminal.
    """

    def __init__(self, port: int, log: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        # Suppress the recommendation of `dg dev`, which needs another project layout.
        quiet = ",".join(filter(None, (environment.get("PYTHONWARNINGS"), _SUPERSEDED)))
        workspace = ["-w", "workspace.yaml"] if Path("workspace.yaml").exists() else ["-m", DEFINITIONS]
        self._process = ManagedProcess(
            [sys.executable, "-c", _RUN_DAGSTER, "dev", *workspace, "-h", LOOPBACK, "-p", str(port)],
            log_path=log,
            env={**environment, "PYTHONWARNINGS": quiet},
        )
        self._home = Path(environment["DAGSTER_HOME"])
        self._say = say
        self._session: int | None = None

    def start(self) -> None:
        """Start them. They are running when this returns, but they may not be ready yet."""
        self._process.start()
        # All processes that Dagster starts belong to this session, even if they create their own process groups.
        self._session = self._process.pid

    def is_running(self) -> bool:
        """Return whether they are running."""
        return self._process.is_running()

    @property
    def returncode(self) -> int | None:
        """Exit code; None while they run."""
        return self._process.returncode

    def stop(self, signals: StopSignals, drain_s: float, while_waiting: Callable[[], None]) -> None:
        """Start no more runs, wait for the active ones, and stop.

        Args:
            signals: A second one cancels the active runs, a third one kills everything.
            drain_s: Seconds after which the active runs are canceled too.
            while_waiting: Called repeatedly while waiting, to show what the runs log.
        """
        if self.is_running():
            self._drain(signals, drain_s, while_waiting)
        self._process.stop(0.0 if signals.kill else _KILL_DEADLINE_S)
        if self._session is not None:
            end_session(self._session, 0.0 if signals.kill else _KILL_DEADLINE_S)

    def _drain(self, signals: StopSignals, drain_s: float, while_waiting: Callable[[], None]) -> None:
        self._interrupt(whole_group=False)
        active = ActiveRuns(self._home, drain_s, self._say)
        end = time.monotonic() + drain_s
        idle_end: float | None = None
        while True:
            if not active.runs() and idle_end is None:
                idle_end = time.monotonic() + _IDLE_DEADLINE_S
            next_poll = time.monotonic() + _POLL_RUNS_S
            while self.is_running() and not signals.hurry and time.monotonic() < next_poll:
                self._process.wait(_POLL_S)
                while_waiting()
            if not self.is_running():
                return
            now_s = time.monotonic()
            if signals.hurry or now_s > end or (idle_end is not None and now_s > idle_end):
                break
        active.report_canceling(late=not signals.hurry)
        self._interrupt(whole_group=True)
        end = time.monotonic() + _END_DEADLINE_S
        while self.is_running() and not signals.kill and time.monotonic() < end:
            self._process.wait(_POLL_S)
            while_waiting()

    def _interrupt(self, *, whole_group: bool) -> None:
        pid = self._process.pid
        if pid is None:
            return
        with suppress(ProcessLookupError):
            if whole_group:
                os.killpg(pid, signal.SIGINT)
            else:
                os.kill(pid, signal.SIGINT)

"""A real `dagster dev` of a test, with a home and a port of its own; nothing of it outlives the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import kpipe_platform
from kpipe_platform.jvm.ports import LOOPBACK, free_port

_ROOT = Path(kpipe_platform.__file__).parent.parent


class DagsterDev:
    """Webserver, daemon and code servers over some files.

    Args:
        folder: Home and working folder.
        files: Text of the files in it, by name; dagster.yaml among them.
        load: What is loaded: ``-f definitions.py`` or ``-w workspace.yaml``.
        environment: Further variables.
    """

    def __init__(self, folder: Path, files: Mapping[str, str], load: tuple[str, str], **environment: str) -> None:
        self.folder = folder
        self.port = free_port()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        self._log = folder / "dev.log"
        self.environment = {**os.environ, **environment, "DAGSTER_HOME": str(folder), "PYTHONPATH": str(_ROOT)}
        command = [sys.executable, "-W", "ignore", "-m", "dagster", "dev", *load]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "-h", LOOPBACK, "-p", str(self.port)],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until(self, what: Callable[[], object], deadline_s: float = 300) -> float:
        """Wait for it; returns how long that took, seconds."""
        began = time.monotonic()
        while not what():
            assert self.process.poll() is None, f"it ended:\n{self.log}"
            assert time.monotonic() - began < deadline_s, f"not within {deadline_s:.0f} s:\n{self.log[-6_000:]}"
            time.sleep(0.1)
        return time.monotonic() - began

    def processes(self) -> list[int]:
        """Everything that it started and that runs still."""
        mark = f"\0DAGSTER_HOME={self.folder}\0".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in b"\0" + (process / "environ").read_bytes() + b"\0":
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def runs_a_jvm(self) -> bool:
        """Whether one of its processes is a JVM, as where a run has a Spark of its own."""
        for process in self.processes():
            try:
                if Path(f"/proc/{process}/exe").readlink().name == "java":
                    return True
            except OSError:
                continue
        return False

    def stop(self) -> None:
        """End it and wait until all that it started is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        end = time.monotonic() + 60
        while self.processes():
            assert time.monotonic() < end, f"{self.processes()} outlive it"
            time.sleep(0.1)

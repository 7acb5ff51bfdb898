"""`kpipe dev` in a process of its own, on a port and data of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kpipe_platform.jvm.ports import LOOPBACK, free_port, is_free

ROOT = Path(__file__).parents[2]

# Kafka, perhaps Spark and 336,776 flights, and Dagster; a busy machine takes several times as long as an idle one.
START_DEADLINE_S = 480.0
RUN_DEADLINE_S = 240.0
STOP_DEADLINE_S = 120.0
GONE_DEADLINE_S = 30.0

_MARK = "KPIPE_TEST_DEV"
WORKSPACE = "load_from:\n  - python_file:\n      relative_path: definitions.py\n      location_name: toy\n"
_LAUNCH = """
mutation ($parameters: ExecutionParams!) {
  launchPipelineExecution(executionParams: $parameters) {
    __typename
    ... on PythonError { message }
  }
}
"""


class Dev:
    """A running `kpipe dev`.

    Args:
        folder: For its log, and for the files of its workspace.
        options: Command line options.
        definitions: Text of the workspace's definitions; None: those of the flights platform.
        workspace: Text of the file that names those definitions.
        environment: Environment variables besides those of this process that are not about Dagster or kpipe.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        definitions: str | None = None,
        workspace: str = WORKSPACE,
        **environment: str,
    ) -> None:
        self.port = free_port()
        self.folder = folder
        if definitions is None:
            # Its workspace is at the root of the repository.
            cwd, self.data = ROOT, folder / "data"
            options = ("--data-dir", str(self.data), *options)
        else:
            # The default of --data-dir.
            cwd, self.data = folder, folder / ".kpipe/dev"
            (folder / "definitions.py").write_text(definitions, encoding="utf-8")
            (folder / "workspace.yaml").write_text(workspace, encoding="utf-8")
        self._log = folder / "dev.log"
        own = {
            name: value
            for name, value in os.environ.items()
            if name == "KPIPE_CACHE_DIR" or not name.startswith(("DAGSTER_", "KPIPE_"))
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [Path(sys.executable).with_name("kpipe"), "dev", "--port", str(self.port), *options],
                cwd=cwd,
                env={**own, _MARK: str(folder), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def brokers(self) -> str:
        """Bootstrap servers of its Kafka."""
        found = re.search(rf"Kafka +({LOOPBACK}:\d+)\n", self.log)
        assert found, self.log
        return found[1]

    def until(self, what: Callable[[], object], deadline_s: float) -> None:
        """Wait for something that can only happen while it runs."""
        end = time.monotonic() + deadline_s
        while not what():
            assert self.process.poll() is None, f"it ended:\n{self.log}"
            assert time.monotonic() < end, f"not within {deadline_s:.0f} s:\n{self.log}"
            time.sleep(0.1)

    def until_ready(self) -> None:
        self.until(lambda: "Dagster UI" in self.log, START_DEADLINE_S)

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60.0) as response:
            answer = json.load(response)
        assert not answer.get("errors"), answer
        return answer["data"]

    def launch(self, location: str, job: str) -> None:
        selector = {"repositoryLocationName": location, "repositoryName": "__repository__", "jobName": job}
        parameters = {"selector": selector, "runConfigData": {}, "mode": "default"}
        launched = self.graphql(_LAUNCH, parameters=parameters)["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched

    def run_states(self) -> list[str]:
        """The states of all runs, also when nothing runs any more."""
        with closing(sqlite3.connect(self.data / "dagster/history/runs.db")) as connection:
            return [state for (state,) in connection.execute("select status from runs")]

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to all of the foreground's process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def processes(self) -> dict[int, str]:
        """Commands of all living processes that it started: each has the mark in its environment, or its data named."""
        mark = f"{_MARK}={self.folder}".encode()
        data = str(self.data).encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                if mark in (process / "environ").read_bytes().split(b"\0") or data in command:
                    found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        return found

    def check_nothing_is_left(self) -> None:
        end = time.monotonic() + GONE_DEADLINE_S
        while left := self.processes():
            assert time.monotonic() < end, left
            time.sleep(0.1)
        assert is_free(self.port)


@contextmanager
def running_dev(folder: Path, *options: str, definitions: str | None = None, **more: str) -> Iterator[Dev]:
    """Start `kpipe dev`; what the test did not stop is killed, and what it started ends with it."""
    dev = Dev(folder, *options, definitions=definitions, **more)
    try:
        yield dev
    finally:
        if dev.process.poll() is None:
            dev.process.kill()
            dev.process.wait()

"""A Spark standalone cluster on the loopback interface: a master and workers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from kpipe_platform.jvm.jars import pyspark_jars_dir
from kpipe_platform.jvm.java import find_java
from kpipe_platform.jvm.ports import LOOPBACK, free_ports
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform_tests.processes import descendants, send, wait_until

# An executor and the Python that it starts; two of them, a driver and three brokers share the machine.
MEMORY = "1g"
_CLASSES = "org.apache.spark.deploy.{}.{}"


class StandaloneCluster:
    """One master and workers of one core each.

    Workers know nothing of this process's Python: they have an environment of their own, and the Python that they find
    is one without any package.

    Args:
        folder: For logs and the workers' folders.
        workers: How many.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.python = folder / "python"
        self._port, self._page, *_ = free_ports(2)
        self._master = self._process("master", "Master", "--port", str(self._port), "--webui-port", str(self._page))
        self._workers = [self._worker(number) for number in range(workers)]

    @property
    def master(self) -> str:
        """Address for ``--master``."""
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [each.pid for each in self._workers if each.pid is not None]

    def __enter__(self) -> StandaloneCluster:
        # A plain Python: neither kpipe nor anything that it needs can be imported.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.python], check=True)
        try:
            self._master.start()
            wait_until(lambda: self.state() is not None, "the master", 60, 0.1)
            self.start_workers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_workers(self) -> None:
        """Start the workers that do not run, and wait until the master counts all."""
        for each in self._workers:
            if not each.is_running():
                each.start()
        wait_until(lambda: self.cores() == len(self._workers), "the workers", 60, 0.1)

    def state(self) -> dict[str, Any] | None:
        """What the master says of itself; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=10) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            # While it starts it answers with another page.
            return None

    def cores(self) -> int:
        """Cores of living workers."""
        state = self.state() or {"workers": []}
        return sum(each["cores"] for each in state["workers"] if each["state"] == "ALIVE")

    def executors(self) -> int:
        """Executors at work, by the cores that applications have."""
        state = self.state() or {"workers": []}
        return sum(each["coresused"] for each in state["workers"] if each["state"] == "ALIVE")

    def kill_worker(self, pid: int) -> None:
        """End a worker, its executor and that one's Python by SIGKILL, all at once, as a machine that is gone."""
        below = descendants(pid)
        (worker,) = (each for each in self._workers if each.pid == pid)
        send([pid, *below], signal.SIGKILL)
        wait_until(lambda: not worker.is_running(), "the end of the worker", 30)

    def stop(self) -> None:
        """Stop everything."""
        below = [each for pid in self.pids for each in descendants(pid)]
        for process in [*self._workers, self._master]:
            process.stop(10)
        with suppress(ProcessLookupError):
            send(below, signal.SIGKILL)

    def logs(self) -> str:
        """The ends of all logs, for a failure's message."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("worker-*/app-*/*/stderr")]
        return "\n".join(f"--- {file.relative_to(self.folder)}\n{file.read_text()[-2000:]}" for file in files)

    def _worker(self, number: int) -> ManagedProcess:
        work = self.folder / f"worker-{number}"
        return self._process(
            f"worker-{number}", "Worker", "--cores", "1", "--memory", MEMORY, "--work-dir", str(work),
            "--webui-port", "0", self.master,
        )  # fmt: skip

    def _process(self, name: str, role: str, *arguments: str) -> ManagedProcess:
        home = pyspark_jars_dir().parent
        return ManagedProcess(
            [
                home / "bin/spark-class",
                f"org.apache.spark.deploy.{role.lower()}.{role}",
                "--host",
                LOOPBACK,
                *arguments,
            ],
            log_path=self.folder / f"{name}.log",
            cwd=self.folder,
            env={
                "PATH": f"{self.python / 'bin'}:/usr/bin:/bin",
                "HOME": str(self.folder),
                "JAVA_HOME": str(find_java().path.resolve().parent.parent),
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-local"),
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_DAEMON_MEMORY": "256m",
                "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
            },
        )

"""Starting and stopping a Spark Connect server on this machine. Does not import Spark itself."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from kpipe_platform import errors
from kpipe_platform.errors import ConfigError, EngineUnavailableError, EnvironmentSetupError, KpipeError
from kpipe_platform.jvm.jars import spark_connector_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.jvm.ports import LOOPBACK, free_port, is_free
from kpipe_platform.jvm.private_files import private_folder, write_private
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform.spark.connect.executors import Executors
from kpipe_platform.spark.connect.token import TOKEN_VARIABLE, forget_token, keep_token

__all__ = ["ConnectServer", "has_client", "spark_version"]

_PROGRAM = "kpipe_platform.spark.connect.program"
OPTIONS, READY, FAILED = "server.json", "ready.json", "failed.json"
"""Files in the server's folder: its options, and what it writes once clients can attach or once its start failed."""
# A start takes three seconds on an idle machine and half a minute on a busy one.
_READY_DEADLINE_S = 180.0
_POLL_S = 0.1
_STOP_DEADLINE_S = 15.0
_PORT_TRIES = 3
# Environment variables that are not passed to the server, because they would make it a client.
_CLIENTS_ONLY = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
_RESERVED = (
    "spark.master",
    "spark.remote",
    "spark.plugins",
    "spark.app.name",
    "spark.connect.grpc.binding.",
    "spark.connect.authenticate.",
)
_SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    # The token is sent without encryption, so only this machine may connect.
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.connect.grpc.port.maxRetries": "0",
    "spark.python.daemon.module": "kpipe_platform.spark.connect.worker_daemon",
    "spark.python.worker.reuse": "false",
    # End the jobs of a killed client after one minute instead of five.
    "spark.connect.execute.manager.detachedTimeout": "60s",
}


class ConnectServer:
    """A warm engine for `SparkEngine(remote=...)`: one JVM, to which each run attaches.

    It listens only on the loopback interface, accepts only processes of this user (which read its token from a file),
    and has the Kafka connector and this interpreter's packages. Unless ``detached``, it ends when this process ends,
    even if that is killed.

    Args:
        folder: Folder for the log, settings and temporary files. Default: a temporary folder.
        master: Spark master: ``local[*]``, or a cluster's master.
        executors: Where a cluster's executors get Python and its packages.
        port: Port to listen on. Default: a free port.
        settings: Spark settings that override the defaults.
        warm: Run some jobs after the start, so that Spark's classes are loaded before the first slice.
        detached: Keep running after this process ends.
        ready_deadline_s: Deadline for becoming ready, seconds.
        progress: Called with a line of text for each step; details are indented.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        master: str = "local[*]",
        executors: Executors | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        warm: bool = True,
        detached: bool = False,
        ready_deadline_s: float = _READY_DEADLINE_S,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder
        self._made: Path | None = None
        self._master = master
        self._executors = executors or Executors()
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._warm = warm
        self._detached = detached
        self._ready_deadline_s = ready_deadline_s
        self._progress = progress or (lambda _: None)
        self._port: int | None = None
        self._process: ManagedProcess | None = None
        for name in self._settings:
            if name.startswith(_RESERVED):
                msg = f"The Spark Connect server sets {name} itself."
                raise ConfigError(msg, fix="remove this setting; master and port have their own arguments")

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def remote(self) -> str:
        """Address for ``SparkEngine(remote=...)``."""
        return f"sc://{LOOPBACK}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the driver; None if the server is not running."""
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        """Path of the log file."""
        return self._home / "server.log"

    def is_running(self) -> bool:
        """Whether the server's process is running."""
        return self._process is not None and self._process.is_running()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines that the server logged since its last start."""
        return "" if self._process is None else self._process.log_tail(lines)

    def start(self) -> None:
        """Start the server and wait until clients can attach.

        Raises:
            EnvironmentSetupError: Java, pyspark, its jars or the client's packages are missing, the port is in use, or
                a cluster's executors lack packages.
            ConfigError: There are settings for executors although the master is local, or the archive is invalid.
            EngineUnavailableError: The server did not become ready.
            RuntimeError: The server is already running.
        """
        if self.is_running():
            msg = f"the Spark Connect server is already running at {self.remote}"
            raise RuntimeError(msg)
        find_java()
        _require_client()
        self._executors.check(self._master)
        spark_connector_jars(spark_version(), progress=self._progress)
        if self._wanted_port is not None and not is_free(self._wanted_port):
            msg = f"Port {self._wanted_port} is in use, so the Spark Connect server cannot listen there."
            raise EnvironmentSetupError(msg, fix="choose another port, or omit it", port=self._wanted_port)
        if self._folder is None and self._made is None:
            self._made = Path(tempfile.mkdtemp(prefix="kpipe-spark-"))
        private_folder(self._home)
        self._progress(f"Starting Spark {spark_version()} on {self._master}")
        tries = 1 if self._wanted_port is not None else _PORT_TRIES
        for last in [False] * (tries - 1) + [True]:
            self._port = self._wanted_port or free_port()
            if self._try(last):
                return

    def stop(self) -> None:
        """Stop the server, if it is running, and delete its temporary files. Any thread may call it during a start."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(_STOP_DEADLINE_S)
        if self._port is not None:
            forget_token(self._port)
        shutil.rmtree(self._home / "local", ignore_errors=True)
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
            self._made = None

    def kill(self) -> None:
        """Kill the server's process with SIGKILL, to simulate a crash. Its JVM ends when it detects this."""
        if self._process is not None:
            self._process.kill()

    @property
    def _home(self) -> Path:
        home = self._folder or self._made
        if home is None:
            msg = "the Spark Connect server was not started"
            raise RuntimeError(msg)
        return home

    def _try(self, last: bool) -> bool:
        """Start the server on the chosen port.

        Args:
            last: Whether a port conflict is an error.

        Returns:
            False if another process took the port in the meantime.
        """
        ready = self._home / READY
        for each in (ready, self._home / FAILED):
            each.unlink(missing_ok=True)
        # Settings may hold passwords.
        write_private(self._home / OPTIONS, json.dumps(self._options(), indent=1))
        environment = {name: value for name, value in os.environ.items() if name not in _CLIENTS_ONLY}
        environment |= self._executors.environment
        # Not a Spark setting, because PySpark passes those on the JVM's command line.
        environment[TOKEN_VARIABLE] = keep_token(self._port or 0)
        process = ManagedProcess(
            [sys.executable, "-m", _PROGRAM, self._home],
            log_path=self.log_path,
            env=environment,
            detached=self._detached,
            pid_file=self._home / "server.pid",
            remove_if_orphaned=self._made,
        )
        process.start()
        self._process = process
        try:
            end = time.monotonic() + self._ready_deadline_s
            while not ready.exists():
                if not process.is_running():
                    if not last and "BindException" in process.log_tail(200):
                        return False
                    raise self._reported() or self._failed("exited before it was ready")
                if time.monotonic() >= end:
                    raise self._failed(f"was not ready within {self._ready_deadline_s:.0f} s")
                process.wait(_POLL_S)
        except BaseException:
            self.stop()
            raise
        return True

    def _failed(self, what: str) -> EngineUnavailableError:
        # The message quotes the log, because the log is deleted with a temporary folder.
        msg = f"The Spark Connect server {what}. The last lines of its log:\n{self.log_tail(60)}"
        return EngineUnavailableError(msg, fix="fix the problem that the log shows, then start the server again")

    def _reported(self) -> KpipeError | None:
        """The error that the server's process reported; None if there is none."""
        try:
            left = json.loads((self._home / FAILED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        kind: type[KpipeError] = getattr(errors, left["kind"])
        return kind(left["message"], fix=left["fix"])

    def _options(self) -> dict[str, Any]:
        settings = {
            **_SETTINGS,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.local.dir": str(self._home / "local"),
            **self._executors.settings(self._settings),
        }
        return {
            "master": self._master,
            "app_name": "kpipe",
            "settings": settings,
            "warm": self._warm,
            # Less than this process's own deadline, so that the server can report the reason.
            "executors_deadline_s": self._ready_deadline_s * 2 / 3,
        }


def spark_version() -> str:
    """Version of the installed pyspark.

    Raises:
        EnvironmentSetupError: pyspark is not installed.
    """
    try:
        return version("pyspark")
    except PackageNotFoundError as error:
        msg = "pyspark is not installed."
        raise EnvironmentSetupError(msg, fix="pip install pyspark") from error


def has_client() -> bool:
    """Whether the packages of a Spark Connect client are installed."""
    try:
        version("grpcio-status")
    except PackageNotFoundError:
        return False
    return True


def _require_client() -> None:
    if not has_client():
        msg = "The packages of the Spark Connect client are not installed, so the server could not be used from here."
        raise EnvironmentSetupError(msg, fix="pip install 'kpipe-platform[connect]'")

"""A Spark Connect server for a developer's machine. It keeps running after the command that started it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kpipe_platform.jvm.folders import state_dir
from kpipe_platform.jvm.identity import PidFile
from kpipe_platform.jvm.local_service import LocalService, Progress
from kpipe_platform.jvm.ports import established, is_free
from kpipe_platform.spark.connect.executors import Executors
from kpipe_platform.spark.connect.server import ConnectServer, spark_version
from kpipe_platform.spark.connect.token import USUAL_PORT, forget_token, token_file

__all__ = ["EngineOptions", "EngineService", "EngineStatus"]

_STOP_DEADLINE_S = 15.0


@dataclass(frozen=True)
class EngineOptions:
    """Options for starting the server.

    Attributes:
        master: Spark master: ``local[*]``, or a cluster's master.
        port: Port of the server. Default: 15002, or a free port if that is in use.
        settings: Spark settings that override the defaults.
        executors: Where a cluster's executors get Python and its packages.
    """

    master: str = "local[*]"
    port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    executors: Executors = field(default_factory=Executors)


@dataclass(frozen=True)
class EngineStatus:
    """Status of the server.

    Attributes:
        state: State of the server. ``crashed`` means that it is not running although it was not stopped.
        remote: Address for ``SparkEngine(remote=...)``; None until clients can attach.
        master: Spark master of the server.
        pid: Process id; None if the server is not running.
        log: Path of the log file.
        token: Path of the file with the token that clients need. Clients of kpipe find it automatically.
        clients: Number of attached clients; None if the operating system does not report it (macOS).
        spark_version: Version of the installed pyspark, which the server uses.
    """

    state: Literal["running", "starting", "crashed", "stopped"]
    remote: str | None = None
    master: str | None = None
    pid: int | None = None
    log: str | None = None
    token: str | None = None
    clients: int | None = None
    spark_version: str = ""

    @property
    def address(self) -> str | None:
        """Address for clients."""
        return self.remote

    def as_dict(self) -> dict[str, Any]:
        """The status as plain values, for JSON."""
        return asdict(self)


class EngineService(LocalService[EngineOptions, EngineStatus, ConnectServer]):
    """Starts, finds and stops the server of one state folder. Stopping it fails the slices that it is processing.

    Args:
        folder: Folder with the server's state. Default: ``spark`` in kpipe's state folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder or state_dir() / "spark", "Spark Connect server", "kpipe spark stop")
        self._pid_file = PidFile(self.folder / "server.pid")

    def status(self) -> EngineStatus:
        """Check whether the server's process is running."""
        state = self._state.read()
        if state is None:
            return EngineStatus("stopped", spark_version=spark_version())
        identity = self._pid_file.running()
        remote = state["remote"]
        log = str(self.folder / "server.log")
        if identity is None:
            return EngineStatus("crashed", remote, state["master"], log=log, spark_version=spark_version())
        if remote is None:
            return EngineStatus("starting", None, state["master"], identity.pid, log, spark_version=spark_version())
        port = _port(remote)
        clients, token = established(port), str(token_file(port))
        return EngineStatus("running", remote, state["master"], identity.pid, log, token, clients, spark_version())

    def _differences(self, status: EngineStatus, options: EngineOptions) -> list[str]:
        wanted: list[str] = []
        if options.master != status.master:
            wanted.append(f"master {options.master}, not {status.master}")
        if options.port is not None and not str(status.remote).endswith(f":{options.port}"):
            wanted.append(f"port {options.port}, not {status.remote}")
        if options.settings:
            wanted.append("settings, which take effect only at a start")
        if options.executors != Executors():
            wanted.append("an archive or a Python for executors, which take effect only at a start")
        return wanted

    def _launch(self, options: EngineOptions, *, detached: bool, progress: Progress | None) -> ConnectServer:
        self._clear()
        port = options.port
        if port is None and is_free(USUAL_PORT):
            port = USUAL_PORT
        server = ConnectServer(
            self.folder,
            master=options.master,
            executors=options.executors,
            port=port,
            settings=options.settings,
            detached=detached,
            progress=progress,
        )
        # Written before the start, so that an interrupted start can be cleaned up.
        self._write(options.master, None)
        try:
            server.start()
        except BaseException:
            self._state.clear()
            raise
        self._write(options.master, server.remote)
        return server

    def _clear(self) -> None:
        # Remove the remains of a server that crashed or whose start was interrupted.
        state = self._state.read()
        if state is None:
            return
        # Written before the stop; otherwise a command in the foreground would report the server's end as a crash.
        self._write(state["master"], state["remote"], stopping=True)
        identity = self._pid_file.running()
        if identity is not None:
            identity.stop(_STOP_DEADLINE_S)
        self._pid_file.remove()
        if state["remote"] is not None:
            forget_token(_port(state["remote"]))
        shutil.rmtree(self.folder / "local", ignore_errors=True)
        self._state.clear()

    def _write(self, master: str, remote: str | None, *, stopping: bool = False) -> None:
        self._state.write({"master": master, "remote": remote, "stopping": stopping})


def _port(remote: str) -> int:
    return int(remote.rpartition(":")[2])

"""One Spark Connect server for a developer's machine, which outlives the command that started it."""

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
    """How to start the server.

    Attributes:
        master: Where its jobs run.
        port: Its port; by default 15002, or another one when that is taken.
        settings: Spark settings that win over the defaults.
        executors: Where a cluster's executors have their Python and its packages from.
    """

    master: str = "local[*]"
    port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    executors: Executors = field(default_factory=Executors)


@dataclass(frozen=True)
class EngineStatus:
    """What is known about the server.

    Attributes:
        state: ``crashed`` when it does not run though nobody stopped it.
        remote: Its address, for ``SparkEngine(remote=...)``; None until clients can attach.
        master: Where its jobs run.
        pid: Its process id; None when it does not run.
        log: Its log file.
        token: The file with the token that clients need; kpipe's find it by themselves.
        clients: Processes that are attached; None where this machine does not say (macOS).
        spark_version: Version of the installed pyspark, which is the server's.
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
        """Where clients find it."""
        return self.remote

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


class EngineService(LocalService[EngineOptions, EngineStatus, ConnectServer]):
    """Starts, finds again and stops the server of one state folder; slices at work on one that is stopped fail.

    Args:
        folder: Where it remembers the server; ``spark`` in the state folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder or state_dir() / "spark", "Spark Connect server", "kpipe spark stop")
        self._pid_file = PidFile(self.folder / "server.pid")

    def status(self) -> EngineStatus:
        """Look whether the server's process runs."""
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
            wanted.append("settings, which only a start takes")
        if options.executors != Executors():
            wanted.append("an archive or a Python for executors, which only a start takes")
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
        # Written first, so that a start that is broken off can be cleaned up.
        self._write(options.master, None)
        try:
            server.start()
        except BaseException:
            self._state.clear()
            raise
        self._write(options.master, server.remote)
        return server

    def _clear(self) -> None:
        # What is left of a server that crashed, or whose start was broken off.
        state = self._state.read()
        if state is None:
            return
        # Said first, because a command in the foreground would take its server's end for a crash.
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

"""A broker for a developer's machine that keeps running after the command that started it."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kpipe_platform.errors import BrokerStartError
from kpipe_platform.jvm.folders import state_dir
from kpipe_platform.jvm.identity import PidFile
from kpipe_platform.jvm.local_service import LocalService, Progress
from kpipe_platform.jvm.ports import is_free
from kpipe_platform.testing.broker.data import BrokerData
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.broker.status import ServiceNode, ServiceOptions, ServiceState, ServiceStatus

__all__ = ["BrokerService"]

USUAL_PORT = 9092
_STOP_DEADLINE_S = 20.0


class BrokerService(LocalService[ServiceOptions, ServiceStatus, EmbeddedBroker]):
    """Starts, finds and stops the broker of one state folder.

    Args:
        folder: Folder for the broker's state. Default: ``broker`` in kpipe's state folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder or state_dir() / "broker", "broker", "kpipe broker stop", busy_error=BrokerStartError)

    def status(self) -> ServiceStatus:
        """Check which of the broker's processes are running, and return the status."""
        state = self._state.read()
        if state is None:
            return ServiceStatus("stopped")
        data = _data(state)
        nodes = tuple(_node(data, each) for each in range(data.brokers))
        running = sum(node.pid is not None for node in nodes)
        bootstrap_servers = state["bootstrap_servers"]
        service_state: ServiceState
        if running == 0:
            service_state = "crashed"
        elif bootstrap_servers is None:
            service_state = "starting"
        else:
            service_state = "running" if running == data.brokers else "degraded"
        return ServiceStatus(service_state, bootstrap_servers, str(data.root), not data.throw_away, nodes=nodes)

    def _differences(self, status: ServiceStatus, options: ServiceOptions) -> list[str]:
        wanted: list[str] = []
        if options.brokers != len(status.nodes):
            wanted.append(f"{options.brokers} brokers, not {len(status.nodes)}")
        if options.data_dir is not None and str(options.data_dir.expanduser().absolute()) != status.data_dir:
            wanted.append(f"data in {options.data_dir}, not {status.data_dir}")
        if options.port is not None and not str(status.bootstrap_servers).split(",")[0].endswith(f":{options.port}"):
            wanted.append(f"port {options.port}, not {status.bootstrap_servers}")
        if options.settings:
            wanted.append("settings, which apply only at the start")
        return wanted

    def _launch(self, options: ServiceOptions, *, detached: bool, progress: Progress | None) -> EmbeddedBroker:
        self._clear()
        root = options.data_dir or (self.folder / "data" if options.keep else None)
        data = BrokerData.open(root, brokers=options.brokers, keep=options.keep)
        port = options.port
        if port is None and is_free(USUAL_PORT):
            port = USUAL_PORT
        # For the broker, the folder contains data to keep. The service decides whether to delete it.
        broker = EmbeddedBroker(
            options.brokers,
            data.root,
            settings=options.settings,
            port=port,
            detached=detached,
            progress=progress,
        )
        # Stored before the start, so that an interrupted start can be cleaned up.
        self._write(data, None)
        try:
            broker.start()
        except BaseException:
            data.remove(keep_logs=True)
            self._state.clear()
            raise
        self._write(data, broker.bootstrap_servers)
        return broker

    def _clear(self) -> None:
        # Remove what a crashed broker or an interrupted start left.
        state = self._state.read()
        if state is not None:
            data = _data(state)
            # Store ``stopping`` first, because a command in the foreground would report its broker's end as a crash.
            self._write(data, state["bootstrap_servers"], stopping=True)
            _stop_nodes(data)
            data.remove()
            self._state.clear()

    def _ended(self) -> None:
        state = self._state.read()
        if state is not None:
            _data(state).remove()

    def _write(self, data: BrokerData, bootstrap_servers: str | None, *, stopping: bool = False) -> None:
        state = {
            "root": str(data.root),
            "cluster_id": data.cluster_id,
            "brokers": data.brokers,
            "throw_away": data.throw_away,
            "made": data.made,
            "bootstrap_servers": bootstrap_servers,
            "stopping": stopping,
        }
        self._state.write(state)


def _data(state: Mapping[str, Any]) -> BrokerData:
    return BrokerData(Path(state["root"]), state["cluster_id"], state["brokers"], state["throw_away"], state["made"])


def _node(data: BrokerData, node: int) -> ServiceNode:
    identity = PidFile(data.pid_file(node)).running()
    return ServiceNode(node, None if identity is None else identity.pid, str(data.log_path(node)))


def _stop_nodes(data: BrokerData) -> None:
    files = [PidFile(data.pid_file(node)) for node in range(data.brokers)]
    running = [(file, identity) for file in files if (identity := file.running())]
    # Signal all brokers before waiting for the first, because a clean shutdown needs a quorum.
    for _, identity in running:
        identity.send(signal.SIGTERM)
    end = time.monotonic() + _STOP_DEADLINE_S
    for file, identity in running:
        identity.stop(max(0.0, end - time.monotonic()))
        file.remove()

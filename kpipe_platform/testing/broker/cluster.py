"""All nodes of the embedded cluster: ports, settings, formatting, start and stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from kpipe_platform.errors import BrokerStartError, ConfigError
from kpipe_platform.jvm.identity import PidFile
from kpipe_platform.jvm.ports import LOOPBACK, free_ports, is_free
from kpipe_platform.testing.broker.config import PLAINTEXT, NodePorts, node_settings
from kpipe_platform.testing.broker.data import BrokerData
from kpipe_platform.testing.broker.listeners import BrokerListener
from kpipe_platform.testing.broker.node import BrokerJvm, BrokerNode
from kpipe_platform.testing.broker.ready import await_brokers

__all__ = ["BrokerCluster"]

logger = logging.getLogger(__name__)

_PORT_TRIES = 3
_BIND_CLASH = ("Address already in use", "BindException")
# A clean shutdown takes half a second. With several brokers, the last ones may wait for a quorum that is lost.
_STOP_DEADLINE_S = 15.0


class BrokerCluster:
    """The nodes of one data folder; see `kpipe_platform.testing.broker.embedded.EmbeddedBroker` for the arguments.

    Args:
        data: The opened folder.
        jvm: How to start brokers.
        settings: Broker settings that override the defaults.
        listeners: Additional listeners.
        port: Port of the first broker's plaintext listener. None means a free port.
        detached: Keep the brokers running after this process ends.
        ready_deadline_s: Maximum seconds to wait for the brokers to become ready.

    Raises:
        ConfigError: Another cluster uses the folder.
    """

    def __init__(
        self,
        data: BrokerData,
        jvm: BrokerJvm,
        *,
        settings: Mapping[str, str],
        listeners: Sequence[BrokerListener],
        port: int | None,
        detached: bool,
        ready_deadline_s: float,
    ) -> None:
        self.data = data
        self.ports = data.ports
        self.nodes = [BrokerNode(each, data, jvm, detached=detached) for each in range(data.brokers)]
        self._settings = settings
        self._listeners = listeners
        self._port = port
        self._ready_deadline_s = ready_deadline_s
        for node in self.nodes:
            other = PidFile(node.pid_file).running()
            if other is not None:
                msg = f"Process {other.pid} already runs a broker on {data.root}."
                raise ConfigError(msg, fix="stop it, or choose another folder", pid=other.pid)

    def listener(self, name: str) -> str:
        """Return the addresses of one listener on every node."""
        names = list(self.ports[0].listeners)
        if name not in names:
            msg = f"The embedded broker has no listener {name!r}, only {', '.join(names)}."
            raise ConfigError(msg, fix="add it to extra_listeners")
        return ",".join(f"{LOOPBACK}:{each.listeners[name]}" for each in self.ports)

    def launch(self, format_options: Sequence[str]) -> None:
        """Choose ports, format new folders, start all nodes and wait until they are ready.

        Args:
            format_options: JVM options for formatting.

        Raises:
            BrokerStartError: The nodes did not become ready.
        """
        for tries_left in reversed(range(_PORT_TRIES)):
            self.ports = self._choose_ports()
            self._configure()
            self._format(format_options)
            try:
                self.start_nodes(range(len(self.nodes)))
                break
            except BrokerStartError as error:
                clash = any(sign in error.attributes["log_tail"] for sign in _BIND_CLASH)
                if not clash or not tries_left:
                    raise
                logger.info("another program took a port: trying other ports")
                self.kill()
        self.data.remember(self.ports)

    def start_nodes(self, which: Sequence[int]) -> None:
        """Start some nodes and wait until all running nodes are ready.

        Args:
            which: Node ids.

        Raises:
            BrokerStartError: The nodes did not become ready.
        """
        end = time.monotonic() + self._ready_deadline_s
        for node in which:
            self.nodes[node].start()
        running = [node for node in self.nodes if node.is_running()]
        ports = {each.node: self.ports[each.node].listeners[PLAINTEXT] for each in running}
        started = [self.nodes[each] for each in which]

        def check() -> None:
            for node in started:
                if not node.is_running():
                    code = "" if node.returncode is None else f" with exit code {node.returncode}"
                    raise _start_error(f"Broker {node.node} exited{code} during its start.", node)

        # A node that was just killed is still listed until its session expires.
        if not await_brokers(self.data.cluster_id, ports, end, check, exact=len(running) == len(self.nodes)):
            what = f"The embedded broker was not ready within {self._ready_deadline_s:.0f} s."
            raise _start_error(what, started[0])

    def stop_node(self, node: int) -> None:
        """Shut down one node cleanly."""
        self.nodes[node].stop(_STOP_DEADLINE_S)

    def shut_down(self) -> None:
        """Shut down all nodes cleanly, at the same time."""
        for node in self.nodes:
            node.terminate()
        end = time.monotonic() + _STOP_DEADLINE_S
        for node in self.nodes:
            node.stop(max(0.0, end - time.monotonic()))

    def kill(self) -> None:
        """Kill all nodes with SIGKILL."""
        for node in self.nodes:
            node.kill()

    def restart(self, settings: Mapping[str, str]) -> None:
        """Shut down all nodes and start them with these settings, on the same ports."""
        self.shut_down()
        self._settings = settings
        self._configure()
        self.start_nodes(range(len(self.nodes)))

    def _choose_ports(self) -> tuple[NodePorts, ...]:
        names = [PLAINTEXT, *(each.name for each in self._listeners)]
        if self._port is not None and not is_free(self._port):
            msg = f"Port {self._port} is taken by another program."
            raise ConfigError(msg, fix="choose another port, or leave it out", port=self._port)
        before = self.ports
        usable = (
            bool(before)
            and all(list(each.listeners) == names for each in before)
            and self._port in (None, before[0].listeners[PLAINTEXT])
            and all(is_free(port) for each in before for port in each.all())
        )
        if usable:
            return before
        count = len(self.nodes)
        free = iter(free_ports(count * (len(names) + 1)))
        chosen = [NodePorts({name: next(free) for name in names}, controller=next(free)) for _ in range(count)]
        if self._port is not None:
            first = chosen[0]
            chosen[0] = NodePorts({**first.listeners, PLAINTEXT: self._port}, first.controller)
        return tuple(chosen)

    def _configure(self) -> None:
        for node in self.nodes:
            node.configure(node_settings(node.node, self.ports, node.data_dir, self._listeners, self._settings))

    def _format(self, options: Sequence[str]) -> None:
        # In parallel, because most of the time is the start of a JVM.
        with ExitStack() as stack:
            begun = [(each, each.begin_format(self.data.cluster_id, options)) for each in self.nodes]
            tools = [(node, stack.enter_context(tool)) for node, tool in begun if tool is not None]
            for node, tool in tools:
                node.finish_format(tool)


def _start_error(what: str, node: BrokerNode) -> BrokerStartError:
    tail = node.log_tail()
    quoted = "\n".join(f"    {line}" for line in tail.splitlines()) or "    (nothing)"
    return BrokerStartError(
        f"{what} The last lines of its log, {node.log_path}:\n{quoted}",
        fix="fix the problem that the log names; on a slow machine, raise ready_deadline_s",
        broker=node.node,
        log_path=str(node.log_path),
        log_tail=tail,
    )

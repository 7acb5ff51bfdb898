"""Build the embedded broker's settings as text. Starts no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kpipe_platform.errors import ConfigError
from kpipe_platform.jvm.ports import LOOPBACK
from kpipe_platform.testing.broker.listeners import BrokerListener

__all__ = ["LOG4J2_CONFIG", "PLAINTEXT", "NodePorts", "node_settings", "properties_text"]

PLAINTEXT = "PLAINTEXT"
_CONTROLLER = "CONTROLLER"

# Settings that the embedded broker sets itself. Overriding them would contradict its own state.
_OWN = frozenset(
    {
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "node.id",
        "process.roles",
    }
)

LOG4J2_CONFIG = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1.} - %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
# Each broker warns once that its metadata log is new.
logger.activation.name = org.apache.kafka.controller.QuorumController
logger.activation.level = error
"""


@dataclass(frozen=True)
class NodePorts:
    """Loopback ports of one node.

    Attributes:
        listeners: Port by listener name: ``PLAINTEXT`` and the additional listeners.
        controller: Port of the controller listener.
    """

    listeners: Mapping[str, int]
    controller: int

    def all(self) -> list[int]:
        """Return all ports of the node."""
        return [*self.listeners.values(), self.controller]


def node_settings(
    node: int,
    nodes: Sequence[NodePorts],
    data_dir: Path,
    listeners: Sequence[BrokerListener] = (),
    overrides: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the settings of one node of a cluster in which every node is a broker and a controller.

    Args:
        node: Node id and index into ``nodes``.
        nodes: Ports of all nodes.
        data_dir: Folder for the node's data.
        listeners: Additional listeners.
        overrides: Broker settings that override the defaults.

    Returns:
        The contents of ``server.properties``.

    Raises:
        ConfigError: An override changes a setting that the embedded broker sets itself.
    """
    overrides = overrides or {}
    taken = sorted(_OWN.intersection(overrides))
    if taken:
        msg = f"The embedded broker sets {', '.join(taken)} itself."
        raise ConfigError(msg, fix="leave it out; for additional listeners, use extra_listeners")
    ports = nodes[node]
    protocols = {PLAINTEXT: PLAINTEXT, _CONTROLLER: PLAINTEXT}
    protocols |= {each.name: each.security_protocol for each in listeners}
    advertised = [f"{name}://{LOOPBACK}:{port}" for name, port in ports.listeners.items()]
    voters = [f"{index}@{LOOPBACK}:{each.controller}" for index, each in enumerate(nodes)]
    own = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(voters),
        "listeners": ",".join([*advertised, f"{_CONTROLLER}://{LOOPBACK}:{ports.controller}"]),
        "advertised.listeners": ",".join(advertised),
        "controller.listener.names": _CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "log.dirs": str(data_dir),
    }
    of_listeners = {
        f"listener.name.{each.name.lower()}.{key}": value for each in listeners for key, value in each.settings.items()
    }
    return {**_defaults(len(nodes)), **of_listeners, **overrides, **own}


def _defaults(brokers: int) -> dict[str, str]:
    replicas = str(brokers)
    in_sync = str(1 if brokers == 1 else brokers - 1)
    return {
        "auto.create.topics.enable": "false",
        # Internal topics are replicated to all brokers, and have few partitions: each partition costs startup
        # time and open files.
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "5",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        # Kafka's default is to wait 3 s for more members of a new group. Here there are rarely any.
        "group.initial.rebalance.delay.ms": "0",
        # A new broker is unfenced by a heartbeat. Kafka's default of 2 s would be most of the startup time.
        "broker.heartbeat.interval.ms": "500",
        # A killed broker can rejoin only after its old session expires. Kafka's default is 9 s.
        "broker.session.timeout.ms": "4000",
        # Threads and buffers for a few clients on a small machine. The cleaner's default buffer of 128 MB
        # would be half of the heap.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    }


def properties_text(settings: Mapping[str, str]) -> str:
    """Render settings as a Java properties file."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(escapes.get(each, each if each.isascii() else _unicode_escape(each)) for each in text)


def _unicode_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

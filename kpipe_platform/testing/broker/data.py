"""The embedded broker's folder: its contents, and which of them may be deleted."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.jvm.private_files import private_folder
from kpipe_platform.testing.broker.config import NodePorts

__all__ = ["BrokerData"]

_MARKER = "kpipe-broker.json"


@dataclass(frozen=True)
class BrokerData:
    """An opened folder.

    Attributes:
        root: The folder. Each node has a subfolder ``node-N``.
        cluster_id: Kafka's id of the cluster.
        brokers: Number of nodes.
        throw_away: Whether `remove` deletes the data. Data from before the start is never deleted.
        made: Whether opening the folder created it.
        ports: Ports of the last run; empty if there are none. Reused if they are free, so that clients keep their
            addresses.
    """

    root: Path
    cluster_id: str
    brokers: int
    throw_away: bool
    made: bool
    ports: tuple[NodePorts, ...] = ()

    @classmethod
    def open(cls, root: Path | None, *, brokers: int, keep: bool) -> BrokerData:
        """Open a folder, or create one.

        Args:
            root: The folder. None means a new temporary folder.
            brokers: Number of nodes.
            keep: Keep the data when the broker is stopped.

        Raises:
            ConfigError: The folder contains other files, or the data of a different number of brokers.
            EnvironmentSetupError: The folder cannot be created.
        """
        try:
            if root is None:
                root, made = Path(tempfile.mkdtemp(prefix="kpipe-broker-")), True
            else:
                root = root.expanduser().absolute()
                made = not root.exists()
                private_folder(root)
        except OSError as error:
            msg = f"The broker's folder cannot be created: {error}"
            raise EnvironmentSetupError(msg, fix="choose a writable folder") from error
        marker = root / _MARKER
        if marker.exists():
            return cls._reopen(marker, brokers)
        if any(root.iterdir()):
            msg = f"{root} is not empty and does not contain data of an embedded broker."
            raise ConfigError(msg, fix="choose an empty or new folder")
        data = cls(root, _new_cluster_id(), brokers, throw_away=not keep, made=made)
        data.remember(())
        return data

    @classmethod
    def _reopen(cls, marker: Path, brokers: int) -> BrokerData:
        try:
            fields = json.loads(marker.read_text(encoding="utf-8"))
            ports = tuple(NodePorts(each["listeners"], each["controller"]) for each in fields["ports"])
            cluster_id, stored = fields["cluster_id"], fields["brokers"]
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{marker} cannot be read: {error}"
            raise ConfigError(msg, fix=f"delete the folder {marker.parent}, or choose another") from error
        if stored != brokers:
            msg = f"{marker.parent} contains the data of {stored} brokers, but {brokers} were requested."
            raise ConfigError(msg, fix=f"start {stored} brokers, or choose another folder")
        return cls(marker.parent, cluster_id, brokers, throw_away=False, made=False, ports=ports)

    def node_folder(self, node: int) -> Path:
        """Return the folder of one node."""
        return self.root / f"node-{node}"

    def log_path(self, node: int) -> Path:
        """Return the log file of one node."""
        return self.node_folder(node) / "kafka.log"

    def pid_file(self, node: int) -> Path:
        """Return the file that identifies one node's process while it runs."""
        return self.node_folder(node) / "kafka.pid"

    def orphan_folder(self, node: int) -> Path | None:
        """Return the folder to delete if the node is orphaned. None if the data is kept."""
        if not self.throw_away:
            return None
        return self.root if self.made else self.node_folder(node)

    def remember(self, ports: tuple[NodePorts, ...]) -> None:
        """Store the ports of this run."""
        fields = {
            "cluster_id": self.cluster_id,
            "brokers": self.brokers,
            "ports": [{"listeners": dict(each.listeners), "controller": each.controller} for each in ports],
        }
        (self.root / _MARKER).write_text(json.dumps(fields, indent=1), encoding="utf-8")

    def remove(self, *, keep_logs: bool = False) -> None:
        """Delete the data if ``throw_away`` is set.

        Args:
            keep_logs: Keep the nodes' logs and settings, to find out why a start failed.
        """
        if not self.throw_away:
            return
        for node in range(self.brokers):
            folder = self.node_folder(node)
            shutil.rmtree(folder / "data" if keep_logs else folder, ignore_errors=True)
        (self.root / _MARKER).unlink(missing_ok=True)
        if self.made:
            with suppress(OSError):
                self.root.rmdir()


def _new_cluster_id() -> str:
    # Kafka's form of a UUID: 22 characters of URL-safe base64. Its tools would parse an id that begins with a dash as
    # an option.
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text

"""Options and status of the broker service behind `kpipe broker`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kpipe_platform.jvm.jars import KAFKA_VERSION

__all__ = ["ServiceNode", "ServiceOptions", "ServiceState", "ServiceStatus"]

ServiceState = Literal["running", "starting", "degraded", "crashed", "stopped"]


@dataclass(frozen=True)
class ServiceOptions:
    """How to start the broker.

    Attributes:
        brokers: Number of brokers, 1 to 3.
        data_dir: Folder for the data. Default: a folder in the state folder.
        keep: Keep the data when stopped.
        port: Port of the first broker's plaintext listener. Default: 9092, or a free port if 9092 is taken.
        settings: Broker settings that override the defaults.
    """

    brokers: int = 1
    data_dir: Path | None = None
    keep: bool = True
    port: int | None = None
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True)
class ServiceNode:
    """One broker of the service.

    Attributes:
        broker: Its id.
        pid: Its process id. None if it is not running.
        log: Its log file.
    """

    broker: int
    pid: int | None
    log: str


@dataclass(frozen=True)
class ServiceStatus:
    """Status of the service.

    Attributes:
        state: ``degraded`` if only some of the brokers are running, ``crashed`` if none is running although
            they were not stopped.
        bootstrap_servers: Addresses for clients.
        data_dir: Folder of the data.
        keep: Whether the data is kept when the service is stopped.
        kafka_version: Version of the broker.
        nodes: The brokers.
    """

    state: ServiceState
    bootstrap_servers: str | None = None
    data_dir: str | None = None
    keep: bool | None = None
    kafka_version: str = KAFKA_VERSION
    nodes: tuple[ServiceNode, ...] = ()

    @property
    def address(self) -> str | None:
        """Address for clients."""
        return self.bootstrap_servers

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain values, for JSON."""
        return asdict(self)

"""What `kpipe broker` is asked for, and what it tells."""

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
        data_dir: Folder for the data; one in the state folder by default.
        keep: Keep the data when stopped.
        port: Plain port of the first broker; by default 9092, or another one when that is taken.
        settings: Broker settings that win over the defaults.
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
        pid: Its process id; None when it does not run.
        log: Its log file.
    """

    broker: int
    pid: int | None
    log: str


@dataclass(frozen=True)
class ServiceStatus:
    """What is known about the service.

    Attributes:
        state: ``degraded`` when only some of the brokers run, ``crashed`` when none does though nobody
            stopped them.
        bootstrap_servers: Addresses for clients.
        data_dir: Folder of the data.
        keep: Whether the data is kept when it is stopped.
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
        """Where clients find it."""
        return self.bootstrap_servers

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)

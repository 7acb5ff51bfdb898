"""Settings of the Spark engine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.connect.token import without_token

_LOCAL = re.compile(r"^local(?:\[(\d+|\*)(?:,\s*\d+)?\])?$")
# Default number of parallel tasks if the engine does not report it.
ASSUMED_TASKS = 4


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the Spark engine.

    Args:
        master: ``local[*]`` (default), or a cluster's master. Must not be combined with ``remote``.
        remote: Address of a Spark Connect server, ``sc://host:port``.
        app_name: Application name in Spark's UI.
        config: Spark settings.
        parallelism: Number of tasks that the engine runs at once. Default: the cores of a local master, the number that
            a Connect server reports, or 4.
    """

    master: str | None = None
    remote: str | None = None
    app_name: str = "kpipe"
    config: Mapping[str, str] = field(default_factory=dict)
    parallelism: int | None = None

    def __post_init__(self) -> None:
        if self.master and self.remote:
            msg = f"SparkEngine has both master={self.master!r} and remote={without_token(self.remote)!r}"
            raise ConfigError(msg, fix="set only one of them")
        if self.remote and not self.remote.startswith("sc://"):
            msg = f"remote is {without_token(self.remote)!r}, which is not a Spark Connect address"
            raise ConfigError(msg, fix='use an address such as "sc://127.0.0.1:15002"')
        if self.parallelism is not None and self.parallelism < 1:
            msg = f"parallelism is {self.parallelism}; it must be at least 1"
            raise ConfigError(msg, fix="set it to 1 or more, or omit it")

    @property
    def known_tasks_at_once(self) -> int | None:
        """Number of tasks that the engine runs at once; None if only the engine can report it."""
        if self.parallelism is not None:
            return self.parallelism
        return None if self.remote else local_tasks(self.master or "local[*]")


def local_tasks(master: str) -> int | None:
    """Number of parallel tasks of a local master on this machine; None for any other master."""
    local = _LOCAL.match(master)
    if local is None:
        return None
    cores = local.group(1) or "1"
    return (os.cpu_count() or 1) if cores == "*" else int(cores)

"""Where a cluster's executors get Python and its packages. Imports no Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.connect.executor_archive import read_manifest

__all__ = ["Executors"]

# Name of the folder in an executor's working folder into which Spark unpacks the archive.
_FOLDER = "kpipe_packages"
_ARCHIVES, _PATH = "spark.archives", "spark.executorEnv.PYTHONPATH"
_JOINS = {_ARCHIVES: ",", _PATH: ":"}


@dataclass(frozen=True)
class Executors:
    """How executors find Python and its packages.

    Args:
        archive: An archive made with ``kpipe spark pack``, which Spark sends to the executors. None if they already
            have the packages, for example because they use the driver's image.
        python: Python command on the executors. Default: with an archive, the driver's ``PYSPARK_PYTHON`` or
            ``python3``; otherwise the path of the driver's Python.
    """

    archive: Path | None = None
    python: str | None = None

    def check(self, master: str) -> None:
        """Validate the settings before a server is started.

        Args:
            master: Spark master of the server.

        Raises:
            ConfigError: The master is local, so it has no executors, or the archive is invalid.
            EnvironmentSetupError: The archive does not match this process.
        """
        if master.startswith("local") and (self.archive is not None or self.python is not None):
            msg = f"The master {master} starts no separate executors, so --archive and --python do not apply."
            raise ConfigError(msg, fix="omit --archive and --python, or give the master of a cluster")
        if self.archive is not None:
            read_manifest(self.archive).check(self.archive)

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Add the settings that send the archive to the given Spark settings."""
        if self.archive is None:
            return dict(given)
        # A relative path, because Python workers start in the folder into which Spark unpacks archives.
        ours = {_ARCHIVES: f"{self.archive.absolute()}#{_FOLDER}", _PATH: _FOLDER}
        joined = {name: _JOINS[name].join(filter(None, [value, given.get(name)])) for name, value in ours.items()}
        return {**given, **joined}

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for the driver, which sends the path of the executors' Python with each task."""
        python = self.python
        if python is None and self.archive is not None:
            python = os.environ.get("PYSPARK_PYTHON") or "python3"
        return {} if python is None else {"PYSPARK_PYTHON": python}

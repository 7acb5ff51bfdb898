"""Where the executors of a cluster have their Python and its packages from. Imports no Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.connect.executor_archive import read_manifest

__all__ = ["Executors"]

# Name of the folder, in an executor's working folder, that Spark unpacks the archive into.
_FOLDER = "kpipe_packages"
_ARCHIVES, _PATH = "spark.archives", "spark.executorEnv.PYTHONPATH"
_JOINS = {_ARCHIVES: ",", _PATH: ":"}


@dataclass(frozen=True)
class Executors:
    """How executors find Python and its packages.

    Args:
        archive: An archive of `kpipe spark pack`, which Spark sends to them; None: they have the packages already, for
            example because they run from the driver's image.
        python: Their Python, as they find it; None: ``python3`` on their PATH where there is an archive, and else the
            path of the driver's.
    """

    archive: Path | None = None
    python: str | None = None

    def check(self, master: str) -> None:
        """Refuse what makes no sense before anything is started.

        Raises:
            ConfigError: A local master has no executors, or the archive is none.
            EnvironmentSetupError: The archive does not go with this process.
        """
        if master.startswith("local") and (self.archive is not None or self.python is not None):
            msg = f"The master {master} has no executors that an archive or a Python could be for."
            raise ConfigError(msg, fix="leave --archive and --python out, or name a cluster's master")
        if self.archive is not None:
            read_manifest(self.archive).check(self.archive)

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Spark settings: those that are given, and with them what sends the archive."""
        if self.archive is None:
            return dict(given)
        # Relative: the Python workers are started in the folder into which archives are unpacked.
        ours = {_ARCHIVES: f"{self.archive.absolute()}#{_FOLDER}", _PATH: _FOLDER}
        joined = {name: _JOINS[name].join(filter(None, [value, given.get(name)])) for name, value in ours.items()}
        return {**given, **joined}

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of the driver, which names the executors' Python in each task."""
        python = self.python
        if python is None and self.archive is not None:
            python = os.environ.get("PYSPARK_PYTHON") or "python3"
        return {} if python is None else {"PYSPARK_PYTHON": python}

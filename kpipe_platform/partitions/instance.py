"""The Dagster instance for commands that run outside of Dagster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from kpipe_platform.errors import ConfigError


@contextmanager
def own_instance() -> Iterator[dg.DagsterInstance]:
    """Open the instance that ``DAGSTER_HOME`` names.

    Raises:
        ConfigError: ``DAGSTER_HOME`` is not set, or its instance cannot be opened.
    """
    if not os.environ.get("DAGSTER_HOME"):
        msg = "DAGSTER_HOME is not set, so kpipe cannot find the Dagster instance"
        raise ConfigError(msg, fix="set DAGSTER_HOME to the folder that the webserver and the daemon use")
    try:
        instance = dg.DagsterInstance.get()
    except Exception as error:
        msg = f"cannot open the Dagster instance of DAGSTER_HOME={os.environ['DAGSTER_HOME']}: {error}"
        raise ConfigError(msg, fix="correct dagster.yaml in that folder") from error
    with instance:
        yield instance

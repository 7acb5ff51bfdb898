"""The Dagster instance for commands that run outside of Dagster, and its unfinished runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources._compat import (
    ACTIVE_RUN_STATUSES,
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)


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


@dataclass(frozen=True)
class Unfinished:
    """Unfinished runs.

    Args:
        active: One line for each active run: its process exists or is about to start.
        queued: Number of queued runs.
    """

    active: tuple[str, ...]
    queued: int


def unfinished_runs(home: Path) -> Unfinished:
    """Return the unfinished runs of the instance in a Dagster home.

    Args:
        home: The folder that ``DAGSTER_HOME`` names.
    """
    with dg.DagsterInstance.from_config(str(home)) as instance:
        runs = instance.get_runs(dg.RunsFilter(statuses=ACTIVE_RUN_STATUSES))
        queued = instance.get_runs_count(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
        return Unfinished(tuple(_shown(run) for run in runs), queued)


def _shown(run: dg.DagsterRun) -> str:
    assets = ", ".join(sorted(key.to_user_string() for key in run.asset_selection or ()))
    first, last = run.tags.get(ASSET_PARTITION_RANGE_START_TAG), run.tags.get(ASSET_PARTITION_RANGE_END_TAG)
    partition = run.tags.get(PARTITION_NAME_TAG) or (f"{first} to {last}" if first is not None else None)
    place = "" if partition is None else f" partition {partition}"
    return f"{assets or run.job_name}{place} (run {run.run_id[:8]})"

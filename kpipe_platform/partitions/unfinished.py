"""What a Dagster instance has not finished, for whoever is about to stop its processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from kpipe_platform.resources._compat import (
    ACTIVE_RUN_STATUSES,
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

__all__ = ["Unfinished", "unfinished_runs"]


@dataclass(frozen=True)
class Unfinished:
    """Runs that are not finished.

    Args:
        at_work: A line for each run that has a process, or gets one at this moment.
        queued: Runs that wait for one.
    """

    at_work: tuple[str, ...]
    queued: int


def unfinished_runs(home: Path) -> Unfinished:
    """Ask the instance of a Dagster home.

    Args:
        home: The folder that DAGSTER_HOME names.
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

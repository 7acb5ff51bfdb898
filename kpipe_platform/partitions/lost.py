"""Lost runs: Dagster lists them as started, but their process is gone, for example because its host was lost.

A run's process is a child of the code server that started it, and that server can report whether it still runs. If the
server is gone too, a process that died with it cannot be distinguished from one that outlived it. Such a run is
reported but never released automatically: an operator has to check the host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.resources._compat import GRPC_INFO_TAG, IN_PROGRESS_RUN_STATUSES, code_server_runs

__all__ = ["LostRun", "Process", "lost_runs", "process_of", "release"]

# A run that logged an event more recently than this is not checked. A run that waits for records may log nothing for
# hours.
_SILENT_S = 300.0
# Timeout of a query. A server in the same network responds within milliseconds; a tick has only seconds in total.
_RESPONSE_S = 2
# Maximum number of runs that one call queries, because the timeouts of unreachable servers add up.
_QUERIED = 3
# Maximum number of started runs that are read, the oldest first. A large deployment has this many run processes.
_MAX_READ = 50


class Process(str, Enum):
    """State of a run's process."""

    RUNS = "runs"
    GONE = "gone"
    """The code server responds and does not run it."""
    UNREACHABLE = "unreachable"
    """The code server does not respond."""
    UNKNOWN = "unknown"
    """Another launcher started it, or a code server that may have reloaded its code since."""


@dataclass(frozen=True)
class LostRun:
    """A run whose process is gone or probably gone.

    Args:
        run_id: Dagster run.
        process: State of its process, from its code server.
        silent_s: Seconds since its last logged event.
    """

    run_id: str
    process: Process
    silent_s: float

    def __str__(self) -> str:
        what = "does not run it" if self.process is Process.GONE else "does not respond"
        return (
            f"run {self.run_id} has logged nothing for {self.silent_s / 60:,.0f} min, and its code server {what}: its "
            "process is probably gone, and the sensor requests no runs for its partitions\n"
            f"  How to fix: kpipe partitions release {self.run_id[:8]}"
        )


def process_of(run: dg.DagsterRun) -> Process:
    """Query the code server that started a run for the state of its process."""
    info = json.loads(run.tags.get(GRPC_INFO_TAG, "null"))
    if info is None:
        return Process.UNKNOWN
    runs = code_server_runs(info, run.run_id, _RESPONSE_S)
    if runs is None:
        return Process.UNREACHABLE
    if runs:
        return Process.RUNS
    # A server at a socket is the proxy of `dagster dev`. After a code reload it has no record of earlier runs, although
    # they continue. UNKNOWN is enough here: the proxy itself reports runs that die, and a new proxy has a new socket.
    return Process.GONE if info.get("port") else Process.UNKNOWN


def lost_runs(
    instance: dg.DagsterInstance, run_ids: Iterable[str], *, clock: Callable[[], float] = time.time
) -> list[LostRun]:
    """Return the runs whose process is gone or probably gone.

    Args:
        instance: Dagster instance.
        run_ids: Unfinished runs. Of those that have logged nothing for five minutes, the oldest three are checked.
        clock: Returns seconds since the epoch; injected for tests.
    """
    wanted = list(run_ids)
    if not wanted:
        return []
    now_s = clock()
    silent = []
    started = dg.RunsFilter(run_ids=wanted, statuses=[dg.DagsterRunStatus.STARTED])
    for record in instance.get_run_records(started, limit=_MAX_READ, ascending=True):
        run = record.dagster_run
        if record.start_time is not None and now_s - record.start_time < _SILENT_S:
            continue
        events = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
        silent_s = now_s - events[0].timestamp if events else 0.0
        if silent_s >= _SILENT_S:
            silent.append((run, silent_s))
    checked = [(run, process_of(run), silent_s) for run, silent_s in silent[:_QUERIED]]
    gone = (Process.GONE, Process.UNREACHABLE)
    return [LostRun(run.run_id, process, silent_s) for run, process, silent_s in checked if process in gone]


def release(instance: dg.DagsterInstance, run_id: str, *, force: bool = False) -> str:
    """Mark a run whose process is gone as failed, so that it no longer blocks its partitions.

    Args:
        instance: Dagster instance.
        run_id: The run id, or its first characters.
        force: Whether to release a run even if the state of its process is unknown.

    Returns:
        The complete run id.

    Raises:
        ConfigError: No started run or several started runs have this id, its process exists, or the state of its
            process is unknown and ``force`` is False.
    """
    found = [
        run
        for run in instance.get_runs(dg.RunsFilter(statuses=[*IN_PROGRESS_RUN_STATUSES, dg.DagsterRunStatus.CANCELING]))
        if run.run_id.startswith(run_id)
    ]
    if len(found) != 1:
        msg = f"{len(found) or 'no'} started run{'s have' if found else ' has'} an id that begins with {run_id!r}"
        raise ConfigError(
            msg, fix="list the runs with kpipe partitions show; to remove a queued run, terminate it in the UI"
        )
    (run,) = found
    process = process_of(run)
    if process is Process.RUNS:
        msg = f"run {run.run_id} is not lost: its code server still runs it"
        raise ConfigError(msg, fix="terminate it in the UI; the next run processes the offsets that it did not commit")
    if process is Process.UNKNOWN and not force:
        msg = f"kpipe cannot determine whether the process of run {run.run_id} still exists"
        raise ConfigError(
            msg, fix="check the host or cluster where its launcher starts runs; if it is gone, add --force"
        )
    instance.report_run_failed(run, f"Released by kpipe: its process is {process.value}.")
    return run.run_id

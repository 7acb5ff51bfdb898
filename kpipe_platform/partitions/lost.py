"""Runs that Dagster holds for started though their process is gone, as after the loss of its host.

A run's process is a child of the code server that started it, and that server knows whether it still runs. Where the
server is gone too, nobody can tell a process that died with it from one that has outlived it. Such a run is named and
never released by itself: an operator knows what became of the host.
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

# A run that has logged something since is not asked about. One that waits for records may log nothing for hours.
_SILENT_S = 300.0
# A server in the same network answers within milliseconds; a tick has seconds in all.
_ANSWER_S = 2
_ASKED = 3
# Started runs that are looked at, the oldest first: as many have a process in a large deployment.
_LOOKED_AT = 50


class Process(str, Enum):
    """What is known of a run's process."""

    RUNS = "runs"
    GONE = "gone"
    """The code server answers, and does not run it."""
    UNREACHABLE = "unreachable"
    """The code server does not answer."""
    UNKNOWN = "unknown"
    """Nobody can tell: another launcher has started it, or a code server that may have reloaded its code since."""


@dataclass(frozen=True)
class LostRun:
    """A run whose process is gone, or probably so.

    Args:
        run_id: Dagster run.
        process: What its code server says.
        silent_s: Seconds since it has logged something.
    """

    run_id: str
    process: Process
    silent_s: float

    def __str__(self) -> str:
        what = "does not run it" if self.process is Process.GONE else "does not answer"
        return (
            f"run {self.run_id} has logged nothing for {self.silent_s / 60:,.0f} min, and its code server {what}: its "
            "process is probably gone, and it holds its partitions\n"
            f"  How to fix: kpipe partitions release {self.run_id[:8]}"
        )


def process_of(run: dg.DagsterRun) -> Process:
    """Ask the code server that started a run whether its process is there."""
    info = json.loads(run.tags.get(GRPC_INFO_TAG, "null"))
    if info is None:
        return Process.UNKNOWN
    runs = code_server_runs(info, run.run_id, _ANSWER_S)
    if runs is None:
        return Process.UNREACHABLE
    if runs:
        return Process.RUNS
    # At a socket is the proxy of `dagster dev`. After a reload of the code it knows no earlier run, though they go on.
    # It needs no second look: while it is there it reports runs that die, and its successor has another socket.
    return Process.GONE if info.get("port") else Process.UNKNOWN


def lost_runs(
    instance: dg.DagsterInstance, run_ids: Iterable[str], *, clock: Callable[[], float] = time.time
) -> list[LostRun]:
    """The runs among some whose process is gone, or probably so.

    Args:
        instance: Dagster instance.
        run_ids: Runs that are not finished; of those that have been silent for five minutes the oldest three are asked
            about.
        clock: Seconds since the epoch; injected for tests.
    """
    wanted = list(run_ids)
    if not wanted:
        return []
    now_s = clock()
    silent = []
    started = dg.RunsFilter(run_ids=wanted, statuses=[dg.DagsterRunStatus.STARTED])
    for record in instance.get_run_records(started, limit=_LOOKED_AT, ascending=True):
        run = record.dagster_run
        if record.start_time is not None and now_s - record.start_time < _SILENT_S:
            continue
        events = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
        silent_s = now_s - events[0].timestamp if events else 0.0
        if silent_s >= _SILENT_S:
            silent.append((run, silent_s))
    asked = [(run, process_of(run), silent_s) for run, silent_s in silent[:_ASKED]]
    gone = (Process.GONE, Process.UNREACHABLE)
    return [LostRun(run.run_id, process, silent_s) for run, process, silent_s in asked if process in gone]


def release(instance: dg.DagsterInstance, run_id: str, *, force: bool = False) -> str:
    """Mark a run as failed whose process is gone, so that it holds its partitions no longer.

    Args:
        instance: Dagster instance.
        run_id: The run, or the first characters of its id.
        force: Also where it is not known whether its process is there.

    Returns:
        The whole id.

    Raises:
        ConfigError: No started run has this id, or several have, or its process is there or may be.
    """
    found = [
        run
        for run in instance.get_runs(dg.RunsFilter(statuses=[*IN_PROGRESS_RUN_STATUSES, dg.DagsterRunStatus.CANCELING]))
        if run.run_id.startswith(run_id)
    ]
    if len(found) != 1:
        msg = f"{len(found) or 'no'} started run{'s have' if found else ' has'} an id that begins with {run_id!r}"
        raise ConfigError(msg, fix="see kpipe partitions show; a queued run is taken out of the queue in the UI")
    (run,) = found
    process = process_of(run)
    if process is Process.RUNS:
        msg = f"run {run.run_id} is there: its code server runs it"
        raise ConfigError(msg, fix="terminate it in the UI; what it has not committed is taken again")
    if process is Process.UNKNOWN and not force:
        msg = f"it is not known whether the process of run {run.run_id} is there"
        raise ConfigError(msg, fix="look where its launcher starts runs; if it is gone: --force")
    instance.report_run_failed(run, f"Released by kpipe: its process is {process.value}.")
    return run.run_id

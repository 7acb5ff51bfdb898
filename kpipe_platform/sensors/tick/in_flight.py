"""Runs of an asset in the Dagster instance: unfinished and failed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.partitions.materializations import own_materializations
from kpipe_platform.partitions.runs import RunInFlight, runs_in_flight
from kpipe_platform.sensors.tick.decision import Failures
from kpipe_platform.sensors.tick.tags import ATTEMPT, GROUP, RANGE_KEY, RequestedOffsets

__all__ = [
    "FailedRun",
    "RunInFlight",
    "failed_runs",
    "failures_at",
    "last_success_s",
    "next_attempt",
    "runs_in_flight",
]

# Maximum number of failed runs of one asset that a tick reads, newest first. Older failures are ignored, so that a long
# history does not slow down a tick.
_FAILED_RUNS = 1_000


@dataclass(frozen=True)
class FailedRun:
    """A run that failed or was terminated.

    Args:
        requested: The offsets that the tick saw when it requested the run.
        ended_s: When the run ended, seconds since the epoch.
    """

    requested: RequestedOffsets
    ended_s: float


def failed_runs(instance: dg.DagsterInstance, group: str) -> list[FailedRun]:
    """Return the last runs that a sensor requested and that failed or were terminated, newest first."""
    statuses = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    records = instance.get_run_records(dg.RunsFilter(tags={GROUP: group}, statuses=statuses), limit=_FAILED_RUNS)
    return [
        FailedRun(
            RequestedOffsets.of(record.dagster_run.tags),
            record.end_time if record.end_time is not None else record.update_timestamp.timestamp(),
        )
        for record in records
    ]


def failures_at(
    failed: Sequence[FailedRun],
    committed: Mapping[Partition, int | None],
    last_success_s: Callable[[], float | None],
) -> Failures:
    """Return the failures at a partition's current offsets with no success since.

    Args:
        failed: Failed runs.
        committed: The group's offset in each Kafka partition that a run would process; None if it has none yet. A
            failed run no longer counts once one of these offsets has moved. A moved log start does not count as
            progress, because retention can move it without a success.
        last_success_s: Returns when the asset was last materialized there, seconds since the epoch; called only if a
            run failed. It distinguishes a group that an operator reset to the offset from one that never got past it.
    """
    ended = [
        run.ended_s
        for run in failed
        if run.requested.committed and all(_is_unmoved(run.requested, place, at) for place, at in committed.items())
    ]
    if not ended:
        return Failures()
    success_s = last_success_s()
    since = [at_s for at_s in ended if success_s is None or at_s > success_s]
    return Failures(len(since), max(since)) if since else Failures()


def _is_unmoved(requested: RequestedOffsets, place: Partition, at: int | None) -> bool:
    """Return whether the group's offset is the same as when a run was requested."""
    before = requested.committed.get(place)
    # A group without an offset now had none then: only a success or an operator stores one.
    return before is not None and at in (None, before)


def last_success_s(instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: str | None) -> float | None:
    """Return when any run last materialized a partition, seconds since the epoch; None: never."""
    last = next(own_materializations(instance, asset_key, partition), None)
    return None if last is None else last.timestamp


def next_attempt(instance: dg.DagsterInstance, key: str) -> int:
    """Return the next unused attempt number of a range key. Dagster starts no second run for a used run key.

    The runs' tags hold the number. It therefore survives the loss of the cursor, and a range that an operator reset the
    group to is requested again.
    """
    tags = {RANGE_KEY: key}
    last = instance.get_runs(dg.RunsFilter(tags=tags), limit=1)
    if not last:
        return 1
    number = last[0].tags.get(ATTEMPT, "")
    return (int(number) if number.isdecimal() else instance.get_runs_count(dg.RunsFilter(tags=tags))) + 1

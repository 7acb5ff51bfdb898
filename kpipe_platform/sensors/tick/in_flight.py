"""Runs of an asset in the Dagster instance: those that are not finished, and those that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.partitions.materializations import own_materializations
from kpipe_platform.partitions.runs import RunInFlight, runs_in_flight
from kpipe_platform.sensors.tick.admission import Failures
from kpipe_platform.sensors.tick.tags import ATTEMPT, GROUP, RANGE_KEY, AskedFor

__all__ = [
    "FailedRun",
    "RunInFlight",
    "failed_runs",
    "failures_at",
    "last_success_s",
    "next_attempt",
    "runs_in_flight",
]

# Failed runs of one asset that a tick looks at, newest first. Older failures than these are forgotten, so that a
# history of years does not make a tick slow.
_FAILED_RUNS = 1_000


@dataclass(frozen=True)
class FailedRun:
    """A run that failed or was terminated.

    Args:
        asked_for: The offsets that the tick saw when it asked for it.
        ended_s: When it ended, seconds since the epoch.
    """

    asked_for: AskedFor
    ended_s: float


def failed_runs(instance: dg.DagsterInstance, group: str) -> list[FailedRun]:
    """The last runs that a sensor asked for and that failed or were terminated, newest first."""
    statuses = [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
    records = instance.get_run_records(dg.RunsFilter(tags={GROUP: group}, statuses=statuses), limit=_FAILED_RUNS)
    return [
        FailedRun(
            AskedFor.of(record.dagster_run.tags),
            record.end_time if record.end_time is not None else record.update_timestamp.timestamp(),
        )
        for record in records
    ]


def failures_at(
    failed: Sequence[FailedRun],
    committed: Mapping[Partition, int | None],
    last_success_s: Callable[[], float | None],
) -> Failures:
    """Failures at a partition's present offsets with no success since.

    Args:
        failed: Failed runs.
        committed: The group's offset in each Kafka partition that a run would take, None where it has none yet; where
            one of them has moved, a run that failed is of the past. The log's start may move meanwhile: what retention
            deletes is no success.
        last_success_s: When the asset was last materialised there; asked only where a run failed. It is what tells
            a group that was set back by an operator from one that never got past the offset.
    """
    ended = [
        run.ended_s
        for run in failed
        if run.asked_for.committed and all(_stands(run.asked_for, place, at) for place, at in committed.items())
    ]
    if not ended:
        return Failures()
    success_s = last_success_s()
    since = [at_s for at_s in ended if success_s is None or at_s > success_s]
    return Failures(len(since), max(since)) if since else Failures()


def _stands(asked_for: AskedFor, place: Partition, at: int | None) -> bool:
    """Whether the group stands where it stood when a run was asked for."""
    before = asked_for.committed.get(place)
    # A group that has no offset now had none then: only a success, or an operator, stores one.
    return before is not None and at in (None, before)


def last_success_s(instance: dg.DagsterInstance, asset_key: dg.AssetKey, partition: str | None) -> float | None:
    """When a partition was last materialised, by whichever run; None: never."""
    last = next(own_materializations(instance, asset_key, partition), None)
    return None if last is None else last.timestamp


def next_attempt(instance: dg.DagsterInstance, key: str) -> int:
    """The first attempt at a range key that no run has: Dagster starts no second run for a used run key.

    The count is kept by the runs themselves, so it survives the loss of the cursor, and a range that an operator went
    back to is asked for again.
    """
    tags = {RANGE_KEY: key}
    last = instance.get_runs(dg.RunsFilter(tags=tags), limit=1)
    if not last:
        return 1
    number = last[0].tags.get(ATTEMPT, "")
    return (int(number) if number.isdecimal() else instance.get_runs_count(dg.RunsFilter(tags=tags))) + 1

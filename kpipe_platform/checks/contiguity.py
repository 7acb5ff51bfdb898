"""Contiguity check: each materialization starts where the one before ended, and the group's offset is the last end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.assets.source import Source
from kpipe_platform.checks.findings import Finding
from kpipe_platform.checks.partitions import CheckOptions, Scope, make_check
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata
from kpipe_platform.partitions.materializations import ranges_of
from kpipe_platform.slices.plan.lag import Waiting


@dataclass(frozen=True)
class Taken:
    """The offset range of one Kafka partition that one materialization processed.

    Args:
        start: First offset.
        end: Offset after the last.
        topic_id: Id of the topic at that time.
    """

    start: int
    end: int
    topic_id: str


def offset_contiguity_check(
    asset: dg.AssetsDefinition,
    *,
    last: int = 10,
    name: str | None = None,
    source: Source | Sequence[Source] | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    partitioned: bool = True,
    resource_key: str = "kafka_io_manager",
) -> dg.AssetChecksDefinition:
    """Create a check that fails if offsets were skipped or processed twice, or if the group and Dagster disagree.

    A break between two materializations is reported for as long as both are among the ``last`` ones.

    Args:
        asset: The Kafka asset.
        last: Number of materializations of each partition that are checked, 2 or more.
        name: Name of the check; None: offset_contiguity.
        source: The topic asset(s) that the asset reads; None: found from the asset's inputs, or in its last
            materialization. A check that runs without the asset, before the first materialization, needs it.
        severity: Severity of a failure. An unknown result fails with severity WARN.
        blocking: Whether downstream assets wait for the check.
        partitioned: Whether Dagster keeps a result for each partition. False: one check for the whole asset, which a
            schedule can run without a partition.
        resource_key: Resource key of the KafkaSource that the asset is read with, or of the KafkaIOManager that has it.

    Returns:
        The check ``offset_contiguity``. Its numbers for each partition: materializations, breaks, last_end (Dagster's
        offset), committed (the group's offset), drift (the group's offset minus Dagster's).

    Raises:
        ConfigError: ``last`` is less than 2.
    """
    if last < 2:
        msg = f"offset_contiguity_check: last is {last}, but at least 2 materializations are needed for a comparison"
        raise ConfigError(msg, fix="set last to 2 or more")

    def evaluate(scope: Scope) -> list[Finding]:
        with scope.find_source().clients() as clients:
            standings = scope.waiting(clients)
        # Read Dagster after the group, so that its offset is not older than the group's.
        taken = _taken(scope, last)
        return [
            _finding(scope, standing, taken.get((standing.topic, standing.partition), [])) for standing in standings
        ]

    description = (
        f"Each of the last {last} materializations begins where the one before ended, and the consumer group's offset "
        "is the end of the last."
    )
    return make_check(
        asset,
        "offset_contiguity",
        description,
        evaluate,
        CheckOptions(name, source, severity, blocking, partitioned, resource_key),
    )


def _taken(scope: Scope, last: int) -> dict[tuple[str, int], list[Taken]]:
    """Return the ranges that the last materializations processed, by Kafka partition, the newest first."""
    found: dict[tuple[str, int], list[Taken]] = {}
    for _, materializations in scope.materialized(last):
        for one in materializations:
            for item in ranges_of(one):
                where = (item["topic"], int(item["partition"]))
                found.setdefault(where, []).append(Taken(int(item["start"]), int(item["end"]), item["topic_id"]))
    return found


def breaks(taken: Sequence[Taken]) -> list[str]:
    """Describe the breaks between materializations, from the newest to the oldest. Pure."""
    found = []
    for after, before in pairwise(taken):
        if after.topic_id != before.topic_id:
            found.append(
                f"the topic was recreated between the materializations that end at {before.end} and {after.end}"
            )
        elif after.start > before.end:
            found.append(
                f"no materialization contains offsets [{before.end}, {after.start}): one ended at {before.end}, the "
                f"next began at {after.start}"
            )
        elif after.start < before.end:
            found.append(
                f"offsets [{after.start}, {min(before.end, after.end)}) were processed twice: one "
                f"materialization ended at {before.end}, the next began at {after.start}"
            )
    return found


def _finding(scope: Scope, standing: Waiting, taken: list[Taken]) -> Finding:
    where = f"{standing.topic}/{standing.partition}"
    committed = None if standing.committed is None else standing.committed.offset
    problems = breaks(taken)
    found = len(problems)
    newest = taken[0] if taken else None
    text = "there is no materialization yet" if newest is None else f"contiguous up to offset {newest.end}"
    drift = None if newest is None or committed is None else committed - newest.end
    if newest is None and committed is not None:
        problems.append(f"group {scope.group} is at offset {committed}, but Dagster has no materialization")
    elif newest is not None and (drift != 0 or newest.topic_id != standing.topic_id):
        running = _running(scope, standing)
        if running is None:
            problems.append(_drift(scope, standing, newest))
        else:
            text = running
    return Finding(
        where=where,
        text="; ".join(problems) or text,
        numbers={
            keys.MATERIALIZATIONS: len(taken),
            keys.BREAKS: found,
            keys.LAST_END: None if newest is None else newest.end,
            keys.COMMITTED: committed,
            keys.DRIFT: drift,
        },
        passed=not problems,
    )


def _running(scope: Scope, standing: Waiting) -> str | None:
    """Describe the unfinished run that committed the group's offset; None if there is none."""
    stored = _metadata(standing)
    run = scope.instance.get_run_by_id(stored.run_id) if stored is not None else None
    if stored is None or run is None or run.is_finished or stored.topic_id != standing.topic_id:
        return None
    return f"run {stored.run_id} has committed up to offset {standing.offset} and is still running"


def _drift(scope: Scope, standing: Waiting, newest: Taken) -> str:
    """Describe the offsets of the group and of Dagster, the cause of the difference if known, and the fix."""
    group, where = scope.group, f"{standing.topic}/{standing.partition}"
    cli = f"kpipe offsets set {group} {standing.topic} --partition {standing.partition} --to"
    new = " --new-group" if standing.committed is None else ""
    if newest.topic_id != standing.topic_id:
        return (
            f"topic {standing.topic} was recreated since Dagster's last materialization ended at {newest.end}: its id "
            f"is {standing.topic_id}, and was {newest.topic_id}. To begin at the first record of the new topic: "
            f"{cli} earliest{new}; then materialize the partition"
        )
    back = f"reset the group to Dagster's offset: {cli} {max(newest.end, standing.watermarks.log_start)}{new}"
    if standing.committed is None:
        return (
            f"group {group} has no offset for {where}, and Dagster's last materialization ended at {newest.end}: the "
            f"offset expired or was deleted. To make them agree, materialize the partition; or {back}"
        )
    committed = standing.committed.offset
    stored = _metadata(standing)
    if stored is None:
        why = "a tool other than kpipe moved the group's offset"
    elif scope.instance.get_run_by_id(stored.run_id) is None:
        why = f"{stored.run_id}, which is not a run of this Dagster instance, moved the group's offset"
    else:
        taken = f"[{stored.start}, {committed})"
        why = f"run {stored.run_id} committed offsets {taken} and ended before it reported them to Dagster"
    return (
        f"group {group} is at offset {committed} of {where}, and Dagster's last materialization ended at {newest.end} "
        f"({committed - newest.end:+,}): {why}. To make them agree, {back}; or keep the group's offset and materialize "
        f"the partition, which then begins at {committed}"
    )


def _metadata(standing: Waiting) -> CommitMetadata | None:
    return None if standing.committed is None else standing.committed.metadata

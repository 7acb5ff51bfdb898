"""The candidates of a tick: broker facts combined with Dagster's runs, operators' pauses and partition ownership."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from kpipe_platform.errors import KpipeError
from kpipe_platform.io_managers.step import Step
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.model.slices import PlannedRange
from kpipe_platform.partitions.definition import partition_number
from kpipe_platform.partitions.pauses import paused, take_over
from kpipe_platform.sensors.tick.brokers import BrokerView
from kpipe_platform.sensors.tick.cursor import Cursor
from kpipe_platform.sensors.tick.decision import Candidate
from kpipe_platform.sensors.tick.growth import Growth, shrunk
from kpipe_platform.sensors.tick.in_flight import RunInFlight, failed_runs, failures_at, last_success_s
from kpipe_platform.slices.plan.ranges import PartitionFacts, PlanPolicy, plan_range

WHOLE = -1
"""Partition number that stands for an unpartitioned asset in the cursor."""


@dataclass(frozen=True)
class Target:
    """The asset that a sensor requests runs for.

    Args:
        key: Asset key; of a ``@kafka_multi_asset``, that of the first output.
        group: Its consumer group.
        policy: The policy that its slices are planned with.
        topics: The topics that it reads.
        outputs: The keys of all outputs of a ``@kafka_multi_asset``; empty: only ``key``.
    """

    key: dg.AssetKey
    group: str
    policy: PlanPolicy
    topics: tuple[str, ...]
    outputs: tuple[dg.AssetKey, ...] = ()


def make_candidates(
    instance: dg.DagsterInstance,
    target: Target,
    view: BrokerView,
    growth: Growth | None,
    running: Sequence[RunInFlight],
    owned: frozenset[Partition] | None,
    cursor: Cursor,
    now_s: float,
) -> list[Candidate]:
    """Return the candidates of a tick, in the order of the Dagster partitions.

    Args:
        instance: Dagster instance.
        target: The asset.
        view: The state on the brokers.
        growth: Dagster's partitions; None for an unpartitioned asset.
        running: Unfinished runs of the asset.
        owned: Kafka partitions that this deployment owns; None: all of them.
        cursor: The cursor of the last tick.
        now_s: The current time, seconds since the epoch.
    """
    facts = {(f.topic, f.partition): f for f in _with_earlier(instance, target, view, growth)}
    take_over(instance, target.key, target.group, target.topics)
    stops = paused(instance, target.key)
    busy = frozenset(key for run in running for key in run.keys)
    starts_late = target.policy.start == "latest"

    def candidate(key: str | None, numbers: Sequence[int]) -> Candidate:
        partitions = [(topic, number) for topic in target.topics for number in numbers]
        known = [facts[partition] for partition in partitions]
        ranges, problem = _planned(known, target.policy)
        in_cursor = WHOLE if key is None else numbers[0]
        return Candidate(
            number=None if key is None else numbers[0],
            ranges=ranges,
            problem=problem,
            in_flight=bool(running) if key is None else key in busy,
            paused=bool(stops) if key is None else numbers[0] in stops,
            owned=owned is None or all(partition in owned for partition in partitions),
            # Until the start is stored, "latest" would skip the records that are produced between two ticks.
            new_group=starts_late and problem is None and any(f.committed is None for f in known),
            first_seen_s=cursor.first_seen_s(in_cursor, place_of(ranges), now_s) if problem is None else 0.0,
        )

    if growth is None:
        found = [candidate(None, range(view.partitions))]
    else:
        found = []
        fewest = min(view.topics.values(), key=lambda topic: topic.partitions)
        for key in growth.keys:
            number = partition_number(key)
            if number < fewest.partitions:
                found.append(candidate(key, [number]))
            else:
                # It stays in the list, so that a run over a range does not include it with the adjacent partitions.
                problem = shrunk(fewest.name, number, fewest.partitions, growth.name)
                found.append(Candidate(number, problem=problem))
    return _with_failures(instance, target, found)


def _with_earlier(
    instance: dg.DagsterInstance, target: Target, view: BrokerView, growth: Growth | None
) -> list[PartitionFacts]:
    """Add the last materialization to the facts of partitions without a group offset.

    The materialization holds a second copy of the offset, which shows whether the group had one.
    """
    if all(f.committed is not None for f in view.facts):
        return list(view.facts)
    # One query for all partitions of a new group, most of which were never materialized.
    known = None if growth is None else instance.get_materialized_partitions(target.key)

    def last_materialization(f: PartitionFacts) -> PartitionFacts:
        if f.committed is not None or (known is not None and str(f.partition) not in known):
            return f
        keys = None if growth is None else (str(f.partition),)
        step = Step(target.key, target.group, "", "", 1, keys, instance)
        return replace(f, last_materialization=step.earlier((f.topic, f.partition)))

    return [last_materialization(f) for f in view.facts]


def _planned(facts: Sequence[PartitionFacts], policy: PlanPolicy) -> tuple[tuple[PlannedRange, ...], KpipeError | None]:
    """Return the ranges that a run would process, or the reason that it cannot be planned."""
    try:
        return tuple([plan_range(f, policy) for f in facts]), None
    except KpipeError as problem:
        return (), problem


def place_of(ranges: Sequence[PlannedRange]) -> int:
    """Return the sum of a group's offsets: it changes with any of the offsets, but not with the log start."""
    return sum(planned.committed or 0 for planned in ranges)


def _with_failures(instance: dg.DagsterInstance, target: Target, candidates: Sequence[Candidate]) -> list[Candidate]:
    wants = [c.waiting_offsets > 0 or c.must_move for c in candidates]
    if not any(wants):
        return list(candidates)
    failed = failed_runs(instance, target.group)

    def success_of(c: Candidate) -> Callable[[], float | None]:
        return lambda: last_success_s(instance, target.key, None if c.number is None else str(c.number))

    def committed_of(c: Candidate) -> Mapping[Partition, int | None]:
        return {(p.range.topic, p.range.partition): p.committed for p in c.ranges}

    return [
        replace(c, failures=failures_at(failed, committed_of(c), success_of(c))) if wanted and failed else c
        for c, wanted in zip(candidates, wants, strict=True)
    ]

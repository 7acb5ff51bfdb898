"""Unfinished runs of an asset: those that its sensor requested, and all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

import dagster as dg

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.model.slices import PlannedRange
from kpipe_platform.resources._compat import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
)

GROUP = "kpipe/group"
"""Run tag: consumer group of the asset."""
RANGES = "kpipe/ranges"
"""Run tag: the offset ranges that the tick saw, ``{"orders": {"3": [100, 250]}}``. The run itself plans again.

If offsets before the first were lost, a third number is the group's offset: ``[100, 250, 60]``. Partitions that do not
fit are stored in ``kpipe/ranges.2``, ``kpipe/ranges.3`` and so on, in the same form.
"""

# Dagster's storages index tags by their value. PostgreSQL allows about 2,600 bytes for key and value together.
_LONGEST_VALUE = 2_000
_LONGEST_KEY = 200


def tags_of_ranges(planned: Iterable[PlannedRange]) -> dict[str, str]:
    """Convert offset ranges to tags, each of bounded size."""
    parts: list[dict[str, dict[str, list[int]]]] = [{}]
    size = 0
    for each in sorted(planned, key=lambda p: p.range):
        r, lost_from = each.range, [] if each.lost is None else [each.lost.start]
        numbers = [r.start, r.end, *lost_from]
        needed = len(f'"{r.topic}":{{"{r.partition}":{numbers}}},')
        if size + needed > _LONGEST_VALUE and parts[-1]:
            parts.append({})
            size = 0
        parts[-1].setdefault(r.topic, {})[str(r.partition)] = numbers
        size += needed
    return {_nth(number): json.dumps(part, separators=(",", ":")) for number, part in enumerate(parts, 1)}


def _nth(number: int) -> str:
    return RANGES if number == 1 else f"{RANGES}.{number}"


def bounded(text: str, head: str | None = None) -> str:
    """Shorten a text to the size of an indexed tag value. A long text ends in a digest of the whole text.

    Args:
        text: The text.
        head: Text before the digest; None: the beginning of ``text``.
    """
    if len(text) <= _LONGEST_KEY:
        return text
    digest = f"[{hashlib.sha256(text.encode()).hexdigest()[:32]}]"
    return (text if head is None else head)[: _LONGEST_KEY - len(digest)] + digest


@dataclass(frozen=True)
class RequestedRange:
    """The offsets of one partition that a run was requested for.

    Args:
        start: First offset to read.
        end: Offset after the last.
        committed: The group's offset; ``start`` if the group had none.
    """

    start: int
    end: int
    committed: int


def requested_ranges(tags: Mapping[str, str]) -> dict[Partition, RequestedRange]:
    """Return the offsets that a run was requested for, by partition; empty if no sensor wrote the tags."""
    texts = [tags[name] for name in takewhile(tags.__contains__, map(_nth, count(1)))]
    try:
        return {
            (topic, int(number)): RequestedRange(int(start), int(end), int(lost_from[0] if lost_from else start))
            for text in texts
            for topic, numbers in json.loads(text or "{}").items()
            for number, (start, end, *lost_from) in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def requested_runs(instance: dg.DagsterInstance, group: str) -> dict[Partition, list[str]]:
    """Return the unfinished runs that an asset's sensor requested. A manual run lacks the tags and is not included.

    Args:
        instance: Dagster instance.
        group: Consumer group of the asset.

    Returns:
        Run ids by (topic, partition).
    """
    found: dict[Partition, list[str]] = {}
    for run in instance.get_runs(dg.RunsFilter(tags={GROUP: group}, statuses=NOT_FINISHED_STATUSES)):
        for place in requested_ranges(run.tags):
            found.setdefault(place, []).append(run.run_id)
    return found


@dataclass(frozen=True)
class RunInFlight:
    """An unfinished run: queued, starting, started, or being terminated.

    Args:
        run_id: Dagster run.
        keys: The Dagster partitions that it processes.
    """

    run_id: str
    keys: frozenset[str]


def runs_in_flight(instance: dg.DagsterInstance, asset_key: dg.AssetKey, keys: Sequence[str]) -> list[RunInFlight]:
    """Return all unfinished runs of an asset, however they were started.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        keys: The asset's Dagster partitions in order; empty for an unpartitioned asset.
    """
    found = []
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        # The selection is empty for in-process materializations, and for runs that only execute checks.
        if run.asset_selection:
            if asset_key not in run.asset_selection:
                continue
            taken = _keys_of(run.tags, keys)
        else:
            # The run of a complete job: its planned materializations were recorded when the run was created.
            planned = _planned_keys(instance, run.run_id, asset_key)
            if planned is None:
                continue
            taken = planned or _keys_of(run.tags, keys)
        found.append(RunInFlight(run.run_id, taken))
    return found


def _keys_of(tags: Mapping[str, str], keys: Sequence[str]) -> frozenset[str]:
    """Return the partitions that a run's tags name; all partitions if the tags name no partition or unknown ones."""
    if PARTITION_NAME_TAG in tags:
        return frozenset([tags[PARTITION_NAME_TAG]])
    first, last = tags.get(ASSET_PARTITION_RANGE_START_TAG), tags.get(ASSET_PARTITION_RANGE_END_TAG)
    if first in keys and last in keys:
        return frozenset(keys[keys.index(str(first)) : keys.index(str(last)) + 1])
    return frozenset(keys)


def _planned_keys(instance: dg.DagsterInstance, run_id: str, asset_key: dg.AssetKey) -> frozenset[str] | None:
    """Return the partitions of an asset that a run plans to materialize.

    The result is empty if the plan names no partitions, and None if the run does not materialize the asset.
    """
    keys, is_planned = set[str](), False
    connection = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    for record in connection.records:
        event = record.event_log_entry.dagster_event
        if event is None or event.asset_materialization_planned_data.asset_key != asset_key:
            continue
        is_planned, data = True, event.asset_materialization_planned_data
        if data.partitions_subset is not None:
            keys.update(map(str, data.partitions_subset.get_partition_keys()))
        elif data.partition is not None:
            keys.add(data.partition)
    return frozenset(keys) if is_planned else None

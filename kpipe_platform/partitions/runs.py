"""Unfinished runs of an asset: those that its sensor asked for, and all of them."""

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
"""Run tag: the offsets that the tick saw, ``{"orders": {"3": [100, 250]}}``. The run itself plans anew.

Where offsets before the first were lost, a third number is the group's offset: ``[100, 250, 60]``. Partitions that do
not fit stand in ``kpipe/ranges.2``, ``kpipe/ranges.3`` and so on, in the same form.
"""

# Dagster's storages index tags by their value. PostgreSQL takes some 2,600 bytes of key and value together.
_LONGEST_VALUE = 2_000
_LONGEST_KEY = 200


def tags_of_ranges(planned: Iterable[PlannedRange]) -> dict[str, str]:
    """Offset ranges as tags of bounded size each."""
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
    """A text as the value of a tag that runs are found by; a long one ends in its digest.

    Args:
        text: The text.
        head: What stands before the digest; None: the beginning of the text.
    """
    if len(text) <= _LONGEST_KEY:
        return text
    digest = f"[{hashlib.sha256(text.encode()).hexdigest()[:32]}]"
    return (text if head is None else head)[: _LONGEST_KEY - len(digest)] + digest


@dataclass(frozen=True)
class AskedRange:
    """The offsets of one partition that a run was asked for.

    Args:
        start: First offset that was to be read.
        end: Offset behind the last.
        committed: The group's offset; for a group that had none the start.
    """

    start: int
    end: int
    committed: int


def asked_ranges(tags: Mapping[str, str]) -> dict[Partition, AskedRange]:
    """What a run was asked for, by partition; nothing where no sensor wrote the tags."""
    texts = [tags[name] for name in takewhile(tags.__contains__, map(_nth, count(1)))]
    try:
        return {
            (topic, int(number)): AskedRange(int(start), int(end), int(lost_from[0] if lost_from else start))
            for text in texts
            for topic, numbers in json.loads(text or "{}").items()
            for number, (start, end, *lost_from) in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def asked_for(instance: dg.DagsterInstance, group: str) -> dict[Partition, list[str]]:
    """Unfinished runs of an asset's sensor. A run that somebody started by hand has no such tags and is not among them.

    Args:
        instance: Dagster instance.
        group: Consumer group of the asset.

    Returns:
        Run ids by (topic, partition).
    """
    found: dict[Partition, list[str]] = {}
    for run in instance.get_runs(dg.RunsFilter(tags={GROUP: group}, statuses=NOT_FINISHED_STATUSES)):
        for place in asked_ranges(run.tags):
            found.setdefault(place, []).append(run.run_id)
    return found


@dataclass(frozen=True)
class RunInFlight:
    """A run that is not finished: queued, starting, at work, or being terminated.

    Args:
        run_id: Dagster run.
        keys: The Dagster partitions that it takes.
    """

    run_id: str
    keys: frozenset[str]


def runs_in_flight(instance: dg.DagsterInstance, asset_key: dg.AssetKey, keys: Sequence[str]) -> list[RunInFlight]:
    """The unfinished runs of an asset, whoever started them.

    Args:
        instance: Dagster instance.
        asset_key: The asset.
        keys: The asset's Dagster partitions in their order; empty for an unpartitioned asset.
    """
    found = []
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        # Empty where assets were materialised in a process, and where a run only checks some.
        if run.asset_selection:
            if asset_key not in run.asset_selection:
                continue
            taken = _keys_of(run.tags, keys)
        else:
            # A job, started whole: what it plans was recorded when it was made.
            planned = _planned_keys(instance, run.run_id, asset_key)
            if planned is None:
                continue
            taken = planned or _keys_of(run.tags, keys)
        found.append(RunInFlight(run.run_id, taken))
    return found


def _keys_of(tags: Mapping[str, str], keys: Sequence[str]) -> frozenset[str]:
    """The partitions that a run's tags name; all of them where they name none that is known."""
    if PARTITION_NAME_TAG in tags:
        return frozenset([tags[PARTITION_NAME_TAG]])
    first, last = tags.get(ASSET_PARTITION_RANGE_START_TAG), tags.get(ASSET_PARTITION_RANGE_END_TAG)
    if first in keys and last in keys:
        return frozenset(keys[keys.index(str(first)) : keys.index(str(last)) + 1])
    return frozenset(keys)


def _planned_keys(instance: dg.DagsterInstance, run_id: str, asset_key: dg.AssetKey) -> frozenset[str] | None:
    """The partitions of an asset that a run is to materialize, as far as it names them; None where it is to do none."""
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

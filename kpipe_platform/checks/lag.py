"""Check whether an asset is behind its topic: its lag in offsets, and the age of the oldest unread record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.assets.source import Source
from kpipe_platform.checks.findings import Finding
from kpipe_platform.checks.partitions import CheckOptions, Scope, make_check
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.read.samples import OldestRecord, oldest_records
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.policies.bounds import is_count, is_positive
from kpipe_platform.slices.plan.lag import Waiting


def lag_check(
    asset: dg.AssetsDefinition,
    *,
    max_lag: int | None = None,
    max_age_s: float | None = None,
    name: str | None = None,
    source: Source | Sequence[Source] | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    partitioned: bool = True,
    resource_key: str = "kafka_io_manager",
    clock: Callable[[], float] = time.time,
) -> dg.AssetChecksDefinition:
    """Create a check that fails if a partition's lag is too large or its oldest unread record is too old.

    Args:
        asset: The Kafka asset.
        max_lag: Maximum lag of one partition, in offsets, which is at least the number of records; None: no limit.
        max_age_s: Maximum age of the oldest unread record, seconds, by the record's timestamp; None: no limit, and no
            record is read. If the record has no timestamp, its age is unknown and the partition fails with severity
            WARN.
        name: Name of the check; None: lag.
        source: The topic asset(s) that the asset reads; None: found from the asset's inputs, or in its last
            materialization. A check that runs without the asset, before the first materialization, needs it.
        severity: Severity of a failure. An unknown result fails with severity WARN.
        blocking: Whether downstream assets wait for the check.
        partitioned: Whether Dagster keeps a result for each partition. False: one check for the whole asset, which a
            schedule can run without a partition.
        resource_key: Resource key of the KafkaSource that the asset is read with, or of the KafkaIOManager that has it.
        clock: Seconds since the epoch; injected for tests.

    Returns:
        The check ``lag``. Numbers per partition: committed (null for a group without an offset), log_end, lag,
        oldest_offset, oldest_age_s.

    Raises:
        ConfigError: Neither limit is given, or a limit is invalid.
    """
    if max_lag is None and max_age_s is None:
        msg = f"lag_check({leading_key(asset).to_user_string()}) has no limit"
        raise ConfigError(msg, fix="set max_lag, max_age_s or both")
    if not (max_lag is None or is_count(max_lag, 0)) or not (max_age_s is None or is_positive(max_age_s)):
        msg = f"lag_check: max_lag is {max_lag} and max_age_s is {max_age_s}; a limit is out of range"
        raise ConfigError(msg, fix="set max_lag to 0 or more offsets, and max_age_s to more than 0 seconds")

    def evaluate(scope: Scope) -> list[Finding]:
        source = scope.find_source()
        with source.clients() as clients:
            standings = scope.waiting(clients)
            oldest: dict[tuple[str, int], OldestRecord | None] = {}
            if max_age_s is not None:
                ranges = [standing.readable for standing in standings]
                oldest = oldest_records(clients, scope.group, ranges, source.isolation)
        now_ms = int(clock() * 1000)
        return [_finding(s, oldest.get((s.topic, s.partition)), now_ms, max_lag, max_age_s) for s in standings]

    bounds = [f"the lag is at most {max_lag:,} offsets"] if max_lag is not None else []
    if max_age_s is not None:
        bounds.append(f"no unread record is older than {max_age_s:g} s")
    return make_check(
        asset,
        "lag",
        f"In each partition, {' and '.join(bounds)}.",
        evaluate,
        CheckOptions(name, source, severity, blocking, partitioned, resource_key),
    )


def _finding(
    standing: Waiting, oldest: OldestRecord | None, now_ms: int, max_lag: int | None, max_age_s: float | None
) -> Finding:
    lag = standing.lag
    age_s = None
    if oldest is not None and oldest.timestamp_ms is not None:
        # If the producer's clock is ahead, count the age as 0.
        age_s = max((now_ms - oldest.timestamp_ms) / 1000, 0.0)
    problems = []
    if max_lag is not None and lag > max_lag:
        problems.append(f"lag {lag:,} offsets, {lag - max_lag:,} above the limit of {max_lag:,}")
    if max_age_s is not None and age_s is not None and age_s > max_age_s:
        record = f"the oldest unread record, at offset {oldest and oldest.offset},"
        problems.append(f"{record} is {age_s:,.1f} s old, limit {max_age_s:g} s")
    known = oldest is None or oldest.timestamp_ms is not None
    text = "; ".join(problems) or _lag_text(lag, age_s)
    if oldest is not None and not known:
        text += f"; the record at offset {oldest.offset} has no timestamp, so its age is unknown"
    return Finding(
        where=f"{standing.topic}/{standing.partition}",
        text=text,
        numbers={
            keys.COMMITTED: None if standing.committed is None else standing.committed.offset,
            keys.LOG_END: standing.watermarks.end,
            keys.LAG: lag,
            keys.OLDEST_OFFSET: None if oldest is None else oldest.offset,
            keys.OLDEST_AGE_S: None if age_s is None else round(age_s, 3),
        },
        passed=not problems,
        known=known,
    )


def _lag_text(lag: int, age_s: float | None) -> str:
    if not lag:
        return "no lag"
    return f"lag {lag:,} offsets" + ("" if age_s is None else f", the oldest unread record is {age_s:,.1f} s old")

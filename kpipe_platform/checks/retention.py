"""Check whether retention will delete records before the asset reads them: the time to loss of each partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.assets.source import Source
from kpipe_platform.checks.findings import Finding
from kpipe_platform.checks.partitions import CheckOptions, Scope, make_check
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.admin.retention import TimeToLoss, time_to_loss, topic_retention
from kpipe_platform.kafka.read.samples import SAMPLE_RECORDS, oldest_records
from kpipe_platform.policies.bounds import is_positive
from kpipe_platform.slices.plan.lag import Waiting


def retention_check(
    asset: dg.AssetsDefinition,
    *,
    min_time_to_loss_s: float,
    name: str | None = None,
    source: Source | Sequence[Source] | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    blocking: bool = False,
    partitioned: bool = True,
    resource_key: str = "kafka_io_manager",
    clock: Callable[[], float] = time.time,
) -> dg.AssetChecksDefinition:
    """Create a check that fails if retention will soon delete unread records, or has already deleted some.

    The time to loss is the earliest time until the record at the group's offset is deleted. For retention by time, it
    follows from the record's timestamp and ``retention.ms``. For retention by size, it follows from
    ``retention.bytes``, the lag, a sample of unread records and their arrival rate. It is infinite if retention is
    off, the topic is only compacted, or there is no lag.

    Args:
        asset: The Kafka asset.
        min_time_to_loss_s: Minimum time to loss, seconds.
        name: Name of the check; None: retention.
        source: The topic asset(s) that the asset reads; None: found from the asset's inputs, or in its last
            materialization. A check that runs without the asset, before the first materialization, needs it.
        severity: Severity of a failure. An unknown result fails with severity WARN.
        blocking: Whether downstream assets wait for the check.
        partitioned: Whether Dagster keeps a result for each partition. False: one check for the whole asset, which a
            schedule can run without a partition.
        resource_key: Resource key of the KafkaSource that the asset is read with, or of the KafkaIOManager that has it.
        clock: Seconds since the epoch; injected for tests.

    Returns:
        The check ``retention``. Numbers per partition: committed, log_start, lag, offsets_lost (deleted unread),
        time_to_loss_s (seconds, "never", or null if unknown), retention.

    Raises:
        ConfigError: The time is not above 0.
    """
    if not is_positive(min_time_to_loss_s):
        msg = f"retention_check: min_time_to_loss_s is {min_time_to_loss_s!r}, not a finite number above 0"
        raise ConfigError(msg, fix="set min_time_to_loss_s to a number of seconds, for example 86400 for a day")

    def evaluate(scope: Scope) -> list[Finding]:
        source = scope.find_source()
        findings = []
        with source.clients() as clients:
            for topic in scope.find_topics():
                retention = topic_retention(clients, topic)
                standings = scope.waiting(clients, [topic])
                ranges = [] if retention.is_off else [standing.readable for standing in standings]
                sample = 1 if retention.retention_bytes is None else SAMPLE_RECORDS
                oldest = oldest_records(clients, scope.group, ranges, source.isolation, sample=sample)
                now_ms = int(clock() * 1000)
                for standing in standings:
                    loss = time_to_loss(
                        retention,
                        offset=standing.offset,
                        watermarks=standing.watermarks,
                        oldest=oldest.get((topic, standing.partition)),
                        now_ms=now_ms,
                    )
                    findings.append(_finding(standing, loss, str(retention), min_time_to_loss_s))
        return findings

    description = f"In each partition, retention deletes no unread record within the next {min_time_to_loss_s:g} s."
    return make_check(
        asset,
        "retention",
        description,
        evaluate,
        CheckOptions(name, source, severity, blocking, partitioned, resource_key),
    )


def _finding(standing: Waiting, loss: TimeToLoss, retention: str, least_s: float) -> Finding:
    if loss.lost:
        text = f"{loss.lost:,} {loss.why}"
    elif loss.seconds is None:
        text = f"the time to loss is unknown: {loss.why}"
    elif loss.seconds < least_s:
        text = (
            f"offset {standing.offset} may be deleted in {loss.seconds:,.1f} s, limit {least_s:g} s, with "
            f"a lag of {standing.lag:,} offsets ({loss.why})"
        )
    else:
        shown = loss.shown()
        text = f"no record will be deleted unread ({loss.why})"
        if not isinstance(shown, str):
            text = f"the time to loss is {shown:,} s ({loss.why})"
    return Finding(
        where=f"{standing.topic}/{standing.partition}",
        text=text,
        numbers={
            keys.COMMITTED: None if standing.committed is None else standing.committed.offset,
            keys.LOG_START: standing.watermarks.log_start,
            keys.LAG: standing.lag,
            keys.OFFSETS_LOST: loss.lost,
            keys.TIME_TO_LOSS_S: loss.shown(),
            keys.RETENTION: retention,
        },
        passed=loss.seconds is None or loss.seconds >= least_s,
        known=loss.seconds is not None,
    )

"""``kafka_offset_sensor``: requests runs for the partitions of an asset with new offsets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import dagster as dg

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.deadline import Deadline
from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.partitions.groups import leading_key
from kpipe_platform.policies.bounds import is_positive
from kpipe_platform.sensors.ownership import PartitionShare
from kpipe_platform.sensors.tick.backpressure import Backpressure
from kpipe_platform.sensors.tick.decision import Rules
from kpipe_platform.sensors.tick.evaluate import OffsetTick, Ownership


def kafka_offset_sensor(
    target: dg.AssetsDefinition,
    *,
    name: str | None = None,
    min_records: int = 1,
    max_wait_s: float | None = None,
    max_runs_per_tick: int | None = None,
    backpressure: Backpressure | tuple[dg.AssetsDefinition | dg.AssetKey | str, int] | None = None,
    partitions_per_run: int = 1,
    max_attempts: int = 5,
    retry_delay_s: float = 30.0,
    retry_max_delay_s: float = 900.0,
    deadline_s: float = 10.0,
    ownership: Ownership | Callable[[], frozenset[Partition] | None] | None = None,
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    resource_key: str = "kafka_io_manager",
    description: str | None = None,
    clock: Callable[[], float] = time.time,
) -> dg.SensorDefinition:
    """Create a sensor that requests a run for each partition of an asset with new offsets.

    The sensor decides from the group's committed offsets and never moves them. If the asset has dynamic partitions,
    each tick registers new Kafka partitions as Dagster partitions and requests runs for them from their first offset.

    Args:
        target: A ``@kafka_asset``, or a plain asset that reads a topic asset.
        name: Sensor name; None: the asset key joined by ``__``, followed by ``_offsets``.
        min_records: Minimum lag of a partition, in offsets, before a run is requested. Transaction markers count.
            Default 1.
        max_wait_s: Time after which a run is requested for a smaller lag, seconds since the oldest offset was first
            seen; None: never.
        max_runs_per_tick: Maximum number of runs to request per tick; None: as many as the scaling allows.
        backpressure: ``(asset, max_lag)``: request no runs while the lag of a downstream asset, which reads the
            target's output, exceeds ``max_lag`` offsets.
        partitions_per_run: Maximum number of adjacent partitions per run, 1 to 1,000. More than 1 requires
            ``backfill_policy=BackfillPolicy.single_run()``. Default 1.
        max_attempts: Number of failed runs at the same offset after which the sensor reports the partition and
            requests no more runs, until the offset moves or the partition is materialized manually. Default 5.
        retry_delay_s: Wait after the first failed run, seconds. It doubles after each further failure. Default 30.
        retry_max_delay_s: Maximum wait, seconds. Default 900.
        deadline_s: Maximum time for a tick's broker calls, seconds. After that, the tick is skipped with the reason.
            Default 10.
        ownership: Returns the partitions of this deployment: an object with ``owned()``, or a function. The sensor
            requests no runs for other partitions, and none at all while it returns None. None:
            ``KafkaSource(ownership=...)``, by default all partitions.
        minimum_interval_seconds: Minimum time between ticks, seconds. Default 5.
        default_status: Whether the sensor starts automatically. Default ``STOPPED``.
        resource_key: Resource key of the KafkaSource that the asset is read with, or of the KafkaIOManager that has it.
        description: Text for the UI.
        clock: Seconds since the epoch; injected for tests.

    Raises:
        ConfigError: An argument is invalid, or the asset cannot process several partitions in one run.
    """
    if not is_positive(deadline_s):
        msg = f"kafka_offset_sensor: deadline_s is {deadline_s}, not a finite number above 0"
        raise ConfigError(msg, fix="set deadline_s to a number of seconds, for example 10")
    rules = partial(
        _rules,
        min_records=min_records,
        max_wait_s=max_wait_s,
        max_runs_per_tick=max_runs_per_tick,
        partitions_per_run=partitions_per_run,
        max_attempts=max_attempts,
        retry_delay_s=retry_delay_s,
        retry_max_delay_s=retry_max_delay_s,
    )
    # Validate now, not in the first tick.
    rules(1)
    _check_range_runs(target, partitions_per_run)
    if isinstance(backpressure, tuple):
        backpressure = Backpressure.of(*backpressure)
    shown = leading_key(target).to_user_string()
    tick = OffsetTick(
        asset=target,
        rules=rules,
        backpressure=backpressure,
        ownership=ownership,
        share=PartitionShare(target, minimum_interval_seconds),
        deadline=Deadline(deadline_s, f"read the offsets of {shown}"),
        deadline_s=deadline_s,
        resource_key=resource_key,
        clock=clock,
    )

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return tick.evaluate(context)

    return dg.SensorDefinition(
        name=name or "__".join(leading_key(target).path) + "_offsets",
        evaluation_fn=evaluate,
        asset_selection=dg.AssetSelection.assets(*target.keys),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={resource_key},
        description=description or f"Requests runs of {shown} for partitions with new offsets.",
    )


def _rules(
    partitions_at_once: int,
    *,
    min_records: int,
    max_wait_s: float | None,
    max_runs_per_tick: int | None,
    partitions_per_run: int,
    max_attempts: int,
    retry_delay_s: float,
    retry_max_delay_s: float,
) -> Rules:
    return Rules(
        min_records=min_records,
        max_wait_s=max_wait_s,
        max_runs_per_tick=max_runs_per_tick,
        partitions_per_run=partitions_per_run,
        partitions_at_once=partitions_at_once,
        max_attempts=max_attempts,
        retry_delay_s=retry_delay_s,
        retry_max_delay_s=retry_max_delay_s,
    )


def _check_range_runs(target: dg.AssetsDefinition, partitions_per_run: int) -> None:
    if partitions_per_run == 1:
        return
    shown = leading_key(target).to_user_string()
    if target.partitions_def is None or target.backfill_policy != dg.BackfillPolicy.single_run():
        msg = (
            f"kafka_offset_sensor(partitions_per_run={partitions_per_run}): asset {shown} "
            "cannot process several partitions in one run"
        )
        raise ConfigError(
            msg, fix="add backfill_policy=dg.BackfillPolicy.single_run() to @kafka_asset, or omit partitions_per_run"
        )

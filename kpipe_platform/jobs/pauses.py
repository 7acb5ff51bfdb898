"""Pausing and resuming partitions as a Dagster job, for operators who have the UI and no shell."""

# No `from __future__ import annotations`: Dagster reads the classes of an op's arguments, not their names.
from collections.abc import Container, Sequence
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from kpipe_platform.assets.topics_read import topics_read
from kpipe_platform.errors import ConfigError
from kpipe_platform.partitions import pauses
from kpipe_platform.partitions.groups import known_reads, leading_key, parse_asset, reads_of
from kpipe_platform.resources._compat import repository_of_op
from kpipe_platform.resources.known_names import KnownNames


class PauseConfig(KnownNames):
    """The partitions of an asset to pause or to resume."""

    asset: str = Field(description="asset key as the UI shows it: orders_priced, shop/orders_priced")
    partitions: list[int] = Field(
        description="Kafka partition numbers; any one of them pauses an asset without Dagster partitions"
    )
    action: Literal["pause", "resume"] = Field(default="pause", description="pause or resume")
    reason: str | None = Field(default=None, description="reason of the pause, for other operators")


def pause_job(*, name: str = "pause_partitions", **job_options: Any) -> dg.JobDefinition:
    """Create a job that pauses or resumes partitions, as ``kpipe partitions pause`` and ``resume`` do.

    Sensors request no runs of a paused partition. Runs in flight finish, and manual runs still start. The job rejects
    an asset that is neither defined in its code location nor in Dagster's records.

    Args:
        name: Name of the job.
        **job_options: Further arguments of ``dagster.job``.

    Returns:
        The job; its one op, ``pause``, takes a `PauseConfig`.
    """

    @dg.op(name="pause")
    def pause_op(context: dg.OpExecutionContext, config: PauseConfig) -> None:
        key = parse_asset(config.asset)
        key = _checked(context, key, config)
        for number in config.partitions:
            if config.action == "pause":
                changed = pauses.pause(context.instance, key, number, config.reason)
            else:
                changed = pauses.resume(context.instance, key, number)
            done = f"{config.action}d" if changed else "unchanged"
            context.log.info("asset %s, partition %s: %s", key.to_user_string(), number, done)

    @dg.job(name=name, description=job_options.pop("description", "Pauses or resumes partitions."), **job_options)
    def pausing() -> None:
        pause_op()

    return pausing


def _checked(context: dg.OpExecutionContext, key: dg.AssetKey, config: PauseConfig) -> dg.AssetKey:
    """Reject an unknown asset and unknown partitions, before any partition is paused.

    Returns:
        The asset that has the pauses: of a ``@kafka_multi_asset``, the first one.

    Raises:
        ConfigError: The asset is unknown, does not read a topic, or does not have the partitions.
    """
    shown = key.to_user_string()
    if not config.partitions:
        msg = f"PauseConfig(asset={shown!r}) has no partitions"
        raise ConfigError(msg, fix="list the Kafka partitions, for example partitions: [0, 1]", asset=shown)
    instance = context.instance
    repository = repository_of_op(context)
    definitions = {} if repository is None else repository.assets_defs_by_key
    definition = definitions.get(key)
    reads = reads_of(instance, key)
    if definition is not None:
        key = leading_key(definition)
    elif reads is not None:
        key = reads.first or key
    if reads is not None:
        pauses.take_over(instance, key, reads.group, reads.topics)
    # A paused partition can always be resumed, even if the asset or the partition no longer exists.
    if config.action == "resume" and pauses.paused(instance, key).keys() >= set(config.partitions):
        return key
    if definition is not None:
        topics_read(definition, repository)
    elif reads is None:
        # Neither this code location nor Dagster's records have the asset: raise an error with similar names.
        known_reads(
            instance, key, also=definitions, fix="if the asset has not run yet, run the job in its code location"
        )
    _check_partitions(shown, config.partitions, _partitions(definition, instance))
    return key


def _partitions(definition: dg.AssetsDefinition | None, instance: dg.DagsterInstance) -> Sequence[str] | None:
    """Return an asset's Dagster partitions; None if they are not known yet, or if it has none."""
    if definition is None or definition.partitions_def is None:
        return None
    with dg.partition_loading_context(dynamic_partitions_store=instance):
        # The first tick registers dynamic partitions. It may not have run yet.
        return definition.partitions_def.get_partition_keys() or None


def _check_partitions(asset: str, wanted: Sequence[int], known: Container[str] | None) -> None:
    for number in wanted:
        if number < 0 or (known is not None and str(number) not in known):
            msg = f"asset {asset} has no partition {number}"
            raise ConfigError(msg, fix="use one of the partitions that the UI shows for the asset", asset=asset)

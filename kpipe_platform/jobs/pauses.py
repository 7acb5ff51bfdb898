"""Pausing and resuming partitions as a Dagster job, for operators who have the UI and no shell."""

# No `from __future__ import annotations`: Dagster reads the classes of an op's arguments, not their names.
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from kpipe_platform.errors import ConfigError
from kpipe_platform.partitions import pauses
from kpipe_platform.partitions.groups import is_known
from kpipe_platform.resources.known_names import KnownNames


class PauseConfig(KnownNames):
    """Which partitions, and what is to become of them."""

    group: str = Field(description="consumer group of the asset: the source's group_prefix, a dot, the asset's key")
    topic: str = Field(description="the topic that the asset reads")
    partitions: list[int] = Field(description="Kafka partitions")
    action: Literal["pause", "resume"] = Field(default="pause", description="pause, or resume")
    reason: str | None = Field(default=None, description="why, for whoever looks at it")
    new_group: bool = Field(
        default=False, description="the asset has not run yet; else a group without a run is refused"
    )


def pause_job(*, name: str = "pause_partitions", **job_options: Any) -> dg.JobDefinition:
    """A job that pauses or resumes partitions; what ``kpipe partitions pause`` and ``resume`` do.

    A paused partition is asked for by no sensor; runs in flight finish, and a run that is started by hand is taken.

    Args:
        name: Name of the job.
        **job_options: Further arguments of ``dagster.job``.

    Returns:
        The job; its one op, ``pause``, takes a `PauseConfig`.
    """

    @dg.op(name="pause")
    def pause_op(context: dg.OpExecutionContext, config: PauseConfig) -> None:
        if not config.partitions:
            msg = f"no partition of topic {config.topic!r} is named"
            raise ConfigError(msg, fix="partitions: [0, 1]")
        stopped = pauses.paused(context.instance, config.group, config.topic)
        if not (config.new_group or stopped or is_known(context.instance, config.group, config.topic)):
            msg = (
                f"no run and no materialisation in this Dagster says that group {config.group!r} reads {config.topic!r}"
            )
            fix = (
                "correct the group: the source's group_prefix, a dot, and the asset's key joined by dots; for an asset "
            )
            raise ConfigError(msg, fix=f"{fix}that has not run yet: new_group: true", group=config.group)
        for number in config.partitions:
            if config.action == "pause":
                changed = pauses.pause(context.instance, config.group, config.topic, number, config.reason)
            else:
                changed = pauses.resume(context.instance, config.group, config.topic, number)
            context.log.info(
                "%s/%s of group %s: %s",
                config.topic,
                number,
                config.group,
                f"{config.action}d" if changed else "as it was",
            )

    @dg.job(name=name, description=job_options.pop("description", "Pauses or resumes partitions."), **job_options)
    def pausing() -> None:
        pause_op()

    return pausing

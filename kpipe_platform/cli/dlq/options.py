"""Options that the commands of `kpipe dlq` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kpipe_platform.dead_letters.read.filters import DeadLetterFilter

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Consumer group that stores the redrive progress.",
        show_default="TOPIC.redrive",
    ),
]
DeadLetterPartitions = Annotated[
    list[int] | None,
    typer.Option("--dlq-partition", min=0, help="Partition of the dead-letter topic; repeatable."),
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="PATTERN", help="Original topic; repeatable.")]
Partitions = Annotated[list[int] | None, typer.Option("--partition", min=0, help="Original partition; repeatable.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Dead-lettered at or after this time, such as 2026-01-31T06:00:00Z.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Dead-lettered before this time.")]
Exceptions = Annotated[
    list[str] | None,
    typer.Option("--exception", metavar="PATTERN", help="Exception or cause, with or without module; repeatable."),
]
Rules = Annotated[
    list[str] | None, typer.Option("--rule", metavar="PATTERN", help="Rule that failed, or kind of fault; repeatable.")
]
Assets = Annotated[
    list[str] | None,
    typer.Option("--asset", metavar="PATTERN", help="Asset, connector or group that wrote it; repeatable."),
]
At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="PARTITION@OFFSET", help="One dead letter; repeatable."),
]


def filter_from(
    topics: list[str] | None,
    partitions: list[int] | None,
    since: str | None,
    until: str | None,
    exceptions: list[str] | None,
    rules: list[str] | None,
    assets: list[str] | None,
    at: list[str] | None,
) -> DeadLetterFilter:
    """Return the filter for the values of a command's options.

    Raises:
        ConfigError: A time, or a value of ``--at``, is invalid.
    """
    from kpipe_platform.dead_letters.read.filters import make_filter

    return make_filter(
        topics=topics or (),
        partitions=partitions or (),
        since=since,
        until=until,
        exceptions=exceptions or (),
        rules=rules or (),
        assets=assets or (),
        places=at or (),
    )


def group_of(topic: str, group: str | None) -> str:
    """Return the consumer group that stores the redrive progress of a dead-letter topic."""
    from kpipe_platform.dead_letters.redrive.options import redrive_group

    return group or redrive_group(topic)

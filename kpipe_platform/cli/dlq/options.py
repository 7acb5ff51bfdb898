"""Options that the commands of `kpipe dlq` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kpipe_platform.dead_letters.read.filters import DeadLetterFilter

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
Group = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Group that holds the progress. By default TOPIC.redrive."),
]
LetterPartitions = Annotated[
    list[int] | None,
    typer.Option("--dlq-partition", min=0, help="Partition of the dead-letter topic; may be given several times."),
]
Topics = Annotated[
    list[str] | None, typer.Option("--topic", metavar="PATTERN", help="Original topic; may be given several times.")
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", min=0, help="Original partition; may be given several times.")
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Dead-lettered then or later, for example 2026-01-31T06:00:00Z.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Dead-lettered before.")]
Exceptions = Annotated[
    list[str] | None,
    typer.Option("--exception", metavar="PATTERN", help="Exception or its cause, with or without its module."),
]
Rules = Annotated[list[str] | None, typer.Option("--rule", metavar="PATTERN", help="Rule that failed, or fault kind.")]
Assets = Annotated[
    list[str] | None,
    typer.Option("--asset", metavar="PATTERN", help="Asset, connector or group that gave the record up."),
]
Places = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="PARTITION@OFFSET", help="One dead letter; may be given several times."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def filter_from(
    topics: list[str] | None,
    partitions: list[int] | None,
    since: str | None,
    until: str | None,
    exceptions: list[str] | None,
    rules: list[str] | None,
    assets: list[str] | None,
    places: list[str] | None,
) -> DeadLetterFilter:
    """The filter that a command's options describe.

    Raises:
        ConfigError: A time or a place cannot be read.
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
        places=places or (),
    )


def group_of(topic: str, group: str | None) -> str:
    """The group that holds the progress."""
    from kpipe_platform.dead_letters.redrive.options import redrive_group

    return group or redrive_group(topic)

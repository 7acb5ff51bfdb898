"""`kpipe dlq redrive`: send dead letters back to their original topics and partitions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, connection_settings
from kpipe_platform.cli.dlq.options import (
    AsJson,
    Assets,
    Exceptions,
    Group,
    LetterPartitions,
    Partitions,
    Places,
    Rules,
    Since,
    TopicArgument,
    Topics,
    Until,
    filter_from,
)
from kpipe_platform.cli.output import print_hint, print_json

if TYPE_CHECKING:
    from kpipe_platform.dead_letters.redrive.decide import Decision
    from kpipe_platform.dead_letters.redrive.options import Redacted

__all__ = ["redrive"]


class PartitioningChoice(str, Enum):
    """Values of ``--partitioning``."""

    original = "original"
    by_key = "by-key"


class RedactedChoice(str, Enum):
    """Values of ``--redacted``."""

    keep = "keep"
    from_source = "from-source"
    as_is = "as-is"


class StartChoice(str, Enum):
    """Values of ``--start``."""

    earliest = "earliest"
    error = "error"


def redrive(
    topic: TopicArgument,
    topics: Topics = None,
    partitions: Partitions = None,
    since: Since = None,
    until: Until = None,
    exceptions: Exceptions = None,
    rules: Rules = None,
    assets: Assets = None,
    places: Places = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and move nothing.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many were sent or parked. A dry run lists no more than that."),
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Records a second, at most.")] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Send there instead of to the original topics.")
    ] = None,
    partitioning: Annotated[
        PartitioningChoice, typer.Option(help="The original partition, or what the key says.")
    ] = PartitioningChoice.original,
    max_attempts: Annotated[
        int, typer.Option(min=1, help="How often a record is redriven before its dead letter is parked.")
    ] = 3,
    parking_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where to park. By default TOPIC.parking.")
    ] = None,
    create_parking_topic: Annotated[
        bool, typer.Option("--create-parking-topic", help="Create it when it is missing and needed.")
    ] = False,
    redacted: Annotated[
        RedactedChoice,
        typer.Option(help="Redacted payloads: they stay, or the source topic's bytes are sent, or what is here."),
    ] = RedactedChoice.keep,
    start: Annotated[StartChoice, typer.Option(help="Where a group without an offset begins.")] = StartChoice.earliest,
    batch: Annotated[int, typer.Option(min=1, help="Dead letters of one transaction, at most.")] = 500,
    dlq_partitions: LetterPartitions = None,
    group: Group = None,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Send dead letters back to their original topics and partitions, each exactly once.

    Begins where the last redrive ended, and ends where the topic ends now. A redrive that was killed is begun again
    with the same command.
    """
    from kpipe_platform.cli.dlq.output import moving_bar, print_decisions, print_result
    from kpipe_platform.dead_letters.redrive.options import RedriveOptions
    from kpipe_platform.dead_letters.redrive.redrive import redrive as run

    options = RedriveOptions(
        topic=topic,
        filter=filter_from(topics, partitions, since, until, exceptions, rules, assets, places),
        letter_partitions=tuple(dlq_partitions or ()),
        group=group,
        to_topic=to_topic,
        partitioning="by_key" if partitioning is PartitioningChoice.by_key else "original",
        max_attempts=max_attempts,
        parking_topic=parking_topic,
        create_parking_topic=create_parking_topic,
        redacted=cast("Redacted", redacted.name),
        start="error" if start is StartChoice.error else "earliest",
        dry_run=dry_run,
        limit=limit,
        max_records_per_s=rate,
        batch_records=batch,
    )
    decisions: list[Decision] = []
    kept = 0

    def note(decision: Decision) -> None:
        # Dead letters that cannot be redriven do not count toward the limit, so their number is bounded separately.
        nonlocal kept
        kept += decision.record is None
        if limit is None or decision.record is not None or kept <= limit:
            decisions.append(decision)

    with moving_bar(topic) as on_progress:
        result = run(
            connection_settings(bootstrap_servers),
            options,
            on_progress=on_progress,
            on_decision=note if dry_run else None,
        )
    if limit is not None:
        decisions = _within(limit, decisions)
    if as_json:
        planned = {"decisions": [_decision(each) for each in decisions]} if dry_run else {}
        print_json({**result.to_json(), **planned})
        return
    if decisions:
        print_decisions(decisions)
        print_hint("")
    print_result(result)


def _within(limit: int, decisions: list[Decision]) -> list[Decision]:
    """Return at most ``limit`` decisions, in order. Sent and parked dead letters have priority over kept ones."""
    room = limit - sum(each.record is not None for each in decisions)
    shown = []
    for each in decisions:
        if each.record is None:
            room -= 1
        if each.record is not None or room >= 0:
            shown.append(each)
    return shown


def _decision(decision: Decision) -> dict[str, Any]:
    letter, record = decision.found.letter, decision.record
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "action": decision.action.value,
        "to_topic": None if record is None else record.topic,
        "to_partition": None if record is None else record.partition,
        "attempts": decision.attempts,
        "reason": decision.reason,
        "detail": decision.detail,
    }

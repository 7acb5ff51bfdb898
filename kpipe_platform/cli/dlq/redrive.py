"""`kpipe dlq redrive`: send dead letters back to their original topics and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, connection_settings
from kpipe_platform.cli.dlq.options import (
    Assets,
    At,
    DeadLetterPartitions,
    Exceptions,
    Group,
    Partitions,
    Rules,
    Since,
    TopicArgument,
    Topics,
    Until,
    filter_from,
)
from kpipe_platform.cli.options import AsJson
from kpipe_platform.cli.output import print_hint, print_json

if TYPE_CHECKING:
    from kpipe_platform.dead_letters.redrive.decide import Decision
    from kpipe_platform.dead_letters.redrive.options import Partitioning, Redacted

__all__ = ["redrive"]


def redrive(
    topic: TopicArgument,
    topics: Topics = None,
    partitions: Partitions = None,
    since: Since = None,
    until: Until = None,
    exceptions: Exceptions = None,
    rules: Rules = None,
    assets: Assets = None,
    at: At = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, without doing it.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number to send or park, or to list in a dry run."),
    ] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="Maximum records per second.")] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic to send to, instead of the original topics.")
    ] = None,
    partitioning: Annotated[
        Literal["original", "by-key"], typer.Option(help="Target partition: the original one, or chosen by the key.")
    ] = "original",
    max_attempts: Annotated[
        int, typer.Option(min=1, help="Redrives of a record before its dead letter is parked.")
    ] = 3,
    parking_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Topic for parked dead letters.", show_default="TOPIC.parking")
    ] = None,
    create_parking_topic: Annotated[
        bool, typer.Option("--create-parking-topic", help="Create the parking topic if it is needed and missing.")
    ] = False,
    redacted: Annotated[
        Literal["keep", "from-source", "as-is"],
        typer.Option(help="Redacted payloads: keep the dead letter, send the source topic's bytes, or send as it is."),
    ] = "keep",
    start: Annotated[
        Literal["earliest", "error"], typer.Option(help="Start of a group without an offset.")
    ] = "earliest",
    batch: Annotated[int, typer.Option(min=1, help="Maximum dead letters per transaction.")] = 500,
    dlq_partitions: DeadLetterPartitions = None,
    group: Group = None,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Send dead letters back to their original topics and partitions, each exactly once.

    Starts where the last redrive ended, and stops at the current end of the topic. If a redrive is killed, run the same
    command again to continue it.
    """
    from kpipe_platform.cli.dlq.output import moving_bar, print_decisions, print_result
    from kpipe_platform.dead_letters.redrive.options import RedriveOptions
    from kpipe_platform.dead_letters.redrive.redrive import redrive as run

    options = RedriveOptions(
        topic=topic,
        filter=filter_from(topics, partitions, since, until, exceptions, rules, assets, at),
        dead_letter_partitions=tuple(dlq_partitions or ()),
        group=group,
        to_topic=to_topic,
        partitioning=cast("Partitioning", partitioning.replace("-", "_")),
        max_attempts=max_attempts,
        parking_topic=parking_topic,
        create_parking_topic=create_parking_topic,
        redacted=cast("Redacted", redacted.replace("-", "_")),
        start=start,
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
    source, record = decision.found.dead_letter, decision.record
    return {
        "partition": source.partition,
        "offset": source.offset,
        "action": decision.action.value,
        "to_topic": None if record is None else record.topic,
        "to_partition": None if record is None else record.partition,
        "attempts": decision.attempts,
        "reason": decision.reason,
        "detail": decision.detail,
    }

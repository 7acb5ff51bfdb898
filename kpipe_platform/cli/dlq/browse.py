"""`kpipe dlq`: list, show and count dead letters. The command `redrive` is in its own module."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, open_clients
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
    group_of,
)
from kpipe_platform.cli.dlq.redrive import redrive
from kpipe_platform.cli.options import AsJson
from kpipe_platform.cli.output import print_hint, print_json
from kpipe_platform.errors import DeadLetterError

if TYPE_CHECKING:
    from kpipe_platform.kafka.model.records import KafkaRecord

__all__ = ["app"]

app = typer.Typer(help="List, show, count and redrive dead letters.", no_args_is_help=True)


@app.command("list")
def list_(
    topic: TopicArgument,
    topics: Topics = None,
    partitions: Partitions = None,
    since: Since = None,
    until: Until = None,
    exceptions: Exceptions = None,
    rules: Rules = None,
    assets: Assets = None,
    at: At = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only dead letters that were not redriven yet.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list.")] = 100,
    dlq_partitions: DeadLetterPartitions = None,
    group: Group = None,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """List dead letters with the reasons for them."""
    from kpipe_platform.cli.dlq.output import as_json as dead_letter_as_json
    from kpipe_platform.cli.dlq.output import hint_unknown, print_dead_letters
    from kpipe_platform.dead_letters.browse import Listed, browse

    wanted = filter_from(topics, partitions, since, until, exceptions, rules, assets, at)
    shown: list[Listed] = []
    has_more = False
    with open_clients(bootstrap_servers) as clients:
        for each in browse(
            clients, topic, group_of(topic, group), dead_letter_partitions=dlq_partitions or (), wanted=wanted
        ):
            if waiting and each.is_done:
                continue
            if len(shown) == limit:
                has_more = True
                break
            shown.append(each)
    if as_json:
        print_json([dead_letter_as_json(each) for each in shown])
    elif shown:
        print_dead_letters(shown)
        hint_unknown(topic, (each.found.family for each in shown))
    else:
        print_hint("No dead letters match.")
    if has_more:
        print_hint(f"More than {limit} dead letters match. Raise --limit, or add a filter.")


@app.command()
def show(
    topic: TopicArgument,
    partition: Annotated[int, typer.Argument(min=0, metavar="PARTITION", help="Partition of the dead letter.")],
    offset: Annotated[int, typer.Argument(min=0, metavar="OFFSET", help="Offset of the dead letter.")],
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of the original value.")] = False,
    as_json: AsJson = False,
    group: Group = None,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Show one dead letter in full, with its original record."""
    from kpipe_platform.cli.dlq.output import as_json as dead_letter_as_json
    from kpipe_platform.cli.dlq.output import hint_unknown, print_dead_letter
    from kpipe_platform.dead_letters.browse import Listed, find_one
    from kpipe_platform.dead_letters.redrive.decide import Decision
    from kpipe_platform.dead_letters.redrive.payloads import Payloads

    name = group_of(topic, group)
    with open_clients(bootstrap_servers) as clients:
        listed = find_one(clients, topic, name, partition, offset)
        with Payloads(clients, name) as payloads:
            completed = payloads.complete(listed.found)
    if isinstance(completed, Decision):
        dead_letter, missing = listed.found, completed.detail
    else:
        dead_letter, missing = completed, completed.problem
    if raw:
        if missing is not None:
            msg = f"the original value of dead letter {dead_letter.place} is not available: {missing}"
            raise DeadLetterError(
                msg,
                fix="leave out --raw to see the rest of the dead letter",
                topic=topic,
            )
        if dead_letter.original.value is None:
            print_hint("The value is null, so there are no bytes to write.")
        typer.echo(dead_letter.original.value or b"", nl=False)
    elif as_json:
        shown = dead_letter_as_json(Listed(dead_letter, listed.is_done))
        print_json({**shown, "missing": missing, "record": _record(dead_letter.original, missing)})
    else:
        print_dead_letter(dead_letter, missing is None)
        hint_unknown(topic, [dead_letter.family])
        if missing is not None:
            print_hint(f"The original record is not shown: {missing}.")


@app.command()
def stats(
    topic: TopicArgument,
    topics: Topics = None,
    partitions: Partitions = None,
    since: Since = None,
    until: Until = None,
    exceptions: Exceptions = None,
    rules: Rules = None,
    assets: Assets = None,
    dlq_partitions: DeadLetterPartitions = None,
    group: Group = None,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Count dead letters by reason, topic, partition, asset and age."""
    from kpipe_platform.cli.dlq.output import hint_unknown, print_stats
    from kpipe_platform.dead_letters.browse import Stats, browse

    wanted = filter_from(topics, partitions, since, until, exceptions, rules, assets, None)
    counted = Stats()
    now_ms = int(time.time() * 1000)
    with open_clients(bootstrap_servers) as clients:
        for each in browse(
            clients, topic, group_of(topic, group), dead_letter_partitions=dlq_partitions or (), wanted=wanted
        ):
            counted.add(each, now_ms)
    if as_json:
        print_json({"topic": topic, **counted.to_json()})
    else:
        print_stats(counted)
        hint_unknown(topic, counted.by_family)


app.command()(redrive)


def _record(record: KafkaRecord, missing: str | None) -> dict[str, Any] | None:
    """Return the original record as JSON values with Base64 bytes; None if it is missing."""
    if missing is not None:
        return None

    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode("ascii")

    return {
        "key_base64": text(record.key),
        "value_base64": text(record.value),
        "headers": [{"key": name, "value_base64": text(data)} for name, data in record.headers],
    }

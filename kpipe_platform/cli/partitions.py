"""`kpipe partitions`: where an asset's group stands in each partition, and pausing one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, open_clients
from kpipe_platform.cli.offsets import GroupArgument, TopicArgument
from kpipe_platform.cli.output import print_hint, print_json, print_line
from kpipe_platform.cli.tables import print_table

if TYPE_CHECKING:
    from kpipe_platform.partitions.pauses import Pause

__all__ = ["app"]

app = typer.Typer(help="See where an asset's group stands in each partition, and pause one.", no_args_is_help=True)

PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Kafka partition; may be repeated. Without it: all."),
]


@app.command()
def show(
    group: GroupArgument,
    topic: TopicArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Show offsets and lag of each partition, whether it is paused, and the runs that a sensor has in flight there."""
    from kpipe_platform.kafka.groups import committed_offsets
    from kpipe_platform.kafka.offsets import watermarks
    from kpipe_platform.kafka.topics import describe_topics
    from kpipe_platform.partitions.instance import own_instance
    from kpipe_platform.partitions.pauses import paused
    from kpipe_platform.partitions.runs import asked_for

    with own_instance() as instance:
        pauses = paused(instance, group, topic)
        flights = asked_for(instance, group)
    with open_clients(bootstrap_servers) as clients:
        wanted = [(topic, number) for number in range(describe_topics(clients, [topic])[topic].partitions)]
        committed = committed_offsets(clients, group, wanted)
        marks = watermarks(clients, wanted, "read_committed")
    rows: list[dict[str, Any]] = []
    for place in wanted:
        number, stored, mark = place[1], committed.get(place), marks[place]
        offset = None if stored is None else stored.offset
        rows.append(
            {
                "partition": number,
                "state": "paused" if number in pauses else "in flight" if flights.get(place) else "idle",
                "log_start": mark.log_start,
                "committed": offset,
                "end": mark.end,
                "lag": mark.end - max(mark.log_start if offset is None else offset, 0),
                "runs": flights.get(place, []),
                "pause": _shown(pauses.get(number)),
            }
        )
    if as_json:
        print_json({"group": group, "topic": topic, "partitions": rows})
        return
    head = ("partition", "state", "log start", "committed", "end", "lag", "runs", "paused")
    print_table(head, [[*list(row.values())[:6], ", ".join(r[:8] for r in row["runs"]), row["pause"]] for row in rows])


@app.command()
def pause(
    group: GroupArgument,
    topic: TopicArgument,
    partition: PartitionOption = None,
    reason: Annotated[str | None, typer.Option(help="Why, for whoever looks at it.")] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Let sensors ask for nothing more there; runs in flight finish. It lasts until `kpipe partitions resume`."""
    from kpipe_platform.partitions import pauses
    from kpipe_platform.partitions.instance import own_instance

    numbers = _numbers(topic, partition, bootstrap_servers)
    with own_instance() as instance:
        for number in numbers:
            new = pauses.pause(instance, group, topic, number, reason)
            print_line(f"{topic}/{number} {'paused' if new else 'was paused already'}")
    print_hint(f"go on with: kpipe partitions resume {group} {topic}")


@app.command()
def resume(
    group: GroupArgument,
    topic: TopicArgument,
    partition: PartitionOption = None,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Let sensors ask for partitions again."""
    from kpipe_platform.partitions import pauses
    from kpipe_platform.partitions.instance import own_instance

    numbers = _numbers(topic, partition, bootstrap_servers)
    with own_instance() as instance:
        for number in numbers:
            was = pauses.resume(instance, group, topic, number)
            print_line(f"{topic}/{number} {'resumed' if was else 'was not paused'}")


def _numbers(topic: str, wanted: list[int] | None, bootstrap_servers: str) -> list[int]:
    from kpipe_platform.kafka.slices import check_partitions
    from kpipe_platform.kafka.topics import describe_topics

    with open_clients(bootstrap_servers) as clients:
        described = describe_topics(clients, [topic])
    numbers = sorted(set(wanted or range(described[topic].partitions)))
    check_partitions(described, [(topic, number) for number in numbers])
    return numbers


def _shown(pause: Pause | None) -> str | None:
    if pause is None:
        return None
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(pause.since_ms / 1000))
    return f"since {since}" + (f": {pause.reason}" if pause.reason else "")

"""`kpipe partitions`: show the state of an asset's partitions, pause and resume them, and release a lost run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, open_clients
from kpipe_platform.cli.offsets import GroupArgument, NewGroupOption, TopicArgument
from kpipe_platform.cli.output import print_hint, print_json, print_line
from kpipe_platform.cli.tables import print_table

if TYPE_CHECKING:
    import dagster as dg

    from kpipe_platform.kafka.client.clients import Clients
    from kpipe_platform.partitions.pauses import Pause
    from kpipe_platform.partitions.state import PartitionState

__all__ = ["app"]

app = typer.Typer(
    help="See where an asset's group stands in each partition, pause one, release a lost run.", no_args_is_help=True
)

# Maximum number of problems that are listed below the table. The table shows all partitions.
_TOLD = 5

PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Kafka partition; may be repeated. Without it: all."),
]


@app.command()
def show(
    group: GroupArgument,
    topic: TopicArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    new_group: NewGroupOption = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Show what waits in each partition and for how long, what is at work on it, who owns it, and what is paused."""
    from kpipe_platform.partitions.groups import asset_of_group
    from kpipe_platform.partitions.instance import own_instance
    from kpipe_platform.partitions.lost import lost_runs
    from kpipe_platform.partitions.state import read_states
    from kpipe_platform.slices.plan.ranges import PlanPolicy

    with own_instance() as instance, open_clients(bootstrap_servers) as clients:
        if not new_group:
            _refuse_unknown(instance, clients, group, topic)
        states = read_states(instance, clients, PlanPolicy(group), topic, asset_of_group(instance, group))
        lost = lost_runs(instance, dict.fromkeys(run for state in states for run in state.in_flight))
    if as_json:
        print_json(
            {
                "group": group,
                "topic": topic,
                "partitions": [_json_of(state) for state in states],
                "lost_runs": [
                    {"run": run.run_id, "process": run.process.value, "silent_s": run.silent_s} for run in lost
                ],
            }
        )
        return
    shared = any(state.assigned is not None for state in states)
    head = [
        "partition",
        "state",
        *(["owner"] if shared else []),
        "log start",
        "committed",
        "end",
        "lag",
        "oldest waits",
    ]
    rows = [
        [
            state.partition,
            word(state),
            *([state.owner] if shared else []),
            state.log_start,
            state.committed,
            state.end,
            state.lag,
            duration(state.oldest_unprocessed_age_s),
            ", ".join(run[:8] for run in state.in_flight),
            _shown(state.pause),
        ]
        for state in states
    ]
    print_table((*head, "runs", "paused"), rows)
    for line in [*summary(states), *map(str, lost)]:
        print_hint(line)


def word(state: PartitionState) -> str:
    """What holds of a partition, in words; what somebody must see to stands first."""
    found = [
        "LOST RECORDS" if state.lost else None,
        "paused" if state.paused else None,
        "no owner" if state.assigned is False else None,
        "in flight" if state.in_flight else None,
    ]
    told = [each for each in found if each is not None]
    return ", ".join(told) or ("waiting" if state.lag else "idle")


def summary(states: Sequence[PartitionState]) -> list[str]:
    """The snapshot in a sentence, and what is wrong."""
    late = [state for state in states if state.oldest_unprocessed_age_s is not None]
    total = sum(state.lag for state in states)
    line = f"{total:,} offsets wait in {sum(1 for state in states if state.lag):,} of {len(states):,} partitions"
    if late:
        worst = max(late, key=lambda state: state.oldest_unprocessed_age_s or 0.0)
        line += f", the oldest record for {duration(worst.oldest_unprocessed_age_s)} (partition {worst.partition})"
    wrong = [
        f"{state.topic}/{state.partition}: retention deleted offsets [{state.committed}, {state.log_start}) unread; "
        "runs are refused, unless they may skip them, until the group is moved: kpipe offsets set"
        for state in states
        if state.lost
    ]
    wrong += [
        f"{state.topic}/{state.partition}: paused, and {state.lag:,} offsets wait: kpipe partitions resume"
        for state in states
        if state.paused and state.lag
    ]
    more = [f"and {len(wrong) - _TOLD:,} more like these"] if len(wrong) > _TOLD else []
    return [line, *wrong[:_TOLD], *more]


def duration(seconds: float | None) -> str | None:
    """Seconds for people: two units at most."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _json_of(state: PartitionState) -> dict[str, Any]:
    return {
        "partition": state.partition,
        "state": word(state),
        "assigned": state.assigned,
        "owner": state.owner,
        "draining": state.draining,
        "paused": state.paused,
        "in_flight": list(state.in_flight),
        "highest_completed": state.highest_completed,
        "log_start": state.log_start,
        "committed": state.committed,
        "end": state.end,
        "lag": state.lag,
        "oldest_unprocessed_age_s": state.oldest_unprocessed_age_s,
        "pause": _shown(state.pause),
    }


@app.command()
def pause(
    group: GroupArgument,
    topic: TopicArgument,
    partition: PartitionOption = None,
    reason: Annotated[str | None, typer.Option(help="Why, for whoever looks at it.")] = None,
    new_group: NewGroupOption = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Let sensors ask for nothing more there; runs in flight finish. It lasts until `kpipe partitions resume`."""
    from kpipe_platform.partitions import pauses
    from kpipe_platform.partitions.instance import own_instance

    with own_instance() as instance, open_clients(bootstrap_servers) as clients:
        numbers = _numbers(clients, topic, partition)
        if not new_group:
            _refuse_unknown(instance, clients, group, topic)
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

    with own_instance() as instance, open_clients(bootstrap_servers) as clients:
        numbers = _numbers(clients, topic, partition)
        _refuse_unknown(instance, clients, group, topic)
        for number in numbers:
            was = pauses.resume(instance, group, topic, number)
            print_line(f"{topic}/{number} {'resumed' if was else 'was not paused'}")


@app.command()
def release(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Dagster run, or the first characters of its id.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also where it is not known whether its process is there.")
    ] = False,
) -> None:
    """Mark a run as failed whose process is gone with its host, so that it holds its partitions no longer.

    A process that is alive all the same is fenced by the next run: exactly once, nothing of it is committed any more.
    """
    from kpipe_platform.partitions.instance import own_instance
    from kpipe_platform.partitions.lost import release as release_run

    with own_instance() as instance:
        print_line(f"{release_run(instance, run, force=force)} released")
    print_hint("Its sensor asks for what it has not committed; without a sensor materialize the partition again.")


def _refuse_unknown(instance: dg.DagsterInstance, clients: Clients, group: str, topic: str) -> None:
    """Refuse a group that is unknown to both the brokers and Dagster.

    Raises:
        ConfigError: The name is probably mistyped.
    """
    from kpipe_platform.kafka.admin.groups import refuse_unknown
    from kpipe_platform.kafka.admin.topics import describe_topics
    from kpipe_platform.partitions.groups import is_known
    from kpipe_platform.partitions.pauses import paused

    # A paused partition can always be resumed, even if its group is unknown.
    if not paused(instance, group, topic) and not is_known(instance, group, topic):
        refuse_unknown(clients, group, topic, describe_topics(clients, [topic])[topic].partitions)


def _numbers(clients: Clients, topic: str, wanted: list[int] | None) -> list[int]:
    from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics

    described = describe_topics(clients, [topic])
    numbers = sorted(set(wanted or range(described[topic].partitions)))
    check_partitions(described, [(topic, number) for number in numbers])
    return numbers


def _shown(pause: Pause | None) -> str | None:
    if pause is None:
        return None
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(pause.since_ms / 1000))
    return f"since {since}" + (f": {pause.reason}" if pause.reason else "")

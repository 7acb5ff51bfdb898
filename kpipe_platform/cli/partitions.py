"""`kpipe partitions`: show the state of an asset's partitions, pause and resume them, and release a lost run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, open_clients
from kpipe_platform.cli.options import AsJson
from kpipe_platform.cli.output import print_hint, print_json, print_line
from kpipe_platform.cli.tables import print_table
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from kpipe_platform.partitions.pauses import Pause
    from kpipe_platform.partitions.state import PartitionState

__all__ = ["app"]

app = typer.Typer(
    help="Show the partitions of an asset, pause and resume them, and release a lost run. Needs DAGSTER_HOME.",
    no_args_is_help=True,
)

# Maximum number of problems that are listed below the table. The table shows all partitions.
_MAX_PROBLEMS = 5

AssetArgument = Annotated[
    str, typer.Argument(metavar="ASSET", help="The asset, as the UI shows its key: orders_priced, shop/orders_priced.")
]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Kafka partition; may be repeated. Without it: all."),
]
ModuleOption = Annotated[
    str | None,
    typer.Option(
        "--module-name",
        "-m",
        metavar="MODULE",
        help="Python module with the definitions, for an asset that has not run yet.",
    ),
]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the assets that have read a topic, and their paused partitions."""
    from kpipe_platform.partitions import pauses
    from kpipe_platform.partitions.groups import all_reads
    from kpipe_platform.partitions.instance import own_instance

    found = []
    with own_instance() as instance:
        for key, reads in all_reads(instance):
            pauses.take_over(instance, reads.first or key, reads.group, reads.topics)
            stopped = pauses.paused(instance, reads.first or key)
            found.append((key.to_user_string(), reads, {number: _shown(each) for number, each in stopped.items()}))
    if as_json:
        print_json(
            [
                {"asset": asset, "group": reads.group, "topics": reads.topics, "paused": stopped}
                for asset, reads, stopped in found
            ]
        )
    elif found:
        rows = [(a, ", ".join(r.topics), r.group, ", ".join(map(str, stopped))) for a, r, stopped in found]
        print_table(("asset", "topics", "group", "paused"), rows)
    else:
        print_hint("No asset of this Dagster instance has read a topic.")


@app.command()
def show(
    asset: AssetArgument,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="One topic of an asset that reads several. Without it: all."),
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Show offsets, lag, age of the oldest record, owner, runs in flight and pauses of each partition."""
    from kpipe_platform.partitions.groups import known_reads, parse_asset
    from kpipe_platform.partitions.instance import own_instance
    from kpipe_platform.partitions.lost import lost_runs
    from kpipe_platform.partitions.state import read_states
    from kpipe_platform.slices.plan.ranges import PlanPolicy

    key = parse_asset(asset)
    with own_instance() as instance:
        reads = known_reads(instance, key, fix="for an asset that has not run yet: kpipe offsets show GROUP TOPIC")
        if topic is not None and topic not in reads.topics:
            msg = f"asset {asset} reads no topic {topic!r}, but {', '.join(reads.topics)}"
            raise ConfigError(msg, fix=f"--topic {reads.topics[0]}", asset=asset, topic=topic)
        topics = reads.topics if topic is None else (topic,)
        with open_clients(bootstrap_servers) as clients:
            policy = PlanPolicy(reads.group)
            owner = reads.first or key
            states = [state for name in topics for state in read_states(instance, clients, policy, name, owner)]
        lost = lost_runs(instance, dict.fromkeys(run for state in states for run in state.in_flight))
    if as_json:
        print_json(
            {
                "asset": key.to_user_string(),
                "group": reads.group,
                "topics": topics,
                "partitions": [_json_of(state) for state in states],
                "lost_runs": [
                    {"run": run.run_id, "process": run.process.value, "silent_s": run.silent_s} for run in lost
                ],
            }
        )
        return
    shared = any(state.assigned is not None for state in states)
    several = len(topics) > 1
    head = [
        *(["topic"] if several else []),
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
            *([state.topic] if several else []),
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
    """Return the state of a partition in words. What an operator must act on comes first."""
    words = [
        "LOST RECORDS" if state.lost else None,
        "paused" if state.paused else None,
        "no owner" if state.assigned is False else None,
        "in flight" if state.in_flight else None,
    ]
    return ", ".join(filter(None, words)) or ("waiting" if state.lag else "idle")


def summary(states: Sequence[PartitionState]) -> list[str]:
    """Return one sentence about all partitions, then their problems."""
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
    more = [f"and {len(wrong) - _MAX_PROBLEMS:,} more like these"] if len(wrong) > _MAX_PROBLEMS else []
    return [line, *wrong[:_MAX_PROBLEMS], *more]


def duration(seconds: float | None) -> str | None:
    """Format seconds in at most two units."""
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
        "topic": state.topic,
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
    asset: AssetArgument,
    partition: PartitionOption = None,
    reason: Annotated[str | None, typer.Option(help="Reason of the pause, for other operators.")] = None,
    module: ModuleOption = None,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Stop sensors from requesting runs of partitions, until `kpipe partitions resume`. Runs in flight finish."""
    from kpipe_platform.assets.topics_read import reads_in_module
    from kpipe_platform.partitions import pauses
    from kpipe_platform.partitions.groups import known_reads, parse_asset
    from kpipe_platform.partitions.instance import own_instance

    key = parse_asset(asset)
    with own_instance() as instance:
        if module is not None:
            key, topics = reads_in_module(module, key)
        else:
            reads = known_reads(instance, key, fix="for an asset that has not run yet: -m MODULE")
            key, topics = reads.first or key, reads.topics
            pauses.take_over(instance, key, reads.group, topics)
        numbers = _numbers(bootstrap_servers, topics, partition)
        for number in numbers:
            new = pauses.pause(instance, key, number, reason)
            print_line(f"{asset} partition {number} {'paused' if new else 'was paused already'}")
    print_hint(f"To resume: kpipe partitions resume {asset}")


@app.command()
def resume(asset: AssetArgument, partition: PartitionOption = None) -> None:
    """Let sensors request runs of paused partitions again."""
    from kpipe_platform.partitions import pauses
    from kpipe_platform.partitions.groups import known_reads, parse_asset, reads_of
    from kpipe_platform.partitions.instance import own_instance

    key = parse_asset(asset)
    with own_instance() as instance:
        reads = reads_of(instance, key)
        if reads is not None:
            key = reads.first or key
            pauses.take_over(instance, key, reads.group, reads.topics)
        stopped = pauses.paused(instance, key)
        if not stopped and reads is None:
            # What is paused can always be resumed, even if the asset is gone.
            known_reads(instance, key, fix="no partition of an asset with that name is paused")
        for number in stopped if partition is None else sorted(set(partition)):
            was = pauses.resume(instance, key, number)
            print_line(f"{asset} partition {number} {'resumed' if was else 'was not paused'}")
    if not stopped:
        print_hint(f"No partition of {asset} was paused.")


@app.command()
def release(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Dagster run, or the first characters of its id.")],
    force: Annotated[
        bool, typer.Option("--force", help="Release the run even if it is unknown whether its process is still alive.")
    ] = False,
) -> None:
    """Mark a run as failed if its process was lost with its host, so that other runs can process its partitions.

    If the process is still alive, the next run fences it: with exactly-once delivery, it can no longer commit.
    """
    from kpipe_platform.partitions.instance import own_instance
    from kpipe_platform.partitions.lost import release as release_run

    with own_instance() as instance:
        print_line(f"{release_run(instance, run, force=force)} released")
    print_hint(
        "A sensor requests the offsets that the run did not commit. Without one, materialize the partition again."
    )


def _numbers(bootstrap_servers: str, topics: Iterable[str], wanted: list[int] | None) -> list[int]:
    """Return the wanted partitions, or all. Topics of an unpartitioned asset may have different numbers of them."""
    from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics

    with open_clients(bootstrap_servers) as clients:
        described = describe_topics(clients, list(topics))
    largest = max(described.values(), key=lambda topic: topic.partitions)
    numbers = sorted(set(wanted or range(largest.partitions)))
    check_partitions(described, [(largest.name, number) for number in numbers])
    return numbers


def _shown(pause: Pause | None) -> str | None:
    if pause is None:
        return None
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(pause.since_ms / 1000))
    return f"since {since}" + (f": {pause.reason}" if pause.reason else "")

"""`kpipe offsets`: show the offsets and lag of an asset's group, and move its offsets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.cli.connection import DEFAULT_SERVERS, BootstrapServers, open_clients
from kpipe_platform.cli.options import AsJson, Yes
from kpipe_platform.cli.output import print_hint, print_json
from kpipe_platform.cli.tables import print_table
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from kpipe_platform.kafka.admin.groups import CommittedOffset
    from kpipe_platform.kafka.client.clients import Clients
    from kpipe_platform.kafka.model.offsets import Partition, Watermarks
    from kpipe_platform.kafka.model.slices import Slice

__all__ = ["RUN_ID", "app"]

app = typer.Typer(help="Show and move the committed offsets of an asset's consumer group.", no_args_is_help=True)

RUN_ID = "kpipe-cli"
"""Run id in the commit metadata of offsets that a command moved."""

# The brokers abort a transaction that is open for longer than this, seconds. This transaction contains only offsets.
_TRANSACTION_TIMEOUT_S = 60.0

GroupArgument = Annotated[
    str | None,
    typer.Argument(metavar="GROUP", help="Consumer group: the source's group_prefix, a dot, and the asset key."),
]
NewGroupOption = Annotated[
    bool, typer.Option("--new-group", help="Accept a group that has no offset in the topic yet.")
]
TopicArgument = Annotated[str | None, typer.Argument(metavar="TOPIC", help="Topic that the asset reads.")]
AssetOption = Annotated[
    str | None,
    typer.Option(
        "--asset",
        metavar="ASSET",
        help="Instead of GROUP TOPIC: the group and the topic of the asset's last run. Needs DAGSTER_HOME.",
    ),
]


@dataclass(frozen=True)
class _PartitionState:
    """The state of one partition on the brokers.

    Args:
        partition: Kafka partition.
        watermarks: Log start and last stable offset.
        log_end: Log end, including open transactions.
        committed: The group's offset; None if it has none.
    """

    partition: int
    watermarks: Watermarks
    log_end: int
    committed: CommittedOffset | None

    @property
    def offset(self) -> int | None:
        return None if self.committed is None else self.committed.offset


@app.command()
def show(
    group: GroupArgument = None,
    topic: TopicArgument = None,
    asset: AssetOption = None,
    as_json: AsJson = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Show a group's committed offsets, its lag, and what the last run committed."""
    from kpipe_platform.kafka.admin.groups import group_members, refuse_unknown
    from kpipe_platform.kafka.admin.topics import describe_topics

    group, topic = _group_and_topic(group, topic, asset)
    with open_clients(bootstrap_servers) as clients:
        described = describe_topics(clients, [topic])[topic]
        states = _read_states(clients, group, topic, range(described.partitions))
        members = group_members(clients, group)
        if not members and not any(state.committed for state in states):
            refuse_unknown(clients, group, topic, described.partitions)
    rows = [_row(state, described.topic_id) for state in states]
    if as_json:
        print_json(
            {
                "group": group,
                "topic": topic,
                "topic_id": described.topic_id,
                "members": [{"client_id": m.client_id, "host": m.host} for m in members],
                "partitions": rows,
            }
        )
    else:
        _print_rows(rows)
    for member in members:
        print_hint(f"Consumer {member.client_id} at {member.host} is a member of the group: runs fail until it leaves.")


@app.command("set")
def set_(
    to: Annotated[
        str,
        typer.Option(metavar="POSITION", help="earliest, latest, an offset, or a time: 2026-01-31T06:00:00Z."),
    ],
    group: GroupArgument = None,
    topic: TopicArgument = None,
    asset: AssetOption = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Partition to move; repeatable.", show_default="all")
    ] = None,
    new_group: NewGroupOption = False,
    yes: Yes = False,
    bootstrap_servers: BootstrapServers = DEFAULT_SERVERS,
) -> None:
    """Move a group's committed offsets.

    The next run of the asset starts at the new offsets. A run in progress is fenced, so that it cannot commit.
    """
    from kpipe_platform.kafka.admin.groups import group_members, refuse_foreign_members, refuse_unknown
    from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics
    from kpipe_platform.kafka.model.commit_metadata import SliceCounts
    from kpipe_platform.kafka.transactions.lanes import settle, unsettled
    from kpipe_platform.kafka.transactions.slice import SliceTransaction, store_offsets

    group, topic = _group_and_topic(group, topic, asset)
    with open_clients(bootstrap_servers) as clients:
        described = describe_topics(clients, [topic])[topic]
        numbers = sorted(set(partition)) if partition else list(range(described.partitions))
        check_partitions({topic: described}, [(topic, number) for number in numbers])
        refuse_foreign_members(group, group_members(clients, group))
        states = _read_states(clients, group, topic, numbers)
        if not new_group and not any(state.committed for state in states):
            refuse_unknown(clients, group, topic, described.partitions)
        targets = _targets(clients, topic, states, to)
        print_table(
            ("partition", "log start", "end", "before", "after"),
            [(s.partition, s.watermarks.log_start, s.watermarks.end, s.offset, targets[s.partition]) for s in states],
        )
        if not yes:
            typer.confirm(f"Move the offsets of group {group}?", abort=True, err=True)
        stored = {(topic, s.partition): s.committed for s in states}
        if unsettled(stored):
            settle(clients.settings, group, stored, run_id=RUN_ID, slice_id=uuid.uuid4().hex[:16])
        move = _as_slice(group, topic, described.topic_id, states, targets)
        with SliceTransaction(clients.settings, move, timeout_s=_TRANSACTION_TIMEOUT_S) as transaction:
            transaction.open()
            # store_offsets() compares with the offsets shown above, and refuses if a run has moved one since.
            store_offsets(transaction, [SliceCounts() for _ in move.ranges])
    print_hint(f"Moved {len(targets)} offset(s) of group {group}.")


def _group_and_topic(group: str | None, topic: str | None, asset: str | None) -> tuple[str, str]:
    """Return the group and the topic that a command is for.

    Raises:
        ConfigError: Neither of the two forms is given in full, or the asset reads several topics.
    """
    if asset is None:
        if group is None or topic is None:
            msg = "neither GROUP TOPIC nor --asset is given"
            raise ConfigError(msg, fix="name the asset: --asset ASSET, or the group and the topic: GROUP TOPIC")
        return group, topic
    if group is not None:
        msg = f"both GROUP and --asset {asset} are given"
        raise ConfigError(msg, fix="leave one of them out", asset=asset)
    from kpipe_platform.partitions.groups import known_reads, parse_asset
    from kpipe_platform.partitions.instance import own_instance

    with own_instance() as instance:
        reads = known_reads(instance, parse_asset(asset), fix="for an asset that has not run yet: GROUP TOPIC")
    if len(reads.topics) > 1:
        msg = f"asset {asset} reads several topics: {', '.join(reads.topics)}"
        raise ConfigError(msg, fix=f"instead of --asset, name one: {reads.group} {reads.topics[0]}", asset=asset)
    return reads.group, reads.topics[0]


def _read_states(clients: Clients, group: str, topic: str, numbers: Iterable[int]) -> list[_PartitionState]:
    from kpipe_platform.kafka.admin.groups import committed_offsets
    from kpipe_platform.kafka.model.offsets import read_watermarks

    wanted = [(topic, number) for number in numbers]
    # Read the offsets before the log ends, as a plan does, so that a log end is never older than an offset.
    committed = committed_offsets(clients, group, wanted)
    stable = read_watermarks(clients, wanted, "read_committed")
    written = read_watermarks(clients, wanted, "read_uncommitted")
    return [_PartitionState(p[1], stable[p], max(written[p].end, stable[p].end), committed.get(p)) for p in wanted]


def _row(state: _PartitionState, topic_id: str) -> dict[str, Any]:
    offset, watermarks = state.offset, state.watermarks
    stored = state.committed.metadata if state.committed is not None else None
    return {
        "partition": state.partition,
        "log_start": watermarks.log_start,
        "committed": offset,
        "end": watermarks.end,
        "lag": max(watermarks.end - (watermarks.log_start if offset is None else offset), 0),
        "held_by_open_transactions": state.log_end - watermarks.end,
        "topic_id_matches": None if stored is None else stored.topic_id == topic_id,
        "run_id": None if stored is None else stored.run_id,
        "slice_id": None if stored is None else stored.slice_id,
        "slice_start": None if stored is None else stored.start,
        "transactional_id": None if stored is None else stored.unit,
        "counts": None if stored is None else asdict(stored.counts),
    }


def _print_rows(rows: list[dict[str, Any]]) -> None:
    counts = {"read": "read", "written": "written", "dead_lettered": "dead letters", "skipped": "skipped"}
    matches = {None: None, True: "same", False: "OTHER"}
    print_table(
        ("partition", "log start", "committed", "end", "lag", "topic id", "run", *counts.values()),
        [
            (
                row["partition"],
                row["log_start"],
                row["committed"],
                row["end"],
                row["lag"],
                matches[row["topic_id_matches"]],
                row["run_id"],
                *((row["counts"] or {}).get(name) for name in counts),
            )
            for row in rows
        ],
    )
    for row in rows:
        number, offset = row["partition"], row["committed"]
        if row["topic_id_matches"] is False:
            print_hint(f"Partition {number}: the offset belongs to a deleted topic of the same name.")
        elif offset is not None and offset < row["log_start"]:
            print_hint(
                f"Partition {number}: offsets {offset} to {row['log_start'] - 1} were deleted before a run read them."
            )
        elif offset is not None and row["run_id"] is None:
            print_hint(f"Partition {number}: the offset was committed by another tool.")
        held = row["held_by_open_transactions"]
        if held:
            print_hint(f"Partition {number}: {held} offset(s) after the end belong to open transactions.")


def _targets(clients: Clients, topic: str, states: list[_PartitionState], to: str) -> dict[int, int]:
    """Return the new offset of each partition.

    Raises:
        ConfigError: ``to`` has none of the supported forms, or is outside of a partition's log.
    """
    if to == "earliest":
        return {s.partition: s.watermarks.log_start for s in states}
    if to == "latest":
        return {s.partition: s.watermarks.end for s in states}
    if to.isdecimal():
        for state in states:
            _check_bounds(topic, state, int(to))
        return {s.partition: int(to) for s in states}
    from kpipe_platform.kafka.model.offsets import offsets_at, parse_time

    partitions: list[Partition] = [(topic, s.partition) for s in states]
    when = parse_time(to, "--to", or_else="earliest, latest, an offset")
    offsets = offsets_at(clients, partitions, when, "read_committed")
    # A partition without a record at or after that time moves to its end.
    return {s.partition: _or(offsets[(topic, s.partition)], s.watermarks.end) for s in states}


def _or(offset: int | None, otherwise: int) -> int:
    return otherwise if offset is None else min(offset, otherwise)


def _check_bounds(topic: str, state: _PartitionState, offset: int) -> None:
    where, watermarks = f"{topic}/{state.partition}", state.watermarks
    if offset < watermarks.log_start:
        msg = f"offset {offset} of {where} was deleted: the log starts at {watermarks.log_start}"
        raise ConfigError(msg, fix=f"use --partition {state.partition} --to earliest", topic=topic)
    if offset > state.log_end:
        msg = f"{where} has no offset {offset}: the log ends at {state.log_end}"
        fix = f"use --partition {state.partition} --to latest; if the topic was recreated, --to earliest"
        raise ConfigError(msg, fix=fix, topic=topic)


def _as_slice(
    group: str, topic: str, topic_id: str, states: list[_PartitionState], targets: Mapping[int, int]
) -> Slice:
    """Represent the move as an empty slice, so that it uses the same offset comparison and fencing as other slices."""
    from kpipe_platform.kafka.model.offsets import OffsetRange
    from kpipe_platform.kafka.model.slices import PlannedRange, Slice, dotted_id, transactional_id

    ranges = []
    for state in states:
        offset = targets[state.partition]
        here = OffsetRange(topic, state.partition, offset, offset)
        watermarks = state.watermarks
        stored = state.committed.metadata if state.committed else None
        ranges.append(
            PlannedRange(
                here,
                topic_id,
                watermarks.log_start,
                watermarks.end,
                state.offset,
                # Metadata of a deleted topic with the same name does not apply.
                partitions=stored.partitions if stored is not None and stored.topic_id == topic_id else None,
            )
        )
    own = transactional_id(group, [planned.range for planned in ranges])
    # Fence every possible run of these partitions: with one id for each partition, one id for all, or the id that
    # committed last.
    each = [[planned.range] for planned in ranges]
    everything = [OffsetRange(topic, number, 0, 0) for number in (0, 1)]
    others = {name(group, of) for name in (transactional_id, dotted_id) for of in (*each, everything)}
    others |= {s.committed.metadata.unit for s in states if s.committed and s.committed.metadata}
    return Slice(group, RUN_ID, uuid.uuid4().hex[:16], tuple(ranges), tuple(sorted(others - {own, ""})))

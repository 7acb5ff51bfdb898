"""Redrive: send the records of dead letters back to their original topics, each exactly once.

Each partition of the dead-letter topic is read from the group's offset to the log end at the start of the redrive.
Records that fail again are dead-lettered after that end, so a redrive always terminates.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from kpipe_platform.dead_letters.read.header_families import ADD_A_FAMILY
from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.dead_letters.redrive.decide import Decision
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.pace import Pace
from kpipe_platform.dead_letters.redrive.partition import PartitionRedrive, Shared
from kpipe_platform.dead_letters.redrive.payloads import Payloads
from kpipe_platform.dead_letters.redrive.results import RedriveProgress, RedriveResult
from kpipe_platform.dead_letters.redrive.topics import RedriveTopics
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.admin.groups import group_members, refuse_foreign_members
from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition, Watermarks, read_watermarks
from kpipe_platform.kafka.read.reader import read_range

logger = logging.getLogger(__name__)

# Number of records to check in each partition for a dead letter.
_CHECKED_RECORDS = 1_000


def _check(shared: Shared, numbers: list[int], watermarks: Mapping[Partition, Watermarks]) -> None:
    """Check, before anything is sent, that the progress will fit into the commit metadata."""
    options, topic = shared.options, shared.options.topic
    parking = options.parking_name
    result = RedriveResult(topic, options.group_name, parking, dry_run=True)
    # A parking topic that would be created counts as existing.
    create = len(numbers) if options.create_parking_topic else None
    topics = RedriveTopics(shared.clients, parking, parking_partitions=create, dry_run=True)
    planned = replace(shared, topics=topics, pace=Pace(None), result=result, on_progress=None, on_decision=None)
    for number in numbers:
        PartitionRedrive(planned, number, watermarks[(topic, number)]).check()
        if result.limited:
            break


def _require_dead_letters(clients: Clients, topic: str, group: str, watermarks: Mapping[Partition, Watermarks]) -> None:
    """Raise `ConfigError` if none of the first records of the partitions is a dead letter of a known family."""
    checked = 0
    for (_, number), mark in watermarks.items():
        first = OffsetRange(topic, number, mark.log_start, min(mark.end, mark.log_start + _CHECKED_RECORDS))
        for dead_letter in read_range(clients.settings, group, first):
            found = read_dead_letter(dead_letter)
            if found.family != "unknown" or found.redacted:
                return
            checked += 1
    if checked:
        msg = (
            f"topic {topic!r} is not a dead-letter topic, or kpipe does not support its header family: none of the "
            f"{checked:,} records checked is a dead letter"
        )
        fix = (
            f"name the dead-letter topic, for example {topic}.dlq; {ADD_A_FAMILY}; to send the records unchanged, "
            "choose their topic with --to-topic"
        )
        raise ConfigError(msg, fix=fix, topic=topic)


def redrive(
    settings: ConnectionSettings,
    options: RedriveOptions,
    *,
    on_progress: Callable[[RedriveProgress], None] | None = None,
    on_decision: Callable[[Decision], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.time,
) -> RedriveResult:
    """Redrive a dead-letter topic.

    If a redrive is killed or fails, call it again to resume. Committed records are not sent a second time, and
    uncommitted records are not visible to ``read_committed`` consumers.

    Args:
        settings: The connection.
        options: What to redrive, and how.
        on_progress: Called while reading.
        on_decision: Called for each dead letter that matches the filter, after its outcome is committed. In a dry run,
            called with the decision that would apply.
        clock: Returns monotonic time in seconds.
        sleep: Sleeps for the given number of seconds.
        now_s: Returns the time in seconds since the epoch.

    Returns:
        What was done, or in a dry run what would be done.

    Raises:
        TopicNotFoundError: The dead-letter topic, a target topic, or the parking topic does not exist.
        TopicRecreatedError: The group's offset belongs to a deleted topic of the same name.
        NoStartOffsetError: The group has no offset, and ``start="error"``.
        ForeignMemberError: Another consumer uses the group.
        ConfigError: The topic has no dead letters of a known family, ``to_topic`` does not have a record's partition,
            or the progress would not fit into the commit metadata. In the last case nothing was sent.
        OffsetConflictError: Another redrive moved the group's offset, or took over (`FencedError`).
        BrokerUnavailableError: The brokers are unavailable.
    """
    group = options.group_name
    result = RedriveResult(options.topic, group, options.parking_name, options.dry_run)
    with ExitStack() as stack:
        clients = stack.enter_context(Clients(settings))
        described = describe_topics(clients, [options.topic])[options.topic]
        numbers = sorted(set(options.dead_letter_partitions)) or list(range(described.partitions))
        check_partitions({options.topic: described}, [(options.topic, number) for number in numbers])
        refuse_foreign_members(group, group_members(clients, group))
        # Read all ends before sending anything, so that this redrive does not read its own results.
        watermarks = read_watermarks(clients, [(options.topic, number) for number in numbers], "read_committed")
        if options.to_topic is None and not options.filter.places:
            _require_dead_letters(clients, options.topic, group, watermarks)
        create = described.partitions if options.create_parking_topic else None
        shared = Shared(
            clients=clients,
            options=options,
            topic_id=described.topic_id,
            topics=RedriveTopics(clients, options.parking_name, parking_partitions=create, dry_run=options.dry_run),
            payloads=stack.enter_context(Payloads(clients, group, options.redacted)),
            pace=Pace(None if options.dry_run else options.max_records_per_s, clock=clock, sleep=sleep),
            result=result,
            on_progress=on_progress,
            on_decision=on_decision,
            clock=clock,
            now_s=now_s,
        )
        if not options.dry_run:
            _check(shared, numbers, watermarks)
        for number in numbers:
            PartitionRedrive(shared, number, watermarks[(options.topic, number)]).run()
            if result.limited:
                break
    logger.info(
        "redrive of %s by group %s: %d sent, %d parked, %d kept, %d excluded by the filter",
        *(options.topic, group, result.total("sent"), result.total("parked")),
        *(result.total("kept"), result.total("left_out")),
    )
    return result

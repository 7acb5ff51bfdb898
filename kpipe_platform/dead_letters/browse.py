"""Read-only views of a dead-letter topic: its dead letters, and counts of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kpipe_platform.dead_letters.read.filters import DeadLetterFilter
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.dead_letters.redrive.progress import Progress
from kpipe_platform.dead_letters.redrive.stored_offset import read_stored_offset
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.admin.topics import check_partitions, describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, read_watermarks
from kpipe_platform.kafka.read.reader import read_range

_HOUR_MS = 3_600_000
AGES = (("under 1 hour", _HOUR_MS), ("under 1 day", 24 * _HOUR_MS), ("under 7 days", 7 * 24 * _HOUR_MS))
"""Age classes, each with its upper limit in milliseconds. Older dead letters are in ``7 days or more``."""
OLDEST, NO_TIME = "7 days or more", "unknown"


@dataclass(frozen=True, slots=True)
class Listed:
    """A dead letter, and whether it was redriven.

    Args:
        found: The dead letter.
        is_done: Whether a redrive of the group already sent or parked it.
    """

    found: FoundDeadLetter
    is_done: bool


def browse(
    clients: Clients,
    topic: str,
    group: str,
    *,
    dead_letter_partitions: Iterable[int] = (),
    wanted: DeadLetterFilter | None = None,
) -> Iterator[Listed]:
    """Yield the dead letters of a topic, by partition and offset, up to the log end when reading begins.

    Args:
        clients: Clients to use.
        topic: The dead-letter topic.
        group: The consumer group that stores the progress of redrives.
        dead_letter_partitions: Partitions of the dead-letter topic to read. Empty means all.
        wanted: Which dead letters to yield. None means all.

    Raises:
        TopicNotFoundError: The topic, or one of the partitions, does not exist.
        BrokerUnavailableError: The brokers are unavailable.
    """
    described = describe_topics(clients, [topic])[topic]
    numbers = sorted(set(dead_letter_partitions)) or list(range(described.partitions))
    check_partitions({topic: described}, [(topic, number) for number in numbers])
    watermarks = read_watermarks(clients, [(topic, number) for number in numbers], "read_committed")
    for number in numbers:
        log = watermarks[(topic, number)]
        progress = _progress(clients, group, topic, number, described.topic_id)
        for record in read_range(clients.settings, group, OffsetRange(topic, number, log.log_start, log.end)):
            dead_letter = read_dead_letter(record)
            if wanted is None or wanted.takes(dead_letter):
                yield Listed(dead_letter, progress.is_done(record.offset or 0))


def find_one(clients: Clients, topic: str, group: str, partition: int, offset: int) -> Listed:
    """Read the dead letter at one offset.

    Raises:
        ConfigError: There is no dead letter at this offset.
        TopicNotFoundError: The topic or the partition does not exist.
    """
    described = describe_topics(clients, [topic])
    check_partitions(described, [(topic, partition)])
    log = read_watermarks(clients, [(topic, partition)], "read_committed")[(topic, partition)]
    if log.log_start <= offset < log.end:
        for record in read_range(clients.settings, group, OffsetRange(topic, partition, offset, offset + 1)):
            progress = _progress(clients, group, topic, partition, described[topic].topic_id)
            return Listed(read_dead_letter(record), progress.is_done(offset))
    msg = f"there is no dead letter at offset {offset} of {topic}/{partition}"
    fix = f"list the dead letters: kpipe dlq list {topic}; the log has offsets {log.log_start} to {log.end - 1}, "
    fix += "and some of them are transaction markers"
    raise ConfigError(msg, fix=fix, topic=topic, partition=partition, offset=offset)


@dataclass(slots=True)
class Stats:
    """Counts of a topic's dead letters.

    Args:
        total: All dead letters that match the filter.
        waiting: Those that were not redriven yet.
        by_reason: Counts by exception class, or by fault kind where there is no class.
        by_topic: Counts by original topic.
        by_partition: Counts by original topic and partition, ``topic[partition]``.
        by_asset: Counts by the asset, connector or consumer group that gave up on the record.
        by_age: Counts by the time since dead-lettering.
        by_family: Counts by the family of the dead letter.
        by_attempts: Counts by the number of redrives or tries.
    """

    total: int = 0
    waiting: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    by_topic: Counter[str] = field(default_factory=Counter)
    by_partition: Counter[str] = field(default_factory=Counter)
    by_asset: Counter[str] = field(default_factory=Counter)
    by_age: Counter[str] = field(default_factory=Counter)
    by_family: Counter[str] = field(default_factory=Counter)
    by_attempts: Counter[str] = field(default_factory=Counter)

    def add(self, listed: Listed, now_ms: int) -> None:
        """Count one dead letter."""
        dead_letter = listed.found
        original = dead_letter.original
        self.total += 1
        self.waiting += not listed.is_done
        self.by_reason[dead_letter.exception_type or dead_letter.kind or "unknown"] += 1
        self.by_topic[original.topic or "unknown"] += 1
        number = "?" if original.partition is None else original.partition
        self.by_partition[f"{original.topic or 'unknown'}[{number}]"] += 1
        self.by_asset[dead_letter.who or "unknown"] += 1
        self.by_age[age_of(dead_letter.time_ms, now_ms)] += 1
        self.by_family[dead_letter.family] += 1
        self.by_attempts[str(dead_letter.attempts)] += 1

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values, the most frequent first."""
        counters = {name: getattr(self, name) for name in self.__slots__ if name.startswith("by_")}
        return {
            "total": self.total,
            "waiting": self.waiting,
            **{name: dict(counter.most_common()) for name, counter in counters.items()},
        }


def age_of(time_ms: int | None, now_ms: int) -> str:
    """Return the age class of a dead letter."""
    if time_ms is None:
        return NO_TIME
    return next((name for name, limit_ms in AGES if now_ms - time_ms < limit_ms), OLDEST)


def _progress(clients: Clients, group: str, topic: str, partition: int, topic_id: str) -> Progress:
    stored = read_stored_offset(clients, group, topic, partition)
    if stored is None:
        return Progress(0)
    progress, known_id = Progress.from_text(stored.offset, stored.text)
    # An offset of a deleted topic with the same name does not apply to this topic.
    return progress if known_id in (None, topic_id) else Progress(0)

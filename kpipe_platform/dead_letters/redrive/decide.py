"""Decide what to do with one dead letter in a redrive. Pure: a function argument describes the topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from kpipe_platform.dead_letters.envelope.origin import ATTEMPTS_HEADER
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.header_families import ADD_A_FAMILY
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.errors import ConfigError, TopicNotFoundError
from kpipe_platform.kafka.admin.topics import TopicLimits, is_topic_name
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.model.sizes import record_size


class Action(str, Enum):
    """What a redrive does with a dead letter."""

    SEND = "send"
    """Its record is sent to its topic."""

    PARK = "park"
    """It was redriven too often. It is sent to the parking topic unchanged."""

    KEEP = "keep"
    """It cannot be redriven. It stays in the topic, and the group's offset stays before it."""

    def __str__(self) -> str:
        """Return the value, as shown in tables and JSON."""
        return self.value


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic that records are sent to.

    Args:
        name: The topic.
        partitions: Number of partitions.
        limits: Limits on the records that it accepts.
        retention_ms: Retention time in milliseconds, from the record's timestamp. None means that records are never
            deleted for their age.
    """

    name: str
    partitions: int
    limits: TopicLimits
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision for one dead letter.

    Args:
        found: The dead letter.
        action: What to do with it.
        record: The record to send. None if the dead letter is kept.
        attempts: Number of redrives of the record, including this one if it is sent.
        reason: Why it is kept, as one word to count by.
        detail: Why it is kept, as a sentence. For a dead letter that is sent, possible problems.
        is_short_lived: Whether the record is older than its topic's retention, so that the brokers delete it again.
    """

    found: FoundDeadLetter
    action: Action
    record: KafkaRecord | None = None
    attempts: int = 0
    reason: str | None = None
    detail: str | None = None
    is_short_lived: bool = False

    @property
    def target(self) -> str | None:
        """The target ``topic[partition]``, with ``?`` if the key determines the partition. None if it is kept."""
        if self.record is None:
            return None
        return f"{self.record.topic}[{'?' if self.record.partition is None else self.record.partition}]"


def kept(found: FoundDeadLetter, reason: str, detail: str) -> Decision:
    """Return the decision to keep a dead letter in its topic."""
    return Decision(found, Action.KEEP, attempts=found.attempts, reason=reason, detail=detail)


def decide(
    found: FoundDeadLetter, options: RedriveOptions, topic_of: Callable[[str], TargetTopic], now_ms: int
) -> Decision:
    """Decide what to do with a dead letter.

    Args:
        found: The complete dead letter, including the parts that were only in the source topic.
        options: How to redrive.
        topic_of: Describes a topic.
        now_ms: The current time, milliseconds since the epoch.

    Raises:
        ConfigError: ``to_topic`` does not have the record's partition.
        TopicNotFoundError: ``to_topic``, or the parking topic if it is needed, does not exist.
    """
    if found.attempts >= options.max_attempts:
        return _checked(_parked(found, options, topic_of), topic_of, now_ms)
    if found.redacted and options.redacted == "keep":
        detail = (
            "its payload was redacted; send the original with --redacted from-source, or the redacted one with as-is"
        )
        return kept(found, "redacted", detail)
    if found.problem is not None:
        return kept(found, "unreadable", found.problem)
    name = options.to_topic or found.original.topic
    if name is None:
        fix = ADD_A_FAMILY if found.family == "unknown" else "choose a topic with --to-topic"
        return kept(found, "no_topic", f"its headers do not name its original topic; {fix}")
    if found.topics and options.to_topic is None:
        named = ", ".join(map(repr, found.topics))
        return kept(found, "several_topics", f"its headers name several topics ({named}); choose one with --to-topic")
    if name in (options.topic, options.parking_name):
        detail = f"its target topic {name!r} is the dead-letter topic or the parking topic"
        return kept(found, "own_topic", f"{detail}; choose another topic with --to-topic")
    if options.to_topic is None and not is_topic_name(name):
        detail = f"its headers name the original topic {name!r}, which is not a valid topic name"
        return kept(found, "topic_gone", f"{detail}; choose a topic with --to-topic")
    try:
        topic = topic_of(name)
    except TopicNotFoundError as error:
        if options.to_topic is not None:
            raise
        return kept(found, "topic_gone", f"{error.message}; {error.fix}" if error.fix else error.message)
    partition = None if options.partitioning == "by_key" else found.original.partition
    if partition is not None and partition >= topic.partitions:
        has = f"topic {name!r} has {topic.partitions} partition(s)"
        if options.to_topic is None:
            detail = f"its original partition is {partition}, but {has}; choose it by key with --partitioning by-key"
            return kept(found, "partition_gone", detail)
        msg = f"the original partition of dead letter {found.place} is {partition}, but {has}"
        fix = "choose the partition by key with --partitioning by-key, or add partitions to the topic"
        raise ConfigError(msg, fix=fix, topic=name, partition=partition)
    attempts = found.attempts + 1
    own = tuple(pair for pair in found.original.headers if pair[0] != ATTEMPTS_HEADER)
    record = replace(
        found.original,
        topic=name,
        partition=partition,
        offset=None,
        headers=(*own, (ATTEMPTS_HEADER, str(attempts).encode())),
    )
    return _checked(Decision(found, Action.SEND, record, attempts), topic_of, now_ms)


def _parked(found: FoundDeadLetter, options: RedriveOptions, topic_of: Callable[[str], TargetTopic]) -> Decision:
    topic = topic_of(options.parking_name)
    dead_letter = found.dead_letter
    same = dead_letter.partition is not None and dead_letter.partition < topic.partitions
    record = replace(dead_letter, topic=topic.name, partition=dead_letter.partition if same else None, offset=None)
    return Decision(found, Action.PARK, record, found.attempts)


def _checked(decision: Decision, topic_of: Callable[[str], TargetTopic], now_ms: int) -> Decision:
    """Check a decision against the limits of the target topic. Keep the dead letter if the brokers would reject it."""
    record, found = decision.record, decision.found
    if record is None or record.topic is None:
        return decision
    topic = topic_of(record.topic)
    limits = topic.limits
    if limits.compacted and record.key is None:
        return kept(found, "null_key", f"it has no key, but topic {record.topic!r} is compacted and requires keys")
    if record.timestamp_ms is not None and record.timestamp_ms not in limits.times_ms(now_ms):
        detail = f"topic {record.topic!r} does not accept its timestamp, {record.timestamp_ms} ms"
        fix = "change message.timestamp.before.max.ms or message.timestamp.after.max.ms of the topic"
        return kept(found, "timestamp", f"{detail}; {fix}")
    notes = []
    is_old = (
        topic.retention_ms is not None
        and limits.create_time
        and record.timestamp_ms is not None
        and record.timestamp_ms < now_ms - topic.retention_ms
    )
    if is_old:
        notes.append(f"it is older than the retention.ms of topic {record.topic!r}, so the brokers delete it again")
    size = record_size(record.key, record.value, record.headers)
    if size > limits.max_message_bytes:
        # Compressed, the record may still fit, as it may have before. The brokers decide.
        limit = f"the max.message.bytes of topic {record.topic!r} is {limits.max_message_bytes:,}"
        notes.append(f"its size is up to {size:,} bytes and {limit}, so the brokers may reject it")
    return replace(decision, detail="; ".join(notes) or None, is_short_lived=is_old)

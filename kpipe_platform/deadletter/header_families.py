"""The error headers of the systems that write dead letters: which header says what.

Source: Kafka Connect ``DeadLetterQueueReporter``; KIP-1034 and ``ExceptionHandlerUtils`` of Kafka Streams; KIP-1191
(share groups); Spring Kafka ``DeadLetterPublishingRecoverer`` and its retry topics; Spring Cloud Stream's Kafka
binder; SmallRye ``KafkaDeadLetterQueue``; Watermill ``middleware/poison.go``; dagster-kafka ``DLQManager``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kpipe_platform.kafka.records import Headers

Family: TypeAlias = Literal[
    "kpipe",
    "connect",
    "streams",
    "share_group",
    "spring",
    "spring_retry",
    "spring_cloud",
    "smallrye",
    "watermill",
    "dagster_kafka",
    "unknown",
]
"""Who wrote a dead letter; ``unknown`` where no header says so."""

ATTEMPTS_HEADER = "kpipe.redrive.attempts"
"""How often a record was redriven, as text. It travels with the record, so that its next dead letter has it too."""

REDACTED_HEADER = "kpipe.redacted"
"""Header of a dead letter in raw form whose bytes went through a redaction hook; its value is ``true``."""

REDACTED_MARK: tuple[str, bytes] = (REDACTED_HEADER, b"true")

ORIGIN_HEADER = "kpipe.origin"
"""Last header of a dead letter in raw form whose other headers do not say for certain where its record belongs; see
`Origin`."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a record in raw form belongs, and which headers are its own.

    kpipe writes it where the record would be read as another dead letter: it brings error headers that an earlier tool
    left, or is an envelope itself. Likewise for a rejected output, whose error headers name its source.

    Args:
        topic: The record's topic.
        partition: Its partition; None for a rejected output.
        offset: Its offset; likewise.
        header_count: Headers that the record has; they are the first ones.
        timestamp_ms: Its timestamp, where the dead-letter topic does not take it, and the dead letter has another.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    header_count: int
    timestamp_ms: int | None = None

    def to_header(self) -> tuple[str, bytes]:
        """The header, as JSON."""
        document = {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "header_count": self.header_count,
        }
        if self.timestamp_ms is not None:
            document["timestamp_ms"] = self.timestamp_ms
        return ORIGIN_HEADER, json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_headers(cls, headers: Headers) -> Origin | None:
        """What the last header says; None where it is another header.

        One that is not the last was left by an earlier hop, or came with the record.
        """
        if not headers or headers[-1][0] != ORIGIN_HEADER:
            return None
        try:
            document = json.loads(headers[-1][1] or b"")
            topic, *numbers = (document[name] for name in ("topic", "partition", "offset", "header_count"))
            timestamp_ms = document.get("timestamp_ms")
        except (ValueError, KeyError, TypeError):
            return None
        are_numbers = all(isinstance(n, int) and n >= 0 for n in numbers if n is not None)
        if not (isinstance(topic, str) and are_numbers and numbers[-1] is not None):
            return None
        partition, offset, header_count = numbers
        timestamp_ms = timestamp_ms if isinstance(timestamp_ms, int) else None
        return cls(topic, partition, offset, header_count, timestamp_ms)


@dataclass(frozen=True, slots=True)
class HeaderFamily:
    """Names of one family's headers; None for what it does not say.

    Args:
        name: The family.
        topic: Original topic.
        partition: Original partition.
        offset: Original offset.
        timestamp: Original timestamp, milliseconds.
        exceptions: The exception's class; the first that is there counts.
        cause: Class of the exception's cause.
        messages: What the exception said; the first that is there counts.
        kind: A short reason.
        who: Who gave the record up: asset, connector or group; the first that is there counts.
        attempts: How often the record was tried.
        keeps_timestamp: Whether the dead letter has the record's own timestamp, rather than its own time.
        keeps_headers: Whether the dead letter has the record's own headers.
        prepends: Whether the newest hop's headers come first, where all others append.
    """

    name: Family
    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None
    exceptions: tuple[str, ...] = ()
    cause: str | None = None
    messages: tuple[str, ...] = ()
    kind: str | None = None
    who: tuple[str, ...] = ()
    attempts: str | None = None
    keeps_timestamp: bool = False
    keeps_headers: bool = True
    prepends: bool = False


def _spring(name: Family, prefix: str) -> HeaderFamily:
    original, key = f"{prefix}original-", f"{prefix}key-exception-"
    return HeaderFamily(
        name,
        topic=f"{original}topic",
        partition=f"{original}partition",
        offset=f"{original}offset",
        timestamp=f"{original}timestamp",
        exceptions=(f"{prefix}exception-fqcn", f"{key}fqcn"),
        cause=f"{prefix}exception-cause-fqcn",
        messages=(f"{prefix}exception-message", f"{key}message"),
        who=(f"{original}consumer-group",),
        attempts="retry_topic-attempts",
    )


FAMILIES: tuple[HeaderFamily, ...] = (
    HeaderFamily(
        "connect",
        topic="__connect.errors.topic",
        partition="__connect.errors.partition",
        offset="__connect.errors.offset",
        exceptions=("__connect.errors.exception.class.name",),
        messages=("__connect.errors.exception.message",),
        kind="__connect.errors.stage",
        who=("__connect.errors.connector.name",),
        keeps_timestamp=True,
    ),
    HeaderFamily(
        "streams",
        topic="__streams.errors.topic",
        partition="__streams.errors.partition",
        offset="__streams.errors.offset",
        exceptions=("__streams.errors.exception",),
        messages=("__streams.errors.message",),
        keeps_timestamp=True,
        # It makes a new record of key and value.
        keeps_headers=False,
    ),
    HeaderFamily(
        "share_group",
        topic="__dlq.errors.topic",
        partition="__dlq.errors.partition",
        offset="__dlq.errors.offset",
        messages=("__dlq.errors.message",),
        who=("__dlq.errors.group",),
        keeps_headers=False,
    ),
    _spring("spring", "kafka_dlt-"),
    # What goes through Spring's retry topics has these names.
    _spring("spring_retry", "kafka_"),
    HeaderFamily(
        "spring_cloud",
        topic="x-original-topic",
        partition="x-original-partition",
        offset="x-original-offset",
        timestamp="x-original-timestamp",
        exceptions=("x-exception-fqcn",),
        messages=("x-exception-message",),
    ),
    HeaderFamily(
        "smallrye",
        topic="dead-letter-topic",
        partition="dead-letter-partition",
        offset="dead-letter-offset",
        exceptions=("dead-letter-exception-class-name",),
        cause="dead-letter-cause-class-name",
        messages=("dead-letter-reason",),
        prepends=True,
    ),
    HeaderFamily(
        "watermill",
        topic="topic_poisoned",
        messages=("reason_poisoned",),
        who=("subscriber_poisoned", "handler_poisoned"),
    ),
    HeaderFamily(
        "dagster_kafka",
        topic="dlq-original-topic",
        exceptions=("dlq-error-type",),
        attempts="dlq-retry-count",
    ),
)
"""Every family that says itself by headers."""

ERROR_PREFIXES = (
    "__connect.errors.",
    "__streams.errors.",
    "__dlq.errors.",
    "kafka_dlt-",
    "kafka_original-",
    "kafka_exception-",
    "kafka_key-exception-",
    "retry_topic-",
    "deserialization-failure-",
)
"""How names of error headers begin."""

ERROR_NAMES = frozenset(
    [
        *(f"x-original-{each}" for each in ("topic", "partition", "offset", "timestamp", "timestamp-type")),
        *(f"x-exception-{each}" for each in ("fqcn", "message", "stacktrace")),
        *(f"dead-letter-{each}" for each in ("topic", "partition", "offset", "reason", "cause")),
        "dead-letter-exception-class-name",
        "dead-letter-cause-class-name",
        *(f"{each}_poisoned" for each in ("topic", "reason", "handler", "subscriber")),
        *(f"dlq-{each}" for each in ("original-topic", "error-type", "retry-count", "timestamp")),
        "springDeserializerExceptionKey",
        "springDeserializerExceptionValue",
        REDACTED_HEADER,
        ORIGIN_HEADER,
    ]
)
"""Further names of error headers."""


def is_error_header(name: str) -> bool:
    """Whether a header of that name belongs to a dead letter and not to its record."""
    return name in ERROR_NAMES or name.startswith(ERROR_PREFIXES)


def own_headers(headers: Headers) -> Headers:
    """The record's own headers, untouched and in their order."""
    return tuple(pair for pair in headers if not is_error_header(pair[0]))

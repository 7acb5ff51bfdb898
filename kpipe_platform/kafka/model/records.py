"""One Kafka record as a plain value.

The same class represents records that were read and records to write. Unknown fields are None: a record that a user
builds for writing has no offset yet, and often no partition or timestamp. There are no sentinel integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

TimestampType: TypeAlias = Literal["create_time", "log_append_time"]
"""Source of a record's timestamp: the producer or the broker (``message.timestamp.type`` of the topic)."""

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Record headers in order. A key may repeat; a value may be null, which is not the same as empty."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record that was read from Kafka, or a record to write.

    Args:
        topic: Topic; None to write to the asset's topic.
        partition: Partition; None to let the partitioner choose from the key.
        offset: Offset; None for a record that is not in a log yet.
        timestamp_ms: Milliseconds since the epoch; None to let the producer use its clock.
        timestamp_type: Source of the timestamp; None for a record to write, or if there is no timestamp.
        key: Key bytes; None is a null key, ``b""`` is an empty key.
        value: The value: bytes as stored in Kafka, or the value that the topic's codec decoded. None is a tombstone.
        headers: Pairs of key and value in order; accepts any sequence of pairs.

    Raises:
        ValueError: The partition or the offset is negative.
    """

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    timestamp_type: TimestampType | None = None
    key: bytes | None = None
    value: Any = None
    headers: Headers = ()

    def __post_init__(self) -> None:
        if type(self.headers) is not tuple:
            object.__setattr__(self, "headers", tuple((key, value) for key, value in self.headers))
        if (self.partition is not None and self.partition < 0) or (self.offset is not None and self.offset < 0):
            msg = f"{self.coordinates} has a negative partition or offset: use None for an unknown one"
            raise ValueError(msg)

    @property
    def coordinates(self) -> str:
        """The record's coordinates for messages, such as ``flights[3]@42``, with ``?`` for unknown fields."""
        topic, partition, offset = ("?" if v is None else v for v in (self.topic, self.partition, self.offset))
        return f"{topic}[{partition}]@{offset}"

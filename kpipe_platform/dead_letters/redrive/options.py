"""What a redrive is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kpipe_platform.dead_letters.read.filters import DeadLetterFilter
from kpipe_platform.errors import ConfigError

Partitioning: TypeAlias = Literal["original", "by_key"]
"""``original``: the partition that the record came from. ``by_key``: what the Java client's partitioner says."""

Redacted: TypeAlias = Literal["keep", "from_source", "as_is"]
"""What becomes of a redacted payload: stays; the original bytes from the source topic; what the hook left of it."""


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """What to redrive, and how.

    Args:
        topic: The dead-letter topic.
        filter: Which dead letters; by default all.
        letter_partitions: Partitions of the dead-letter topic; empty: all.
        group: The group that holds the progress; None: ``{topic}.redrive``. Another group knows nothing of what was
            redriven by this one.
        to_topic: Where records go; None: back to their original topics.
        partitioning: ``original``, or ``by_key``.
        max_attempts: How often one record is redriven before its dead letter is parked.
        parking_topic: Where to; None: ``{topic}.parking``.
        create_parking_topic: Create it when it is missing and needed, with as many partitions as the dead-letter topic.
        redacted: What becomes of redacted payloads: ``keep``, ``from_source`` or ``as_is``.
        start: Where a group without an offset begins: ``earliest``, or ``error`` for a redrive by schedule, whose group
            must have one.
        dry_run: Say what would be done, and move nothing.
        limit: Stop after so many dead letters were sent or parked; those that cannot be redriven do not count, so that
            they stop no other.
        max_records_per_s: Dead letters to send or park a second, at most.
        batch_records: Dead letters of one transaction, at most.
        transaction_timeout_s: The brokers abort a transaction that is open for longer, seconds.

    Raises:
        ConfigError: A number is out of its bounds, or a topic would be redriven into itself.
    """

    topic: str
    filter: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    letter_partitions: tuple[int, ...] = ()
    group: str | None = None
    to_topic: str | None = None
    partitioning: Partitioning = "original"
    max_attempts: int = 3
    parking_topic: str | None = None
    create_parking_topic: bool = False
    redacted: Redacted = "keep"
    start: Literal["earliest", "error"] = "earliest"
    dry_run: bool = False
    limit: int | None = None
    max_records_per_s: float | None = None
    batch_records: int = 500
    transaction_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("limit", "batch_records"):
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name} is {value}"
                raise ConfigError(msg, fix=f"set {name} to 1 or more")
        if not self.transaction_timeout_s > 0:
            msg = f"transaction_timeout_s is {self.transaction_timeout_s}"
            raise ConfigError(msg, fix="set it to a number of seconds, for example 60")
        if self.max_attempts < 1:
            msg = f"max_attempts is {self.max_attempts}, so that nothing would ever be redriven"
            raise ConfigError(msg, fix="set max_attempts to 1 or more")
        for name, topic in (("to_topic", self.to_topic), ("parking_topic", self.parking_name)):
            if topic == self.topic:
                msg = f"{name} is {topic!r}, the topic that is redriven"
                raise ConfigError(msg, fix="choose another topic: dead letters would come back for ever")

    @property
    def group_name(self) -> str:
        """The group that holds the progress."""
        return self.group or redrive_group(self.topic)

    @property
    def parking_name(self) -> str:
        """Where dead letters are parked."""
        return self.parking_topic or f"{self.topic}.parking"


def redrive_group(topic: str) -> str:
    """The group that holds the progress of redrives of a dead-letter topic."""
    return f"{topic}.redrive"

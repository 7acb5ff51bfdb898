"""Options of a redrive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kpipe_platform.dead_letters.read.filters import DeadLetterFilter
from kpipe_platform.errors import ConfigError

Partitioning: TypeAlias = Literal["original", "by_key"]
"""``original``: the record's original partition. ``by_key``: the choice of the Java client's partitioner."""

Redacted: TypeAlias = Literal["keep", "from_source", "as_is"]
"""How to handle a redacted payload: keep the dead letter, send the bytes from the source topic, or send it redacted."""


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """What to redrive, and how.

    Args:
        topic: The dead-letter topic.
        filter: Which dead letters to redrive. Default: all.
        dead_letter_partitions: Partitions of the dead-letter topic to read. Empty means all.
        group: The consumer group that stores the progress. None means ``{topic}.redrive``. Each group has its own
            progress: a redrive with another group sends the same dead letters again.
        to_topic: The topic to send records to. None means their original topics.
        partitioning: ``original``, or ``by_key``.
        max_attempts: Maximum number of redrives of a record before its dead letter is parked.
        parking_topic: The topic for parked dead letters. None means ``{topic}.parking``.
        create_parking_topic: Create the parking topic when it is needed and missing, with as many partitions as the
            dead-letter topic.
        redacted: How to handle redacted payloads: ``keep``, ``from_source`` or ``as_is``.
        start: Where to begin if the group has no offset: ``earliest``, or ``error`` to fail, for scheduled redrives.
        dry_run: Report what would be done, but send nothing.
        limit: Stop after this many dead letters were sent or parked. Those that cannot be redriven do not count, so
            they do not block others.
        max_records_per_s: Maximum rate of dead letters to send or park, per second. None means no limit.
        batch_records: Maximum number of dead letters in one transaction.
        transaction_timeout_s: Seconds after which the brokers abort an open transaction.

    Raises:
        ConfigError: A number is out of range, or the dead-letter topic is its own target.
    """

    topic: str
    filter: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    dead_letter_partitions: tuple[int, ...] = ()
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
                msg = f"{name} is {value}, below 1"
                raise ConfigError(msg, fix=f"set {name} to 1 or more")
        if not self.transaction_timeout_s > 0:
            msg = f"transaction_timeout_s is {self.transaction_timeout_s}, not above 0"
            raise ConfigError(msg, fix="set transaction_timeout_s to a number of seconds, for example 60")
        if self.max_attempts < 1:
            msg = f"max_attempts is {self.max_attempts}, so no dead letter would be redriven"
            raise ConfigError(msg, fix="set max_attempts to 1 or more")
        for name, topic in (("to_topic", self.to_topic), ("parking_topic", self.parking_name)):
            if topic == self.topic:
                msg = f"{name} is {topic!r}, the dead-letter topic itself, so dead letters would return to it forever"
                raise ConfigError(msg, fix=f"set {name} to another topic")

    @property
    def group_name(self) -> str:
        """The consumer group that stores the progress."""
        return self.group or redrive_group(self.topic)

    @property
    def parking_name(self) -> str:
        """The topic for parked dead letters."""
        return self.parking_topic or f"{self.topic}.parking"


def redrive_group(topic: str) -> str:
    """Return the default consumer group that stores the progress of redrives of a dead-letter topic."""
    return f"{topic}.redrive"

"""What a redrive did, or would do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kpipe_platform.dead_letters.redrive.decide import Action, Decision

MAX_KEPT = 1_000
"""Dead letters that a result names with their reason; all of them are counted."""


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """Where a redrive stands.

    Args:
        partition: Partition of the dead-letter topic.
        start: Where reading began.
        position: The next offset to read.
        end: Where reading ends.
        moved: Dead letters of this partition that were sent or parked.
    """

    partition: int
    start: int
    position: int
    end: int
    moved: int


@dataclass(slots=True)
class PartitionResult:
    """Counted dead letters of one partition.

    Args:
        partition: Partition of the dead-letter topic.
        start: Where reading began.
        end: Where it ended: the end of committed records when the redrive began.
        committed: The group's offset now; in a dry run as it would be.
        read: Dead letters that were read.
        done_before: Of these, redriven by an earlier redrive.
        left_out: Of these, passed over by the filter.
        sent: Of these, whose record was sent.
        parked: Of these, parked.
        kept: Of these, that cannot be redriven.
        expired: Offsets that retention took before they were redriven; an upper bound of the records.
        is_new: Whether the group had no offset here.
    """

    partition: int
    start: int
    end: int
    committed: int
    read: int = 0
    done_before: int = 0
    left_out: int = 0
    sent: int = 0
    parked: int = 0
    kept: int = 0
    expired: int = 0
    is_new: bool = False

    @property
    def moved(self) -> int:
        """Sent or parked."""
        return self.sent + self.parked


@dataclass(frozen=True, slots=True)
class Kept:
    """A dead letter that cannot be redriven, and stays.

    Args:
        partition: Partition of the dead-letter topic.
        offset: Its offset there.
        reason: Why, in a word.
        detail: Why, in a sentence.
    """

    partition: int
    offset: int
    reason: str
    detail: str


@dataclass(slots=True)
class RedriveResult:
    """What a redrive did; in a dry run, what it would do.

    Args:
        topic: The dead-letter topic.
        group: The group that holds the progress.
        parking_topic: Where dead letters are parked.
        dry_run: Whether nothing was moved.
        partitions: Counts by partition of the dead-letter topic.
        kept: The first `MAX_KEPT` dead letters that cannot be redriven.
        kept_by_reason: All of them, counted.
        sent_to: Records by the topic that they were sent to.
        short_lived: Dead letters that were sent with a timestamp older than what their topic keeps (``retention.ms``):
            the brokers delete them again.
        limited: Whether the redrive stopped at its limit, with more to do perhaps.
    """

    topic: str
    group: str
    parking_topic: str
    dry_run: bool
    partitions: list[PartitionResult] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    kept_by_reason: Counter[str] = field(default_factory=Counter)
    sent_to: Counter[str] = field(default_factory=Counter)
    short_lived: int = 0
    limited: bool = False

    def total(self, name: str) -> int:
        """The sum of one count over all partitions."""
        return sum(getattr(partition, name) for partition in self.partitions)

    def note(self, counts: PartitionResult, decision: Decision) -> None:
        """Count what became of a dead letter."""
        self.short_lived += decision.is_short_lived
        if decision.action is Action.SEND:
            counts.sent += 1
            self.sent_to[(decision.record and decision.record.topic) or ""] += 1
        elif decision.action is Action.PARK:
            counts.parked += 1
        else:
            counts.kept += 1
            reason = decision.reason or ""
            self.kept_by_reason[reason] += 1
            if len(self.kept) < MAX_KEPT:
                offset = decision.found.letter.offset or 0
                self.kept.append(Kept(counts.partition, offset, reason, decision.detail or ""))

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        names = ("read", "done_before", "left_out", "sent", "parked", "kept", "expired")
        return {
            "topic": self.topic,
            "group": self.group,
            "parking_topic": self.parking_topic,
            "dry_run": self.dry_run,
            "limited": self.limited,
            "short_lived": self.short_lived,
            **{name: self.total(name) for name in names},
            "sent_to": dict(self.sent_to),
            "kept_by_reason": dict(self.kept_by_reason),
            "kept_letters": [{name: getattr(each, name) for name in each.__slots__} for each in self.kept],
            "partitions": [{name: getattr(each, name) for name in each.__slots__} for each in self.partitions],
        }

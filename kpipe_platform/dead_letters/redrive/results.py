"""Result of a redrive or of a dry run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kpipe_platform.dead_letters.redrive.decide import Action, Decision

MAX_KEPT = 1_000
"""Maximum number of kept dead letters that a result lists with their reasons. All of them are counted."""


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """Progress of a redrive in one partition.

    Args:
        partition: Partition of the dead-letter topic.
        start: Offset at which reading began.
        position: The next offset to read.
        end: Offset at which reading ends.
        moved: Number of dead letters of this partition that were sent or parked.
    """

    partition: int
    start: int
    position: int
    end: int
    moved: int


@dataclass(slots=True)
class PartitionResult:
    """Counts of the dead letters of one partition.

    Args:
        partition: Partition of the dead-letter topic.
        start: Offset at which reading began.
        end: Offset at which reading ends: the end of committed records when the redrive began.
        committed: The group's offset now. In a dry run, the offset that it would have.
        read: Dead letters read.
        done_before: Those that an earlier redrive finished.
        left_out: Those that the filter excludes.
        sent: Those whose record was sent.
        parked: Those that were parked.
        kept: Those that cannot be redriven.
        expired: Offsets that retention deleted before they were redriven: an upper bound of the number of records.
        is_new: Whether the group had no offset for this partition.
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
        """Number of dead letters that were sent or parked."""
        return self.sent + self.parked


@dataclass(frozen=True, slots=True)
class Kept:
    """A dead letter that cannot be redriven and stays in its topic.

    Args:
        partition: Partition of the dead-letter topic.
        offset: Its offset there.
        reason: Why, as one word.
        detail: Why, as a sentence.
    """

    partition: int
    offset: int
    reason: str
    detail: str


@dataclass(slots=True)
class RedriveResult:
    """What a redrive did, or would do in a dry run.

    Args:
        topic: The dead-letter topic.
        group: The consumer group that stores the progress.
        parking_topic: The topic for parked dead letters.
        dry_run: Whether it was a dry run, which sends nothing.
        partitions: Counts by partition of the dead-letter topic.
        kept: The first `MAX_KEPT` dead letters that cannot be redriven.
        kept_by_reason: Counts of all dead letters that cannot be redriven, by reason.
        sent_to: Number of records by target topic.
        short_lived: Number of dead letters sent although their timestamp is older than their topic's retention
            (``retention.ms``). The brokers delete them again.
        limited: Whether the redrive stopped at its limit. Dead letters may remain.
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
        """Return the sum of one count over all partitions."""
        return sum(getattr(partition, name) for partition in self.partitions)

    def note(self, counts: PartitionResult, decision: Decision) -> None:
        """Count the outcome of a dead letter."""
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
                offset = decision.found.dead_letter.offset or 0
                self.kept.append(Kept(counts.partition, offset, reason, decision.detail or ""))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
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
            "kept_dead_letters": [{name: getattr(each, name) for name in each.__slots__} for each in self.kept],
            "partitions": [{name: getattr(each, name) for name in each.__slots__} for each in self.partitions],
        }

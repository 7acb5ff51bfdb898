"""Partition execution events: what becomes of a Kafka partition of an asset, and how that stands in the log.

The logger ``kpipe_platform.observability.events`` takes nothing else. Each of its messages is one JSON object, so a
collector needs no pattern: it parses the message. ``failed`` and ``lost`` are warnings, the others are for information.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

logger = logging.getLogger(__name__)

# A reason may hold the report of a stage that failed; the run itself has all of it.
_REASON_CHARACTERS = 1_000


class PartitionEventKind(str, Enum):
    """A change of a partition."""

    ASSIGNED = "assigned"
    """This deployment was given it, or believes in it again after a silence of the coordinator."""
    DRAINING = "draining"
    """Another deployment is to have it: no new work, and work in flight is waited for."""
    DRAINED = "drained"
    """No work on it is in flight any more."""
    REVOKED = "revoked"
    """It was given away."""
    LOST = "lost"
    """It was taken away, or is in doubt because the coordinator is silent."""
    PAUSED = "paused"
    """An operator paused it."""
    RESUMED = "resumed"
    """An operator resumed it."""
    SATURATED = "saturated"
    """It is due, and as many partitions are worked on as the bounds allow."""
    STARTED = "started"
    """A run knows which of its offsets it takes, and begins."""
    COMPLETED = "completed"
    """A run has committed all that it took of it."""
    FAILED = "failed"
    """A run stopped there with offsets uncommitted."""


@dataclass(frozen=True)
class PartitionEvent:
    """One change of one partition.

    Args:
        kind: What happened.
        topic: Topic.
        partition: Kafka partition; None: every partition, of a run over all that failed before it knew them.
        group: The asset's consumer group.
        asset: The asset's key, joined by ``/``; None where only the group is known.
        run_id: The Dagster run; None where none is concerned.
        member: The coordinator's id of the owner; None where ownership is not concerned.
        start: First offset concerned; None where no offsets are.
        end: Offset behind the last.
        counts: Counted records by name: read, written (absent where nobody counted), dead_letters, skipped.
        reason: Why, in words.
        at_ms: When, milliseconds since the epoch.
    """

    kind: PartitionEventKind
    topic: str
    partition: int | None
    group: str
    asset: str | None = None
    run_id: str | None = None
    member: str | None = None
    start: int | None = None
    end: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
    at_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    @property
    def where(self) -> str:
        """The place for people: ``orders/3 [100, 250)``."""
        offsets = "" if self.start is None else f" [{self.start}, {self.end})"
        return f"{self.topic}/{'all' if self.partition is None else self.partition}{offsets}"

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values; what is None is left out, but for the partition."""
        at = dt.datetime.fromtimestamp(self.at_ms / 1000, dt.timezone.utc)
        found: dict[str, Any] = {
            "event": self.kind.value,
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "topic": self.topic,
            "partition": self.partition,
            "group": self.group,
        }
        others = {
            "asset": self.asset,
            "run_id": self.run_id,
            "member": self.member,
            "start": self.start,
            "end": self.end,
            **self.counts,
            "reason": self.reason,
        }
        return found | {name: value for name, value in others.items() if value is not None}

    def to_text(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)


_WARNINGS = (PartitionEventKind.FAILED, PartitionEventKind.LOST)


def log_events(events: Iterable[PartitionEvent]) -> None:
    """Write events to the log, a line each; safe in any thread."""
    for event in events:
        logger.log(logging.WARNING if event.kind in _WARNINGS else logging.INFO, "%s", event.to_text())


def reason_of(error: BaseException) -> str:
    """An error as the reason of an event: its type and text, of bounded length."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return shortened(text)


def shortened(text: str) -> str:
    """A reason of bounded length."""
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 1] + "…"

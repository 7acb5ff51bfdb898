"""Partition execution events: changes of an asset's Kafka partitions, and their format in the log.

The logger ``kpipe_platform.observability.events`` logs only these events. Each message is one JSON object that a log
collector can parse. ``failed`` and ``lost`` are logged as WARNING, the others as INFO.
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

# A reason may contain the report of a failed stage. The run's log has the complete report.
_REASON_CHARACTERS = 1_000


class PartitionEventKind(str, Enum):
    """A change of a partition."""

    ASSIGNED = "assigned"
    """It was assigned to this deployment, or its assignment is certain again after the group coordinator responded."""
    DRAINING = "draining"
    """It moves to another deployment: no new runs start, and the deployment waits for work in flight."""
    DRAINED = "drained"
    """No work on it is in flight anymore."""
    REVOKED = "revoked"
    """The deployment gave it up."""
    LOST = "lost"
    """The deployment lost it, or its assignment is uncertain because the group coordinator does not respond."""
    PAUSED = "paused"
    """An operator paused it."""
    RESUMED = "resumed"
    """An operator resumed it."""
    SATURATED = "saturated"
    """A run for it is due, but the limit on partitions or runs is reached."""
    STARTED = "started"
    """A run has planned its offsets and starts to process them."""
    COMPLETED = "completed"
    """A run has committed all of its planned offsets."""
    FAILED = "failed"
    """A run stopped before it committed all of its offsets."""


@dataclass(frozen=True)
class PartitionEvent:
    """One change of one partition.

    Args:
        kind: What happened.
        topic: Topic; None: every topic of the asset, for a pause.
        partition: Kafka partition; None: all partitions, for a run over all that failed before it had their numbers.
        group: The asset's consumer group; None for an operator's pause, which names the asset.
        asset: The asset key, joined by ``/``; None if only the group is known.
        run_id: The Dagster run; None for events without a run.
        member: The owner's member id in the group; None for events that do not concern ownership.
        start: First offset of the range; None for events without offsets.
        end: Offset after the last.
        counts: Record counts by name: read, written (absent if not counted), dead_letters, skipped.
        reason: Reason, as text for people.
        at_ms: Time of the event, milliseconds since the epoch.
    """

    kind: PartitionEventKind
    topic: str | None
    partition: int | None
    group: str | None = None
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
        """Topic, partition and offset range as text: ``orders/3 [100, 250)``."""
        offsets = "" if self.start is None else f" [{self.start}, {self.end})"
        return f"{self.topic or self.asset}/{'all' if self.partition is None else self.partition}{offsets}"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain values. Values that are None are omitted, except the partition."""
        at = dt.datetime.fromtimestamp(self.at_ms / 1000, dt.timezone.utc)
        values = {
            "topic": self.topic,
            "partition": self.partition,
            "group": self.group,
            "asset": self.asset,
            "run_id": self.run_id,
            "member": self.member,
            "start": self.start,
            "end": self.end,
            **self.counts,
            "reason": self.reason,
        }
        return {
            "event": self.kind.value,
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            **{name: value for name, value in values.items() if value is not None or name == "partition"},
        }

    def to_text(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)


_WARNINGS = (PartitionEventKind.FAILED, PartitionEventKind.LOST)


def log_events(events: Iterable[PartitionEvent]) -> None:
    """Log each event as one line. Thread-safe."""
    for event in events:
        logger.log(logging.WARNING if event.kind in _WARNINGS else logging.INFO, "%s", event.to_text())


def reason_of(error: BaseException) -> str:
    """Return an error's type and text as the reason of an event, truncated to 1,000 characters."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return shortened(text)


def shortened(text: str) -> str:
    """Truncate a reason to 1,000 characters."""
    return text if len(text) <= _REASON_CHARACTERS else text[: _REASON_CHARACTERS - 1] + "…"

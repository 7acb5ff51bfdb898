"""The sensor's cursor: hints that a tick leaves for the next one. A tick decides correctly without it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
REMEMBERED = 500
"""Maximum number of partitions in each part of the cursor, about 30 characters each. Dagster stores the cursor in a
text column, which holds 64 KiB in the worst case (MySQL)."""


@dataclass(frozen=True)
class Seen:
    """An unprocessed offset, and when it was first seen.

    Args:
        start: The group's offset, summed over topics and partitions; 0 if it has none.
        at_s: When it was first seen, seconds since the epoch.
    """

    start: int
    at_s: float


@dataclass(frozen=True)
class Cursor:
    """The state that a sensor keeps between ticks.

    Args:
        seen: Partitions whose lag is below the minimum, and when their oldest unprocessed offset was first seen; -1
            for an unpartitioned asset.
        seen_rest_s: The earliest such time of the partitions that did not fit in ``seen``, seconds since the epoch.
        reported: Name of the logged problem, by partition.
        after: The partition that a run was requested for last.
        summary: Summary of the last tick, for people.
        saturated: Partitions that were logged as saturated and still are.
    """

    seen: Mapping[int, Seen] = field(default_factory=dict)
    seen_rest_s: float | None = None
    reported: Mapping[int, str] = field(default_factory=dict)
    after: int | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    saturated: frozenset[int] = frozenset()

    @classmethod
    def from_text(cls, text: str | None) -> Cursor:
        """Parse a cursor. The result is empty if the text is absent or not a cursor of this version."""
        try:
            data = json.loads(text or "")
            if data["kpipe"] != VERSION:
                return cls()
            return cls(
                seen={int(n): Seen(int(start), _finite(at_s)) for n, start, at_s in data["seen"]},
                seen_rest_s=None if data["seen_rest_s"] is None else _finite(data["seen_rest_s"]),
                reported={int(n): str(what) for n, what in data["reported"]},
                after=None if data["after"] is None else int(data["after"]),
                # Cursors of earlier releases lack this field.
                saturated=frozenset(int(number) for number in data.get("saturated", ())),
                summary=dict(data["summary"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return cls()

    def to_text(self) -> str:
        """Return the cursor as JSON of bounded size."""
        oldest = sorted(self.seen.items(), key=lambda item: (item[1].at_s, item[0]))
        rest = [seen.at_s for _, seen in oldest[REMEMBERED:]]
        if self.seen_rest_s is not None:
            rest.append(self.seen_rest_s)
        return json.dumps(
            {
                "kpipe": VERSION,
                "summary": dict(self.summary),
                "after": self.after,
                "seen": [[n, seen.start, math.floor(seen.at_s)] for n, seen in oldest[:REMEMBERED]],
                "seen_rest_s": min(rest, default=None),
                "reported": [list(item) for item in sorted(self.reported.items())[:REMEMBERED]],
                "saturated": sorted(self.saturated)[:REMEMBERED],
            },
            separators=(",", ":"),
        )

    @property
    def is_full(self) -> bool:
        """Whether further problems do not fit. They are then not logged, because each tick would log them again."""
        return len(self.reported) >= REMEMBERED

    def first_seen_s(self, number: int, start: int, now_s: float) -> float:
        """Return when the partition's oldest unprocessed offset was first seen; ``now_s`` if that is unknown."""
        seen = self.seen.get(number)
        if seen is None:
            # For a partition that did not fit in the cursor, an early run is better than none.
            return now_s if self.seen_rest_s is None else min(self.seen_rest_s, now_s)
        # min(): the wait must not get longer if the clock was set back.
        return min(seen.at_s, now_s) if seen.start == start else now_s


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number

"""The text that kpipe stores beside a committed offset.

It tells a later run which topic the offset belongs to (a recreated topic has another id), and a retried task
what an earlier attempt committed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

# Brokers take at most offset.metadata.max.bytes, 4,096 by default; the text below stays under 450.
VERSION = 1


@dataclass(frozen=True)
class SliceCounts:
    """Counted records of one slice.

    Args:
        read: Records read from the source.
        written: Records written to the destination.
        dead_lettered: Records written to the dead-letter topic.
        skipped: Records dropped by ``FaultAction.SKIP``.
    """

    read: int = 0
    written: int = 0
    dead_lettered: int = 0
    skipped: int = 0

    def __add__(self, other: SliceCounts) -> SliceCounts:
        return SliceCounts(
            self.read + other.read,
            self.written + other.written,
            self.dead_lettered + other.dead_lettered,
            self.skipped + other.skipped,
        )


@dataclass(frozen=True)
class CommitMetadata:
    """What stands beside a committed offset.

    Args:
        topic_id: Id of the topic when the offset was committed.
        run_id: Dagster run, or another name of who committed.
        slice_id: Names one attempt-independent slice of the run.
        unit: Transactional id that committed, of a slice in lanes that of the first lane; another one committing later
            fences this one first.
        start: First offset of the slice, or of the lane, in this partition.
        counts: Counted records of the whole slice; in lanes those of all that are committed.
        lane: Lanes of the slice that are committed.
        lanes: Lanes that the slice has; 1 for a slice that is written whole.
        stopped: The lane that is next found that it cannot be written; those behind it end too.
        at_ms: When it was committed, milliseconds since the epoch; None: by a version that did not say so.
        partitions: Partitions that the topic had when the group began in this one; None: by a version that did not say
            so. A partition with a higher number was added to the topic later.
    """

    topic_id: str
    run_id: str
    slice_id: str
    unit: str
    start: int
    counts: SliceCounts
    lane: int = 1
    lanes: int = 1
    stopped: bool = False
    at_ms: int | None = None
    partitions: int | None = None

    @property
    def is_whole(self) -> bool:
        """False where lanes of the slice may still be at work."""
        return self.lane == self.lanes

    def to_text(self) -> str:
        """JSON for the offset's metadata field."""
        return json.dumps({"kpipe": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> CommitMetadata | None:
        """Read it back; None where the text is absent or was written by another tool."""
        try:
            data = json.loads(text or "")
            if data.pop("kpipe") != VERSION:
                return None
            # What a later version has added is not needed here.
            known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
            return cls(**{**known, "counts": SliceCounts(**data["counts"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

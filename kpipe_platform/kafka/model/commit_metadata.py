"""The metadata that kpipe stores with a committed offset.

A later run reads from it which topic the offset belongs to (a recreated topic has a different id). A retried task
reads from it what an earlier attempt committed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

# Brokers accept at most offset.metadata.max.bytes, 4,096 by default; the text below stays under 450 bytes.
VERSION = 1


@dataclass(frozen=True)
class SliceCounts:
    """Record counts of one slice.

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
    """The metadata stored with a committed offset.

    Args:
        topic_id: Id of the topic when the offset was committed.
        run_id: Dagster run id, or another name of the committer.
        slice_id: Name of the slice within the run; the same for every attempt.
        unit: Transactional id of the commit; for a slice in lanes, the id of the first lane. A later commit under a
            different id fences this one first.
        start: First offset of the slice, or of the lane, in this partition.
        counts: Record counts of the whole slice; for a slice in lanes, of all committed lanes.
        lane: Number of committed lanes.
        lanes: Number of lanes in the slice; 1 for a slice that is written whole.
        stopped: True if the next lane cannot be written. The lanes after it stop too.
        at_ms: Commit time, milliseconds since the epoch; None if written by a version that did not store it.
        partitions: Number of partitions in the topic when the group started to read this partition; None if written
            by a version that did not store it. A partition with a higher number was added to the topic later.
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
        """False if lanes of the slice may still be running."""
        return self.lane == self.lanes

    def to_text(self) -> str:
        """Return JSON for the offset's metadata field."""
        return json.dumps({"kpipe": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> CommitMetadata | None:
        """Parse the stored text; None if it is absent, from another format version, or from another tool."""
        try:
            data = json.loads(text or "")
            if data.pop("kpipe") != VERSION:
                return None
            # Ignore fields that a later version added.
            known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
            return cls(**{**known, "counts": SliceCounts(**data["counts"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

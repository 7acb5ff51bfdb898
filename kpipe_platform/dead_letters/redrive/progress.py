"""Progress of a redrive in one partition: the group's offset, and the offsets after it that are done.

A redrive with a filter skips records. The group's offset stays before the first skipped record, and the commit
metadata lists the offset ranges after it that are done. So no dead letter is lost or redriven twice, and ordinary lag
tools show the remaining ones.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata

MAX_TEXT_BYTES = 4_096
"""Maximum size of commit metadata: the brokers' default of ``offset.metadata.max.bytes``."""

ALWAYS_FIT = 1_000
"""Number of offsets whose progress always fits into `MAX_TEXT_BYTES`. In the worst case every second offset is done:
each takes two numbers of two bytes, and base64 turns three bytes into four."""

_VERSION = 1

Run = tuple[int, int]
"""An offset range ``[start, end)``."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The done offsets of a partition.

    Args:
        frontier: The group's offset. Every dead letter before it is done.
        done: Offset ranges after the frontier that are done, in order and not adjacent. A range includes gaps between
            records, because no record can appear in a gap later.
    """

    frontier: int
    done: tuple[Run, ...] = ()

    def is_done(self, offset: int) -> bool:
        """Return whether the dead letter at this offset is done."""
        if offset < self.frontier:
            return True
        index = bisect_right(self.done, (offset, 2**63)) - 1
        return index >= 0 and offset < self.done[index][1]

    def advanced(self, start: int, records: Iterable[tuple[int, bool]], end: int | None = None) -> Progress:
        """Return the progress after reading more records.

        Args:
            start: Offset at which reading continued. There is no record between it and the first one.
            records: Offset of each record read, in order, and whether it is done now.
            end: Offset at which reading ended, if the records are the last ones before it.
        """
        runs = list(self.done)
        for offset, is_done in records:
            if is_done:
                # Offsets between records are transaction markers or compacted records.
                runs.append((start, offset + 1))
            start = offset + 1
        if end is not None and start < end:
            runs.append((start, end))
        return self._with(runs)

    def from_log_start(self, log_start: int) -> Progress:
        """Return the progress after retention: offsets before the log start count as done."""
        return self if log_start <= self.frontier else self._with([*self.done, (self.frontier, log_start)])

    def undone_before(self, offset: int) -> int:
        """Return how many offsets before this one are not done: an upper bound of the number of records."""
        covered = sum(max(0, min(end, offset) - start) for start, end in self.done)
        return max(0, offset - self.frontier - covered)

    def _with(self, runs: Sequence[Run]) -> Progress:
        frontier = self.frontier
        merged: list[list[int]] = []
        for start, end in sorted(runs):
            if start <= frontier:
                frontier = max(frontier, end)
            elif merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        return Progress(frontier, tuple((start, end) for start, end in merged))

    def to_text(self, topic_id: str) -> str:
        """Return the commit metadata.

        Raises:
            ConfigError: The text is longer than `MAX_TEXT_BYTES`.
        """
        done = base64.b64encode(zlib.compress(_packed(self), 9)).decode("ascii") if self.done else ""
        text = json.dumps(
            {"kpipe_redrive": _VERSION, "topic_id": topic_id, "done": done}, separators=(",", ":"), ensure_ascii=True
        )
        if len(text) > MAX_TEXT_BYTES:
            msg = (
                f"the redrive skips too many dead letters after offset {self.frontier}: its progress takes "
                f"{len(text):,} bytes, and commit metadata is limited to {MAX_TEXT_BYTES:,} bytes"
            )
            fix = (
                f"first redrive the dead letters from offset {self.frontier} on, or move them to another topic with "
                "--to-topic; or use a filter that skips fewer"
            )
            raise ConfigError(msg, fix=fix, frontier=self.frontier)
        return text

    @classmethod
    def from_text(cls, offset: int, text: str | None) -> tuple[Progress, str | None]:
        """Parse the progress from a group's offset.

        Args:
            offset: The committed offset.
            text: The commit metadata.

        Returns:
            The progress, and the topic id at the time of the commit. With the metadata of another tool, only the
            offsets before the committed one are done, and the topic id is None. Metadata of ``kpipe offsets set``
            contains the topic id.
        """
        try:
            document = json.loads(text or "")
            if document["kpipe_redrive"] == _VERSION:
                packed = zlib.decompress(base64.b64decode(document["done"])) if document["done"] else b""
                return cls(offset, tuple(_unpacked(offset, packed))), document["topic_id"]
        except (ValueError, KeyError, TypeError, zlib.error):
            pass
        other = CommitMetadata.from_text(text)
        return cls(offset), None if other is None else other.topic_id


def _packed(progress: Progress) -> bytes:
    """Encode the gap before each range and its length as variable-length integers: 7 bits a byte, lowest first."""
    packed, position = bytearray(), progress.frontier
    for start, end in progress.done:
        for number in (start - position, end - start):
            left = number
            while left > 0x7F:
                packed.append(left & 0x7F | 0x80)
                left >>= 7
            packed.append(left)
        position = end
    return bytes(packed)


def _unpacked(position: int, packed: bytes) -> list[Run]:
    numbers, number, shift = [], 0, 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    runs = []
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        runs.append((position + gap, position + gap + length))
        position += gap + length
    return runs

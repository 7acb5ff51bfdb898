"""Which dead letters of one partition were redriven: the group's offset, and what lies behind it.

A redrive with a filter passes over records. The group's offset stays before the first of them, and the text beside it
names the runs of offsets behind it that are done. So nothing is forgotten, nothing is done twice, and ordinary lag
tools see what is left.
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
"""What brokers take beside an offset: ``offset.metadata.max.bytes``, by default."""

ALWAYS_FIT = 1_000
"""Whatever is done of so many offsets, the text takes no more than `MAX_TEXT_BYTES`: every second one of them takes two
numbers of two bytes each, and base64 makes four bytes of three."""

_VERSION = 1

Run = tuple[int, int]
"""Offsets ``[start, end)``."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What of a partition is done.

    Args:
        frontier: The group's offset: every dead letter before it is done.
        done: Runs behind the frontier that are done, in order and apart. A run covers the gaps inside it: there is no
            record in a gap, and nothing can come into it.
    """

    frontier: int
    done: tuple[Run, ...] = ()

    def is_done(self, offset: int) -> bool:
        """Whether the dead letter at this offset is done."""
        if offset < self.frontier:
            return True
        index = bisect_right(self.done, (offset, 2**63)) - 1
        return index >= 0 and offset < self.done[index][1]

    def advanced(self, start: int, records: Iterable[tuple[int, bool]], end: int | None = None) -> Progress:
        """After some more records.

        Args:
            start: Where reading went on: there is no record between it and the first one.
            records: Offset of each record that was read, in order, and whether it is done now.
            end: Where reading ended, when the records are the last ones before it.
        """
        runs = list(self.done)
        for offset, is_done in records:
            if is_done:
                # What lies before a record without being one is a marker or was compacted away.
                runs.append((start, offset + 1))
            start = offset + 1
        if end is not None and start < end:
            runs.append((start, end))
        return self._with(runs)

    def from_log_start(self, log_start: int) -> Progress:
        """After retention: what it took is not to be done any more."""
        return self if log_start <= self.frontier else self._with([*self.done, (self.frontier, log_start)])

    def undone_before(self, offset: int) -> int:
        """Offsets before this one that are not done; an upper bound of the records."""
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
        """The text for the offset's metadata field.

        Raises:
            ConfigError: It is longer than brokers take.
        """
        done = base64.b64encode(zlib.compress(_packed(self), 9)).decode("ascii") if self.done else ""
        text = json.dumps(
            {"kpipe_redrive": _VERSION, "topic_id": topic_id, "done": done}, separators=(",", ":"), ensure_ascii=True
        )
        if len(text) > MAX_TEXT_BYTES:
            msg = (
                f"the redrive passes over so many dead letters from offset {self.frontier} on that what is done "
                f"between them takes {len(text):,} bytes, and a group's offset takes {MAX_TEXT_BYTES:,} beside it"
            )
            fix = (
                f"first redrive those from offset {self.frontier} on, or move them to a topic of their own with "
                "--to-topic; or use a wider filter"
            )
            raise ConfigError(msg, fix=fix, frontier=self.frontier)
        return text

    @classmethod
    def from_text(cls, offset: int, text: str | None) -> tuple[Progress, str | None]:
        """Read a group's offset.

        Args:
            offset: The committed offset.
            text: What stands beside it.

        Returns:
            The progress, and the id that the topic had. Text of another tool names nothing that is done; of
            ``kpipe offsets set`` the topic's id is known.
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
    """Gap and length of each run, as numbers of seven bits a byte, lowest first."""
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

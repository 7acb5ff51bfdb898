"""Output rows in the writer task, and the checks that need no broker."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kpipe_platform.kafka.sizes import record_size
from kpipe_platform.kafka.whereabouts import INSTANCE_HEADER, LEASE_HEADER, WORKER_HEADER
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.spark.writer_spec import Rejected, WriterSpec

Headers = list[tuple[str, bytes | None]]

SOURCE_HEADER = "kpipe.source"
"""Header of an output: ``topic/partition/offset`` of the record that it came from."""

STAMP_HEADERS = frozenset([SOURCE_HEADER, INSTANCE_HEADER, WORKER_HEADER, LEASE_HEADER])
"""Headers of which an output has those of the last hop only; the hop before is in the record there."""


class Row(NamedTuple):
    """One record to write.

    Args:
        src: Index of its range in the slice; None where the stage dropped ``_kafka``.
        src_offset: Offset of the source record; None likewise.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None
    src: int | None = None
    src_offset: int | None = None

    def placement(self) -> dict[str, Any]:
        """Keyword arguments of ``produce`` for what the row decides itself."""
        chosen = {}
        if self.partition is not None:
            chosen["partition"] = self.partition
        if self.timestamp_ms is not None:
            chosen["timestamp"] = self.timestamp_ms
        return chosen

    @property
    def identity(self) -> Rejected:
        """What names this row in a later pass over the same slice."""
        if self.src is not None and self.src_offset is not None:
            return (self.src, self.src_offset)
        digest = hashlib.sha256()
        for part in (self.key, self.value, repr(self.headers).encode(), repr(self.partition).encode()):
            digest.update(b"-" if part is None else b"+%d:" % len(part) + part)
        return digest.hexdigest()


class OutputRows:
    """The output rows of one Arrow batch, column-wise until somebody needs rows."""

    def __init__(self, batch: pa.RecordBatch, spec: WriterSpec) -> None:
        self.batch = batch
        self._spec = spec
        self._stamped = spec.stamp_source and batch.column("src").null_count < batch.num_rows
        headers = batch.column("headers")
        self._has_headers = len(headers) > 0 and (pc.max(pc.list_value_length(headers)).as_py() or 0) > 0

    @property
    def are_plain(self) -> bool:
        """True when no row has headers, a timestamp or a partition of its own."""
        return not bool(self._stamped or self._has_headers or self._is_set("timestamp_ms") or self._is_set("partition"))

    def _is_set(self, name: str) -> bool:
        column = self.batch.column(name)
        return bool(column.null_count < len(column))

    def messages(self) -> list[dict[str, Any]]:
        """Rows as ``produce_batch`` wants them; only where ``are_plain``."""
        keys = self.batch.column("key").to_pylist()
        values = self.batch.column("value").to_pylist()
        return [{"key": k, "value": v} for k, v in zip(keys, values, strict=True)]

    def ranges(self) -> list[int]:
        """Index of each row's range; 0 where the source is not known."""
        return pc.fill_null(self.batch.column("src"), 0).to_pylist()  # type: ignore[no-any-return]

    def first(self, count: int) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of the first rows."""
        head = self.batch.slice(0, count)
        return list(zip(head.column("key").to_pylist(), head.column("value").to_pylist(), strict=True))

    def rows(self) -> Iterator[Row]:
        """The rows, with source and correlation header added where they are wanted and the source is known."""
        batch = self.batch
        headers = batch.column("headers").to_pylist() if self._has_headers else [()] * batch.num_rows
        columns = [batch.column(n).to_pylist() for n in ("partition", "timestamp_ms", "src", "src_offset")]
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        ranges = [p.range for p in self._spec.slice.ranges]
        places = [f"{r.topic}/{r.partition}/".encode() for r in ranges]
        # As `kpipe_platform.deadletter.correlation_id` makes it.
        ids = [f"{r.topic}-{r.partition}-".encode() for r in ranges]
        correlation, stamps = self._spec.correlation_header, self._spec.stamps
        for key, value, raw, partition, timestamp, src, offset in zip(keys, values, headers, *columns, strict=True):
            own: Headers = [(h["key"], h["value"]) for h in raw]
            if self._stamped and src is not None:
                if own:
                    own = [h for h in own if h[0] not in STAMP_HEADERS]
                number = b"%d" % offset
                if correlation is not None and not (raw and any(h[0] == correlation and h[1] for h in own)):
                    own.append((correlation, ids[src] + number))
                own += stamps
                own.append((SOURCE_HEADER, places[src] + number))
            yield Row(key, value, own, partition, timestamp, src, offset)


class OutputChecks:
    """What the destination will not take, found before anything is sent.

    A batch is looked at column-wise first; rows are made only where that finds something.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        self._limits = spec.limits
        # The record's own overhead, and the headers that `OutputRows.rows` adds.
        topic = max((len(p.range.topic) for p in spec.slice.ranges), default=0)
        self._added_bytes = 200 + 2 * topic + len(SOURCE_HEADER) + len((spec.correlation_header or "").encode())
        self._added_bytes += sum(len(name) + len(value) + 10 for name, value in spec.stamps)

    def rejected(self, rows: OutputRows) -> dict[Rejected, Fault]:
        """Rows that the topic's settings forbid, with the reason; those known already are left out."""
        if not self._is_suspect(rows.batch):
            return {}
        found: dict[Rejected, Fault] = {}
        for row in rows.rows():
            reason = self._reason(row)
            if reason is not None and row.identity not in self._spec.rejected:
                kind, message = reason
                found[row.identity] = Fault(
                    Component.DESTINATION, kind, "RecordRejected", message, int(time.time() * 1000)
                )
        return found

    def _is_suspect(self, batch: pa.RecordBatch) -> bool:
        largest = sum((pc.max(pc.binary_length(batch.column(name))).as_py() or 0) for name in ("key", "value"))
        headers = batch.column("headers")
        # All header bytes of the batch bound those of one record.
        largest += headers.nbytes + self._added_bytes
        if largest > self._limits.max_message_bytes:
            return True
        if self._limits.compacted and batch.column("key").null_count:
            return True
        timestamps = batch.column("timestamp_ms")
        if timestamps.null_count == len(timestamps):
            return False
        earliest, latest = self._bounds()
        low, high = pc.min(timestamps).as_py(), pc.max(timestamps).as_py()
        return bool(low < earliest or high > latest)

    def _bounds(self) -> tuple[int, int]:
        now = int(time.time() * 1000)
        limits = self._limits
        if not limits.create_time:
            return 0, 2**63 - 1
        earliest = 0 if limits.before_max_ms is None else max(0, now - limits.before_max_ms)
        latest = 2**63 - 1 if limits.after_max_ms is None else now + limits.after_max_ms
        return earliest, latest

    def _reason(self, row: Row) -> tuple[str, str] | None:
        topic = self._spec.topic
        size = record_size(row.key, row.value, row.headers)
        if size > self._limits.max_message_bytes:
            return "too_large", (
                f"the output record takes {size:,} bytes; topic {topic!r} takes at most "
                f"{self._limits.max_message_bytes:,} (max.message.bytes)"
            )
        if self._limits.compacted and row.key is None:
            return "null_key", f"the output record has no key, and topic {topic!r} is compacted"
        if row.timestamp_ms is not None:
            earliest, latest = self._bounds()
            if not earliest <= row.timestamp_ms <= latest:
                return "timestamp", (
                    f"the output record's timestamp {row.timestamp_ms} ms is outside of what topic {topic!r} takes: "
                    f"{earliest} to {latest} ms"
                )
        return None

"""Output rows in the writer task, and the checks that need no broker."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.client.producer import ANY_PARTITION, NOW, Message
from kpipe_platform.kafka.model.instance_names import INSTANCE_HEADER, LEASE_HEADER, WORKER_HEADER
from kpipe_platform.kafka.model.sizes import compressed_size, record_size
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.spark.sink.spec import MISFIT_NOTE, OutputTopic, Rejected, WriterSpec

Headers = list[tuple[str, bytes | None]]

SOURCE_HEADER = "kpipe.source"
"""Header of an output with the ``topic/partition/offset`` of its source record."""

PROVENANCE_HEADERS = frozenset([SOURCE_HEADER, INSTANCE_HEADER, WORKER_HEADER, LEASE_HEADER])
"""Provenance headers. An output has only those of its own hop; those of earlier hops stay in the source record."""


# Tolerance factor for the estimated size of a compressed record.
_UNSURE = 1.1

# Greater than any partition number.
_MOST_PARTITIONS = 2**31


class Row(NamedTuple):
    """One record to write.

    Args:
        key: Key bytes.
        value: Value bytes.
        headers: Headers to write.
        partition: Destination partition; None lets the partitioner choose.
        timestamp_ms: Record timestamp, milliseconds since the epoch; None uses the time of the write.
        src: Index of the source record's range in the slice; None if the stage dropped ``_kafka``.
        src_offset: Offset of the source record; None if the stage dropped ``_kafka``.
        misfit: Why the record does not fit the schema of its topic, or has no topic; None if it fits.
        dest: Index of its topic; None if its column names none of the topics.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None
    timestamp_ms: int | None = None
    src: int | None = None
    src_offset: int | None = None
    misfit: str | None = None
    dest: int | None = 0

    @property
    def message(self) -> Message:
        """The row as ``AckedProducer.send_all`` takes it."""
        partition = ANY_PARTITION if self.partition is None else self.partition
        timestamp = NOW if self.timestamp_ms is None else self.timestamp_ms
        return self.key, self.value, partition, timestamp, self.headers or None

    @property
    def identity(self) -> Rejected:
        """Identifies this row in later passes over the same slice."""
        if self.src is not None and self.src_offset is not None:
            return (self.src, self.src_offset)
        digest = hashlib.sha256()
        for part in (self.key, self.value, repr(self.headers).encode(), repr((self.partition, self.dest)).encode()):
            digest.update(b"-" if part is None else b"+%d:" % len(part) + part)
        return digest.hexdigest()


class OutputRows:
    """The output rows of one Arrow batch for one topic. They are processed by column where possible.

    Args:
        batch: Columns as in `kpipe_platform.spark.sink.rows.output_rows`. Optional columns may be absent.
        spec: The writer's instructions.
        dest: Index of the topic of all rows; None if their column names none of the topics. Default 0.
    """

    def __init__(self, batch: pa.RecordBatch, spec: WriterSpec, dest: int | None = 0) -> None:
        self.batch = batch
        self.dest = dest
        self._spec = spec
        self._columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._has_provenance = spec.stamp_source and self.has("src_offset")
        headers = self._columns.get("headers")
        self._has_headers = headers is not None and (pc.max(pc.list_value_length(headers)).as_py() or 0) > 0
        self.has_unnamed_headers = self._has_headers and _names(headers).null_count > 0

    def has(self, name: str) -> bool:
        """Whether any row has a value in this column."""
        column = self._columns.get(name)
        return column is not None and column.null_count < len(column)

    def column(self, name: str) -> pa.Array | None:
        """The column; None if it is absent."""
        return self._columns.get(name)

    def messages(self) -> Iterator[Message]:
        """The rows as ``AckedProducer.send_all`` takes them, with added headers for rows whose source is known."""
        # Iterators of absent columns are infinite. Key and value are always present, so the zip has the batch's length.
        return zip(
            self._list("key"),
            self._list("value"),
            self._list("partition", ANY_PARTITION),
            self._list("timestamp_ms", NOW),
            self._all_headers(),
            strict=False,
        )

    def _list(self, name: str, default: int | None = None) -> Iterable[Any]:
        column = self._columns.get(name)
        if column is None:
            return repeat(default)
        if default is not None and column.null_count:
            column = pc.fill_null(column, default)
        return column.to_pylist()  # type: ignore[no-any-return]

    def _all_headers(self) -> Iterable[Headers | None]:
        own = self._own_headers() if self._has_headers else None
        if self._has_provenance:
            return self._headers_with_provenance(own)
        return repeat(None) if own is None else own

    def _own_headers(self) -> Iterator[Headers | None]:
        """The headers of each row. Read by column, because a dict for each header takes three times as long."""
        column = self._columns["headers"]
        inside = column.flatten()
        # Most headers share a few names; each name is converted once.
        names = _names(column).dictionary_encode(null_encoding="encode")
        keys = map(names.dictionary.to_pylist().__getitem__, names.indices.to_pylist())
        pairs = zip(keys, inside.field("value").to_pylist(), strict=True)
        counts = column.value_lengths()
        bounds = pc.min_max(counts)
        if bounds["min"] == bounds["max"]:
            # The common case: all rows have the same number of headers. Takes half the time.
            yield from map(list, zip(*[pairs] * bounds["max"].as_py(), strict=True))
            return
        for count in counts.to_pylist():
            yield list(islice(pairs, count)) or None

    def _headers_with_provenance(self, own: Iterable[Headers | None] | None) -> Iterable[Headers | None]:
        """The headers of each row, with added headers for rows whose source is known.

        Args:
            own: The rows' own headers; None if no row has any.
        """
        offsets = pc.cast(pc.cast(self._columns["src_offset"], pa.string()), pa.binary())
        coordinates = self._prefixed("{}/{}/", offsets)
        # The same format as `kpipe_platform.dead_letters.correlation_id`.
        ids = self._prefixed("{}-{}-", offsets)
        if own is None and not coordinates.null_count:
            # The common case: all sources are known, and no row has headers. Takes less than half the time.
            added: list[Iterable[tuple[str, bytes | None]]] = [repeat(header) for header in self._spec.provenance]
            added.append(zip(repeat(SOURCE_HEADER), coordinates.to_pylist(), strict=False))
            if self._spec.correlation_header is not None:
                added.insert(0, zip(repeat(self._spec.correlation_header), ids.to_pylist(), strict=False))
            return map(list, zip(*added, strict=False))
        return self._headers_one_by_one(repeat(None) if own is None else own, coordinates, ids)

    def _headers_one_by_one(
        self, own: Iterable[Headers | None], coordinates: pa.Array, ids: pa.Array
    ) -> Iterator[Headers | None]:
        correlation, provenance = self._spec.correlation_header, list(self._spec.provenance)
        for raw, source, correlation_id in zip(own, coordinates.to_pylist(), ids.to_pylist(), strict=False):
            if source is None:
                yield raw
                continue
            headers = [h for h in raw if h[0] not in PROVENANCE_HEADERS] if raw else []
            if correlation is not None and not any(h[0] == correlation and h[1] for h in headers):
                headers.append((correlation, correlation_id))
            headers += provenance
            headers.append((SOURCE_HEADER, source))
            yield headers

    def _prefixed(self, form: str, offsets: pa.Array) -> pa.Array:
        """Prefix each offset with its topic and partition, formatted by ``form``; null if the source is unknown."""
        ranges = [planned.range for planned in self._spec.slice.ranges]
        of_ranges = pa.array([form.format(r.topic, r.partition).encode() for r in ranges], pa.binary())
        src = self._columns.get("src")
        prefix = of_ranges[0] if src is None else of_ranges.take(src)
        return pc.binary_join_element_wise(prefix, offsets, pa.scalar(b""))

    @property
    def partitions(self) -> tuple[int, int] | None:
        """The lowest and the highest partition that the rows request; None if no row requests one."""
        if not self.has("partition"):
            return None
        bounds = pc.min_max(self._columns["partition"])
        return bounds["min"].as_py(), bounds["max"].as_py()

    def first(self, count: int) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of the first ``count`` rows."""
        head = self.batch.slice(0, count)
        return list(zip(head.column("key").to_pylist(), head.column("value").to_pylist(), strict=True))

    def rows(self) -> Iterator[Row]:
        """The rows one by one, for callers that need more than ``messages`` has."""
        columns = (self._list(name) for name in ("partition", "timestamp_ms", "src_offset"))
        for (key, value, _, _, headers), partition, timestamp, offset, src, note in zip(
            self.messages(), *columns, self._list("src", 0), self._list("note"), strict=False
        ):
            misfit = None if note is None else note[len(MISFIT_NOTE) :].decode()
            known = None if offset is None else src
            yield Row(key, value, headers or [], partition, timestamp, known, offset, misfit, self.dest)


def _names(headers: pa.Array) -> pa.Array:
    """The names of all headers in a column; null if the name or the header itself is null."""
    return pc.struct_field(headers.flatten(), "key")


def by_range(batch: pa.RecordBatch) -> dict[int, int]:
    """Number of rows by index of their range. Rows with an unknown source count under 0."""
    if "src" not in batch.schema.names:
        return {0: batch.num_rows}
    counted = pc.value_counts(pc.fill_null(batch.column("src"), 0)).to_pylist()
    return {row["values"]: row["counts"] for row in counted}


def by_topic(batch: pa.RecordBatch, spec: WriterSpec) -> list[OutputRows]:
    """Split a batch by topic. Only outputs for several topics have the column ``dest``; others are not copied."""
    if "dest" not in batch.schema.names:
        return [OutputRows(batch, spec)]
    dest = batch.column("dest")
    known = [number for number in sorted(pc.unique(dest).to_pylist(), key=lambda d: -1 if d is None else d)]
    if len(known) == 1:
        return [OutputRows(batch, spec, known[0])]
    return [
        OutputRows(batch.filter(dest.is_null() if each is None else pc.equal(dest, each)), spec, each) for each in known
    ]


class OutputChecks:
    """Finds outputs that the destination would reject, before they are sent.

    A batch is first checked by column. Its rows are checked one by one only if the batch is suspect.
    """

    def __init__(self, spec: WriterSpec) -> None:
        self._spec = spec
        # Overhead of the record, and the headers that `OutputRows` adds.
        topic = max((len(p.range.topic) for p in spec.slice.ranges), default=0)
        self._added_bytes = 200 + 2 * topic + len(SOURCE_HEADER) + len((spec.correlation_header or "").encode())
        self._added_bytes += sum(len(name) + len(value) + 10 for name, value in spec.provenance)

    def rejected(self, rows: OutputRows, partitions: int | None = None) -> dict[Rejected, Fault]:
        """The rows that the topic rejects, with the reason. Rows in ``spec.rejected`` are left out.

        Args:
            rows: The rows.
            partitions: Number of partitions of the topic; None if unknown.
        """
        if partitions is None:
            partitions = _MOST_PARTITIONS
        output = self._spec.output(rows.dest or 0)
        if rows.dest is not None and not self._is_suspect(rows, output.limits, partitions):
            return {}
        rejected: dict[Rejected, Fault] = {}
        for row in rows.rows():
            if row.dest is None:
                reason: tuple[str, str] | None = ("topic", row.misfit or "the output record has no topic")
            else:
                reason = self._reason(row, output, partitions)
            if reason is not None and row.identity not in self._spec.rejected:
                kind, message = reason
                rejected[row.identity] = Fault(
                    Component.DESTINATION, kind, "RecordRejected", message, int(time.time() * 1000)
                )
        return rejected

    def _is_suspect(self, rows: OutputRows, limits: TopicLimits, partitions: int) -> bool:
        batch = rows.batch
        if rows.has_unnamed_headers:
            return True
        asked = rows.partitions
        if asked is not None and (asked[0] < 0 or asked[1] >= partitions):
            return True
        largest = sum((pc.max(pc.binary_length(batch.column(name))).as_py() or 0) for name in ("key", "value"))
        headers = rows.column("headers")
        # The header bytes of the whole batch are an upper bound for one record.
        largest += (0 if headers is None else headers.nbytes) + self._added_bytes
        if largest > limits.max_message_bytes or rows.has("note"):
            return True
        if limits.compacted and batch.column("key").null_count:
            return True
        timestamps = rows.column("timestamp_ms")
        if timestamps is None or timestamps.null_count == len(timestamps):
            return False
        times = limits.times_ms(int(time.time() * 1000))
        return pc.min(timestamps).as_py() not in times or pc.max(timestamps).as_py() not in times

    def _reason(self, row: Row, output: OutputTopic, partitions: int) -> tuple[str, str] | None:
        topic, limits = output.name, output.limits
        if row.misfit is not None:
            return "does_not_fit", f"the output record does not fit the schema of topic {topic!r}: {row.misfit}"
        if row.partition is not None and not 0 <= row.partition < partitions:
            # Unknown if the brokers do not report it.
            count = "no such partition" if partitions == _MOST_PARTITIONS else f"{partitions} partition(s)"
            return "partition", f"the output record is for partition {row.partition}, but topic {topic!r} has {count}"
        # The checks below require that every header has a name.
        if any(name is None for name, _ in row.headers):
            return "header", "a header of the output record has no name (null), which Kafka does not allow"
        size, limit = record_size(row.key, row.value, row.headers), limits.max_message_bytes
        if size > limit:
            shown = f"{size:,} bytes"
            # Brokers check the size of a batch as received, and again as stored.
            compresses = self._spec.compression != "none" and not limits.uncompressed
            if compresses:
                size = compressed_size(self._spec.compression, row.key, row.value, row.headers)
                shown += f", about {size:,} compressed ({self._spec.compression})"
            # Within the tolerance of the estimate, the brokers decide.
            if size > limit * (_UNSURE if compresses else 1):
                return "too_large", (
                    f"the output record has {shown}; topic {topic!r} accepts at most {limit:,} (max.message.bytes)"
                )
        if limits.compacted and row.key is None:
            return "null_key", f"the output record has no key, but topic {topic!r} is compacted"
        if row.timestamp_ms is not None:
            times = limits.times_ms(int(time.time() * 1000))
            if row.timestamp_ms not in times:
                return "timestamp", (
                    f"the output record's timestamp {row.timestamp_ms} ms is outside the range of topic {topic!r}: "
                    f"{times.start} to {times.stop - 1} ms"
                )
        return None

"""Reading with kpipe's own Kafka client, where Spark's Kafka source cannot read.

Producers may set any 64-bit integer as a timestamp. Spark's source multiplies it by 1,000 and fails on an overflow, for
all records of its task. And its Java client cannot call a Python function for a token. This reader is slower than
Spark's source, so it is used only if that one may fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange, offsets_at
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.read.reader import read_range

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST_MS = (2**63 - 1) // 1000
"""The largest timestamp that Spark can represent in microseconds, milliseconds. Its negative is about the smallest."""

# Maximum rows and bytes of one Arrow batch.
_BATCH_ROWS, _BATCH_BYTES = 2_000, 4 * 2**20


def is_beyond_spark(clients: Clients, ranges: Iterable[OffsetRange], isolation: str) -> bool:
    """Whether Spark's source may fail on a range. One broker request.

    It fails on a timestamp after the largest one that it can represent, and on a connection that Java cannot make.
    """
    if not clients.settings.reads_by_java:
        return True
    wanted = {(r.topic, r.partition): r for r in ranges if not r.is_empty}
    firsts = offsets_at(clients, wanted, LARGEST_MS + 1, isolation) if wanted else {}
    return any(first is not None and first < wanted[place].end for place, first in firsts.items())


def reading(settings: ConnectionSettings, group: str, isolation: str) -> Any:
    """A function for ``mapInArrow`` whose input rows are offset ranges. It reads their records."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.to_pylist():
                yield from batches_of(read_range(settings, group, OffsetRange(**place), isolation))

    return read


def batches_of(records: Iterable[KafkaRecord]) -> Iterator[pa.RecordBatch]:
    """Convert records to Arrow batches with the columns of Spark's Kafka source."""
    rows: list[dict[str, Any]] = []
    size = 0
    for record in records:
        rows.append(_row(record))
        size += len(record.key or b"") + len(record.value or b"")
        if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def _row(record: KafkaRecord) -> dict[str, Any]:
    # The Java client represents a missing timestamp as -1.
    timestamp_ms = -1 if record.timestamp_ms is None else record.timestamp_ms
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": timestamp_ms * 1000 if abs(timestamp_ms) <= LARGEST_MS else None,
        "timestampType": int(record.timestamp_type == "log_append_time"),
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(
        rows,
        schema=pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("timestampType", pa.int32()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )

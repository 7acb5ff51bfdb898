"""Reading a dead-letter topic as a table. Commits no offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.dead_letters.read.row import COLUMNS, row_of
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, read_watermarks
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark._compat import to_arrow_schema
from kpipe_platform.spark.columns import HEADERS_TYPE
from kpipe_platform.spark.source.client_reader import is_beyond_spark
from kpipe_platform.spark.source.reader import read_by_client, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

# Maximum rows of an output Arrow batch: a row is several times as large as its message.
_BATCH_ROWS = 1_000

# Exceptions that Arrow raises for a value that a type cannot represent. Arrow's own classes are subclasses of these.
_MISFITS = (ValueError, TypeError, OverflowError, AttributeError)


def newest_ranges(clients: Clients, topic: str, isolation: str, max_records: int | None) -> list[OffsetRange]:
    """The offset ranges that a dead-letter topic contains now, one per partition.

    Args:
        clients: Kafka clients.
        topic: The dead-letter topic.
        isolation: ``read_committed`` or ``read_uncommitted``.
        max_records: Maximum number of offsets per partition, the newest ones; None for all.

    Raises:
        TopicNotFoundError: The topic does not exist.
    """
    numbers = range(describe_topics(clients, [topic])[topic].partitions)
    watermarks = read_watermarks(clients, [(topic, number) for number in numbers], isolation)
    ranges = []
    for number in numbers:
        log = watermarks[(topic, number)]
        start = log.log_start if max_records is None else max(log.log_start, log.end - max_records)
        ranges.append(OffsetRange(topic, number, start, log.end))
    return ranges


def dead_letter_frame(
    session: SparkSession, clients: Clients, ranges: Iterable[OffsetRange], *, isolation: str, group: str, parts: int
) -> DataFrame:
    """Read the dead letters of offset ranges as a table, lazily.

    Args:
        session: The Spark session.
        clients: Kafka clients, for their settings and for a timestamp lookup.
        ranges: The ranges to read.
        isolation: ``read_committed`` or ``read_uncommitted``.
        group: Prefix of Spark's group ids.
        parts: Number of parallel parts; at least one per range is used.

    Columns:
        See `dead_letter_columns`.
    """
    wanted = [r for r in ranges if not r.is_empty]
    if not wanted:
        return session.createDataFrame([], COLUMNS)
    settings = clients.settings
    if is_beyond_spark(clients, wanted, isolation):
        rows = read_by_client(session, settings, wanted, isolation=isolation, group=group)
    else:
        rows = read_ranges(session, settings, wanted, isolation=isolation, group=group, parts=max(parts, len(wanted)))
    return dead_letter_columns(rows)


def dead_letter_columns(rows: DataFrame) -> DataFrame:
    """Parse rows of Spark's Kafka source as dead letters, with `kpipe_platform.dead_letters.read.reader`.

    A record that is not an envelope of version 1 also has a row, with the information from its error headers.

    Columns:
        Coordinates of the dead letter: dlq_partition (int), dlq_offset (bigint), dlq_timestamp (timestamp), form
        (string: envelope, raw), payload (string: embedded, reference).
        The record: source_topic (string), source_partition (int), source_offset (bigint), source_timestamp
        (timestamp), key (binary), value (binary), headers (array of key and value, without error headers). For a
        rejected output, the topic and partition are those of its slice, in origin_range (struct), and the offset is
        null.
        The fault: component, kind, exception_type, message, field, stacktrace (string), fault_at (timestamp), rules
        (array of string), retries (array of attempt, at, delay_ms, exception_type, message).
        Provenance: asset, run_id (string), attempt (int), correlation_id (string), created_at, dead_lettered_at
        (timestamp), instance, worker, group, lease (string), segments (array of name, started_at, duration_ms).
        Missing data: omitted (array of string), reference (struct), redacted (boolean).
        All columns are nullable except the first five, headers, rules, retries, segments, omitted and redacted.
    """
    schema = rows.sparkSession.createDataFrame([], COLUMNS).schema
    read = rows.select(
        *("topic", "partition", "offset", F.unix_millis("timestamp"), "timestampType", "key", "value"),
        # Spark needs quadratic time to write a column of null arrays to Arrow.
        F.coalesce("headers", F.array().cast(HEADERS_TYPE)),
    )
    return read.mapInArrow(_reading(to_arrow_schema(schema, timezone="UTC")), schema)


def _reading(schema: pa.Schema) -> Any:
    """A function for ``mapInArrow`` that converts messages to rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for whole in batches:
            for start in range(0, whole.num_rows, _BATCH_ROWS):
                batch = whole.slice(start, _BATCH_ROWS)
                messages = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                rows = [row_of(read_dead_letter(_record(*message))) for message in messages]
                try:
                    made = pa.RecordBatch.from_pylist(rows, schema=schema)
                except _MISFITS:
                    made = pa.RecordBatch.from_pylist([_fitting(row, schema) for row in rows], schema=schema)
                yield made

    return read


def _fitting(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Replace values that do not fit their column by null. Envelopes from other writers may contain any value."""
    import pyarrow as pa

    fitting = {}
    for field in schema:
        value = _encodable(row.get(field.name))
        try:
            pa.array([value], field.type)
        except _MISFITS:
            value = None
        fitting[field.name] = value
    return fitting


def _encodable(value: Any) -> Any:
    """Escape characters that UTF-8 cannot encode: lone surrogates, which JSON can contain."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return {name: _encodable(each) for name, each in value.items()} if isinstance(value, dict) else value


def _record(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int | None,
    timestamp_type: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[dict[str, Any]],
) -> KafkaRecord:
    return KafkaRecord(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        timestamp_type="log_append_time" if timestamp_type == 1 else "create_time",
        key=key,
        value=value,
        headers=tuple((header["key"], header["value"]) for header in headers),
    )

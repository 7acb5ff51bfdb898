"""A dead-letter topic as a table. No offsets move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.dead_letters.read.row import COLUMNS, row_of
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, watermarks
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.spark.columns import HEADERS_TYPE
from kpipe_platform.spark.source.client_reader import is_beyond_spark
from kpipe_platform.spark.source.reader import read_by_client, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

# Dead letters of one Arrow batch that leaves the worker: their rows are several times as large as their messages.
_BATCH_ROWS = 1_000

# What Arrow raises for a value that a type cannot hold; its own errors are of these classes too.
_MISFITS = (ValueError, TypeError, OverflowError, AttributeError)


def newest_ranges(clients: Clients, topic: str, isolation: str, max_records: int | None) -> list[OffsetRange]:
    """What a dead-letter topic holds now, a range a partition.

    Args:
        clients: Kafka clients.
        topic: The dead-letter topic.
        isolation: ``read_committed`` or ``read_uncommitted``.
        max_records: The newest offsets of each partition, so many at most; None: all.

    Raises:
        TopicNotFoundError: The topic does not exist.
    """
    numbers = range(describe_topics(clients, [topic])[topic].partitions)
    marks = watermarks(clients, [(topic, number) for number in numbers], isolation)
    ranges = []
    for number in numbers:
        mark = marks[(topic, number)]
        start = mark.log_start if max_records is None else max(mark.log_start, mark.end - max_records)
        ranges.append(OffsetRange(topic, number, start, mark.end))
    return ranges


def dead_letter_frame(
    session: SparkSession, clients: Clients, ranges: Iterable[OffsetRange], *, isolation: str, group: str, parts: int
) -> DataFrame:
    """The dead letters of these ranges as a table, lazily.

    Args:
        session: The Spark session.
        clients: Kafka clients, for their settings.
        ranges: What to read.
        isolation: ``read_committed`` or ``read_uncommitted``.
        group: Prefix of Spark's group ids.
        parts: Parallel parts, at least one a partition.

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
    """Rows of Spark's Kafka source, read as dead letters by `kpipe_platform.dead_letters.read.reader`.

    A record that is no envelope of version 1 is a row too, with what its error headers say.

    Columns:
        Where the dead letter is: dlq_partition (int), dlq_offset (bigint), dlq_timestamp (timestamp), form (string:
        envelope, raw), payload (string: embedded, reference).
        The record: source_topic (string), source_partition (int), source_offset (bigint), source_timestamp
        (timestamp), key (binary), value (binary), headers (array of key and value, without error headers). Of a
        rejected output the topic and partition are those of its slice, in origin_range (struct), and there is no
        offset.
        Why: component, kind, exception_type, message, field, stacktrace (string), fault_at (timestamp), rules (array of
        string), retries (array of attempt, at, delay_ms, exception_type, message).
        Who and when: asset, run_id (string), attempt (int), correlation_id (string), created_at, dead_lettered_at
        (timestamp), instance, worker, group, lease (string), segments (array of name, started_at, duration_ms).
        What is not there: omitted (array of string), reference (struct), redacted (boolean).
        Any column but the first five, headers, rules, retries, segments, omitted and redacted may be null.
    """
    schema = rows.sparkSession.createDataFrame([], COLUMNS).schema
    read = rows.select(
        *("topic", "partition", "offset", F.unix_millis("timestamp"), "timestampType", "key", "value"),
        # Spark writes a column of null arrays to Arrow in quadratic time.
        F.coalesce("headers", F.array().cast(HEADERS_TYPE)),
    )
    return read.mapInArrow(_reading(to_arrow_schema(schema, timezone="UTC")), schema)


def _reading(schema: pa.Schema) -> Any:
    """The function of ``mapInArrow`` that makes rows of messages."""

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
    """A row with null for what its column cannot hold: an envelope that kpipe did not write may say anything."""
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
    """The value with escapes for what is not Unicode: half of a surrogate pair, which JSON can hold."""
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

"""Reading a planned slice with Spark's Kafka source in batch mode, and decoding it.

Source: Spark "Structured Streaming + Kafka Integration Guide", batch queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F

from kpipe_platform.codecs import Codec
from kpipe_platform.codecs.base import Part
from kpipe_platform.codecs.framed import frame_column
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.spark._compat import frame_of, java_session
from kpipe_platform.spark.columns import HEADERS_TYPE, framed
from kpipe_platform.spark.source.client_reader import reading
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs, decode_rows, is_small

# Fewer and larger fetches than with the Java client's defaults, which are tuned for low latency.
_CONSUMER = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.receive.buffer.bytes": str(2**20),
    # After reading a slice, a consumer requests the next records, and the broker delays its response while there are
    # none. The default delay is half a second, for which another read of the same slice would have to wait.
    "kafka.fetch.max.wait.ms": "10",
}
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
# Fewer offsets are not worth another parallel part, which costs a task and a shuffle block (about 20 ms).
_OFFSETS_A_PART = 20_000


def read_options(
    settings: ConnectionSettings, ranges: Iterable[OffsetRange], *, isolation: str, group: str, parts: int
) -> dict[str, str]:
    """Options of Spark's Kafka source for exactly these ranges. They contain secrets: never log them."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for r in ranges:
        starts.setdefault(r.topic, {})[str(r.partition)] = r.start
        ends.setdefault(r.topic, {})[str(r.partition)] = r.end
    assign = {topic: [int(number) for number in numbers] for topic, numbers in starts.items()}
    return {
        **_CONSUMER,
        **{f"kafka.{name}": value for name, value in settings.for_java().items()},
        # Set explicitly so that plan and read agree: unlike librdkafka, the Java client defaults to read_uncommitted.
        "kafka.isolation.level": isolation,
        # Spark generates its group ids. With the asset's own prefix, one ACL covers them all.
        "groupIdPrefix": f"{group}.spark",
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "minPartitions": str(parts),
    }


def parallel_parts(span: int, ranges: int, parallelism: int) -> int:
    """Number of parallel parts for reading a slice: as many as the engine has task slots, fewer for a small slice.

    Args:
        span: Number of offsets in the slice.
        ranges: Number of ranges, the lower bound of the result.
        parallelism: Number of tasks that the engine runs at once.
    """
    return max(ranges, min(parallelism, span // _OFFSETS_A_PART))


def read_ranges(
    session: SparkSession,
    settings: ConnectionSettings,
    ranges: Iterable[OffsetRange],
    *,
    isolation: str,
    group: str,
    parts: int,
) -> DataFrame:
    """Read the ranges that are not empty with Spark's Kafka source."""
    wanted = [r for r in ranges if not r.is_empty]
    options = read_options(settings, wanted, isolation=isolation, group=group, parts=parts)
    return session.read.format("kafka").options(**options).load() if is_remote() else _loaded(session, options)


# For each session of this process, a JVM session that is only used for reading from Kafka.
_READERS: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


def _loaded(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Read with version 2 of Spark's Kafka source, which avoids converting rows to Scala objects and back.

    A session setting chooses the version for both reads and writes, and the version 2 sink refuses
    ``df.write.format("kafka").save()``, which users may call. Therefore a separate session with that setting makes the
    plan. On Spark Connect every action would need the setting, so there the user's setting applies.
    """
    if session not in _READERS:
        reader = java_session(session).newSession()
        others = [name for name in reader.conf().get(_V1_SOURCES).split(",") if name.strip() != "kafka"]
        reader.conf().set(_V1_SOURCES, ",".join(others))
        _READERS[session] = reader
    source = _READERS[session].read().format("kafka")
    for name, value in options.items():
        source = source.option(name, value)
    return frame_of(session, source.load().queryExecution().analyzed())


@dataclass(frozen=True)
class SliceReader:
    """One topic's part of a slice, read lazily.

    Args:
        session: The Spark session.
        settings: The connection.
        slice: The planned slice.
        topic: The topic to read, one of the slice's topics.
        isolation: The plan's isolation, ``read_committed`` or ``read_uncommitted``.
        parallelism: Number of tasks that the engine runs at once.
        by_client: Read with kpipe's own client, because Spark's source fails on a record's timestamp. If the Java
            client cannot connect, kpipe's own client is always used.
    """

    session: SparkSession
    settings: ConnectionSettings
    slice: Slice
    topic: str
    isolation: str
    parallelism: int
    by_client: bool = False

    def decoded(self, codecs: TopicCodecs) -> SliceFrames:
        """Decode the rows, lazily.

        Args:
            codecs: Codecs of keys and values.
        """
        ranges = self._ranges
        only = ranges[0][0] if len(ranges) == 1 else None
        span = self._span
        small = is_small(span)
        # More offsets have several parts. If a single task read them all, it would hold the transaction open while the
        # stage runs.
        one_task = small or (only is not None and span < 2 * _OFFSETS_A_PART)
        frames = decode_rows(
            self._rows,
            codecs,
            src=_range_index(ranges),
            only_range=only,
            small=small,
            one_task=one_task,
            lacks_times=self._by_client,
        )
        if frames.can_fault:
            # Both the stage and the search for faults read the rows.
            frames.keep()
        return frames

    def schema_ids(self, codecs: TopicCodecs) -> dict[Part, set[bytes]]:
        """Find the ids of schemas in front of all keys and values. Runs a Spark job."""
        return schema_ids(self._rows, codecs)

    @property
    def _by_client(self) -> bool:
        return self.by_client or not self.settings.reads_by_java

    @cached_property
    def _rows(self) -> DataFrame:
        ranges = [r for _, r in self._ranges]
        group = self.slice.group
        if self._by_client:
            return read_by_client(self.session, self.settings, ranges, isolation=self.isolation, group=group)
        parts = parallel_parts(self._span, len(ranges), self.parallelism)
        return read_ranges(self.session, self.settings, ranges, isolation=self.isolation, group=group, parts=parts)

    @cached_property
    def _ranges(self) -> list[tuple[int, OffsetRange]]:
        return [(i, p.range) for i, p in enumerate(self.slice.ranges) if p.range.topic == self.topic]

    @property
    def _span(self) -> int:
        return sum(r.span for _, r in self._ranges)


def schema_ids(rows: DataFrame, codecs: TopicCodecs) -> dict[Part, set[bytes]]:
    """Find the ids of schemas in front of keys and values. Runs a Spark job.

    Args:
        rows: Rows of Spark's Kafka source.
        codecs: Codecs of keys and values.
    """
    headers = F.col("headers")
    parts: dict[Part, tuple[Codec, Column]] = {
        "key": (codecs.key, framed(codecs.key, F.col("key"), headers, "key")),
        "value": (codecs.value, framed(codecs.value, F.col("value"), headers, "value")),
    }
    none = F.lit(None).cast("binary")
    ids = [
        F.collect_set(frame_column(data) if codec.is_framed else none).alias(part)
        for part, (codec, data) in parts.items()
    ]
    found = rows.agg(*ids).collect()[0]
    return {part: set(map(bytes, found[part])) for part in parts}


def _range_index(indexed: list[tuple[int, OffsetRange]]) -> Column:
    if len(indexed) == 1:
        return F.lit(indexed[0][0])
    index = F.create_map(*[F.lit(v) for i, r in indexed for v in (r.partition, i)])
    return index[F.col("partition")]


_SOURCE_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    f"headers {HEADERS_TYPE}"
)


def read_by_client(
    session: SparkSession, settings: ConnectionSettings, ranges: Iterable[OffsetRange], *, isolation: str, group: str
) -> DataFrame:
    """Read the ranges that are not empty with kpipe's own client. One task reads a whole range.

    The columns are those of Spark's Kafka source. A timestamp that Spark cannot represent is null.
    """
    places = [(r.topic, r.partition, r.start, r.end) for r in ranges if not r.is_empty]
    wanted = session.createDataFrame(places, "topic string, partition int, start bigint, end bigint")
    return wanted.mapInArrow(reading(settings.for_executors(), group, isolation), _SOURCE_COLUMNS)


def empty_rows(session: SparkSession) -> DataFrame:
    """An empty DataFrame with the columns of Spark's Kafka source. Starts no job."""
    return session.createDataFrame([], _SOURCE_COLUMNS)


def empty_slice(session: SparkSession, codecs: TopicCodecs) -> SliceFrames:
    """The frames of an empty slice, with the columns of the codecs and no rows."""
    return decode_rows(empty_rows(session), codecs, src=F.lit(0))

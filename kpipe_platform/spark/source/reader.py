"""Reading a planned slice: Spark's own Kafka source in batch mode, then decoding.

Source: Spark "Structured Streaming + Kafka Integration Guide", batch queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.spark.columns import HEADERS_TYPE
from kpipe_platform.spark.sink.plans import frame_of
from kpipe_platform.spark.source.client_reader import reading
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs, decode_rows, is_small

# Fewer and larger fetches than the Java client's defaults, which are made for low latency.
_CONSUMER = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.receive.buffer.bytes": str(2**20),
    # A consumer that has read a slice asks for what comes after it, and the broker keeps the answer back while there is
    # nothing: by default half a second, which whoever reads the slice once more would wait.
    "kafka.fetch.max.wait.ms": "10",
}
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
# Offsets below which another parallel part costs more than it saves (a task and a shuffle block, about 20 ms).
_OFFSETS_A_PART = 20_000


def read_options(
    settings: ConnectionSettings, ranges: Iterable[OffsetRange], *, isolation: str, group: str, parts: int
) -> dict[str, str]:
    """Options of Spark's Kafka source for exactly these ranges. Contains secrets: never log them."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for r in ranges:
        starts.setdefault(r.topic, {})[str(r.partition)] = r.start
        ends.setdefault(r.topic, {})[str(r.partition)] = r.end
    assign = {topic: [int(number) for number in numbers] for topic, numbers in starts.items()}
    return {
        **_CONSUMER,
        **{f"kafka.{name}": value for name, value in settings.for_java().items()},
        # The Java client reads uncommitted by default, unlike librdkafka: one setting for plan and read.
        "kafka.isolation.level": isolation,
        # Spark invents its group ids; under the asset's own prefix one ACL covers them.
        "groupIdPrefix": f"{group}.spark",
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "minPartitions": str(parts),
    }


def parallel_parts(span: int, ranges: int, parallelism: int) -> int:
    """How many parts to read a slice in: as many as the engine runs at once, fewer for a small slice."""
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
    """Rows of Spark's Kafka source for the ranges that are not empty."""
    wanted = [r for r in ranges if not r.is_empty]
    options = read_options(settings, wanted, isolation=isolation, group=group, parts=parts)
    return session.read.format("kafka").options(**options).load() if is_remote() else _loaded(session, options)


# For each session of this process a JVM session to read with, which has no other use.
_READERS: WeakKeyDictionary[SparkSession, Any] = WeakKeyDictionary()


def _loaded(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Rows of the second version of Spark's Kafka source, which do not become Scala objects and rows again.

    Spark chooses the version by a setting of the session, for reads and writes alike, and the second version's sink
    refuses ``df.write.format("kafka").save()``, as people write it. So a session of its own, with that setting, makes
    the plan. On a Connect server each action would need the setting, so there it is the user's.
    """
    if session not in _READERS:
        reader = session._jsparkSession.newSession()
        others = [name for name in reader.conf().get(_V1_SOURCES).split(",") if name.strip() != "kafka"]
        reader.conf().set(_V1_SOURCES, ",".join(others))
        _READERS[session] = reader
    source = _READERS[session].read().format("kafka")
    for name, value in options.items():
        source = source.option(name, value)
    return frame_of(session, source.load().queryExecution().analyzed())


def read_slice(
    session: SparkSession,
    settings: ConnectionSettings,
    slice_: Slice,
    codecs: TopicCodecs,
    *,
    topic: str,
    isolation: str,
    parallelism: int,
    by_client: bool = False,
) -> SliceFrames:
    """Read and decode one topic's ranges of a slice; nothing runs yet.

    Args:
        session: The Spark session.
        settings: The connection.
        slice_: The plan.
        codecs: How keys and values decode.
        topic: Which of the slice's topics.
        isolation: The plan's isolation.
        parallelism: Tasks that the engine runs at once.
        by_client: Read by kpipe's own client, because Spark's source fails on a record's timestamp.
    """
    indexed = [(i, p.range) for i, p in enumerate(slice_.ranges) if p.range.topic == topic]
    ranges = [r for _, r in indexed]
    span = sum(r.span for r in ranges)
    parts = parallel_parts(span, len(ranges), parallelism)
    if by_client:
        rows = read_by_client(session, settings, ranges, isolation=isolation, group=slice_.group)
    else:
        rows = read_ranges(session, settings, ranges, isolation=isolation, group=slice_.group, parts=parts)
    only = indexed[0][0] if len(indexed) == 1 else None
    small = is_small(span)
    # Of more offsets there are several parts; where one task has to read them all, it would hold the transaction open
    # while the stage is at work.
    one_task = small or (only is not None and span < 2 * _OFFSETS_A_PART)
    src = _range_index(indexed)
    frames = decode_rows(rows, codecs, src=src, only_range=only, small=small, one_task=one_task, lacks_times=by_client)
    if frames.can_fault:
        # The search for faults needs them beside the stage.
        frames.keep()
    return frames


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
    """Rows as of Spark's Kafka source for the ranges that are not empty; a partition is read by one task.

    A timestamp that Spark cannot hold is null.
    """
    places = [(r.topic, r.partition, r.start, r.end) for r in ranges if not r.is_empty]
    wanted = session.createDataFrame(places, "topic string, partition int, start bigint, end bigint")
    return wanted.mapInArrow(reading(settings, group, isolation), _SOURCE_COLUMNS)


def empty_rows(session: SparkSession) -> DataFrame:
    """No rows, with the columns of Spark's Kafka source; no job is started for it."""
    return session.createDataFrame([], _SOURCE_COLUMNS)


def empty_slice(session: SparkSession, codecs: TopicCodecs) -> SliceFrames:
    """The frames of an empty slice: the right columns and no rows."""
    return decode_rows(empty_rows(session), codecs, src=F.lit(0))

"""Reading a planned slice: Spark's own Kafka source in batch mode, then decoding.

Source: Spark "Structured Streaming + Kafka Integration Guide", batch queries.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform.codecs import Codec
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.settings import ConnectionSettings
from kpipe_platform.kafka.slices import Slice
from kpipe_platform.policies.faults import Component
from kpipe_platform.spark.cached import drop_cached
from kpipe_platform.spark.columns import HEADERS_TYPE, is_fault, parsed, value_columns, value_of

# Fewer and larger fetches than the Java client's defaults, which are made for low latency.
_CONSUMER = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.receive.buffer.bytes": str(2**20),
}
# Offsets below which another parallel part costs more than it saves (a task and a shuffle block, about 20 ms).
_OFFSETS_A_PART = 20_000


@dataclass(frozen=True)
class TopicCodecs:
    """How the records of one source topic decode."""

    key: Codec
    value: Codec


@dataclass(frozen=True)
class SliceFrames:
    """A slice in Spark, lazily.

    Args:
        decoded: One row a record: src (index of its range in the slice, int), _kafka, v (decoded value) and bad (all
            that a dead letter needs, a struct; null for a good record).
        good: What the stage sees: the value's columns and ``_kafka``.
        can_fault: False where every byte string decodes, so that nobody need look for faults.
        only_range: The range that all rows are of; None where there are several.
    """

    decoded: DataFrame
    good: DataFrame
    can_fault: bool
    only_range: int | None = None

    def faults(self) -> DataFrame:
        """Records that do not decode: src, offset, key, value, headers, timestamp_ms, timestamp_type, component."""
        return self.decoded.where("bad is not null").select("src", "bad.*")

    def counts(self) -> DataFrame:
        """Records read by range: src (int), records (bigint)."""
        if self.only_range is not None:
            # Without a grouping key there is no shuffle by key, which for a small slice is most of its time.
            return self.decoded.agg(F.count(F.lit(1)).alias("records")).select(
                F.lit(self.only_range).alias("src"), "records"
            )
        return self.decoded.groupBy("src").agg(F.count(F.lit(1)).alias("records"))

    def part(self, whole: Slice, part: Slice) -> SliceFrames:
        """The rows of a part of the slice, out of the cache; the whole is to be released, not its parts.

        Args:
            whole: The slice that was read.
            part: Some of its offsets.
        """
        wanted = [(i, p.range) for i, p in enumerate(part.ranges) if not p.range.is_empty]
        before = {(p.range.topic, p.range.partition): i for i, p in enumerate(whole.ranges)}
        inside = _within([r for _, r in wanted])
        index = F.lit(None).cast("int")
        for i, r in wanted:
            index = F.when(F.col("src") == before[(r.topic, r.partition)], i).otherwise(index)
        decoded = self.decoded.where(inside).withColumn("src", index)
        good = self.good.where(inside)
        return SliceFrames(decoded, good, self.can_fault, wanted[0][0] if len(wanted) == 1 else None)

    def without(self, whole: Slice, offsets: Mapping[int, Collection[int]]) -> SliceFrames:
        """The frames of which the stage does not see some records; they count as read all the same.

        Args:
            whole: The slice.
            offsets: Offsets to leave out, by index of their range.
        """
        gone = F.lit(False)
        for index, left_out in offsets.items():
            r = whole.ranges[index].range
            here = (F.col("_kafka.topic") == r.topic) & (F.col("_kafka.partition") == r.partition)
            gone = gone | (here & F.col("_kafka.offset").isin(sorted(left_out)))
        return SliceFrames(self.decoded, self.good.where(~gone), self.can_fault, self.only_range)

    def none(self) -> SliceFrames:
        """The frames without a row."""
        return SliceFrames(self.decoded.limit(0), self.good.limit(0), self.can_fault, self.only_range)

    def totals(self) -> tuple[int, int]:
        """Number of records, and of those that do not decode."""
        row = self.decoded.agg(F.count(F.lit(1)), F.count("bad")).collect()[0]
        return row[0], row[1]

    def sample(self, count: int) -> list[tuple[int, int]]:
        """Index of the range, and offset, of up to so many good records, chosen at random."""
        rows = self.decoded.where("bad is null").select("src", "_kafka.offset").orderBy(F.rand()).limit(count)
        return [(row[0], row[1]) for row in rows.collect()]

    def release(self) -> None:
        """Drop the cached rows."""
        drop_cached(self.decoded)


def _within(ranges: Iterable[OffsetRange]) -> Column:
    inside = F.lit(False)
    for r in ranges:
        offset = F.col("_kafka.offset")
        here = (F.col("_kafka.topic") == r.topic) & (F.col("_kafka.partition") == r.partition)
        inside = inside | (here & (offset >= r.start) & (offset < r.end))
    return inside


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
    return session.read.format("kafka").options(**options).load()


def kafka_struct(key_codec: Codec) -> Column:
    """The column ``_kafka`` of a row of Spark's Kafka source."""
    return F.struct(
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
        F.col("timestampType").alias("timestamp_type"),
        parsed(key_codec, F.col("key")).alias("key"),
        # Null arrays make Spark's Arrow writer quadratic; a record without headers gets an empty one.
        F.coalesce(F.col("headers"), F.array().cast(HEADERS_TYPE)).alias("headers"),
        F.col("value").isNull().alias("tombstone"),
    )


def read_slice(
    session: SparkSession,
    settings: ConnectionSettings,
    slice_: Slice,
    codecs: TopicCodecs,
    *,
    topic: str,
    isolation: str,
    parallelism: int,
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
    """
    indexed = [(i, p.range) for i, p in enumerate(slice_.ranges) if p.range.topic == topic]
    ranges = [r for _, r in indexed]
    parts = parallel_parts(sum(r.span for r in ranges), len(ranges), parallelism)
    rows = read_ranges(session, settings, ranges, isolation=isolation, group=slice_.group, parts=parts)
    only = indexed[0][0] if len(indexed) == 1 else None
    return decode_rows(rows, codecs, src=_range_index(indexed), only_range=only)


def _range_index(indexed: list[tuple[int, OffsetRange]]) -> Column:
    if len(indexed) == 1:
        return F.lit(indexed[0][0])
    index = F.create_map(*[F.lit(v) for i, r in indexed for v in (r.partition, i)])
    return index[F.col("partition")]


def decode_rows(rows: DataFrame, codecs: TopicCodecs, *, src: Column, only_range: int | None = None) -> SliceFrames:
    """Decode rows of Spark's Kafka source; the decoded rows are cached at first use, so nothing decodes twice."""
    value = F.col("v")
    staged = rows.select(
        src.cast("int").alias("src"),
        kafka_struct(codecs.key).alias("_kafka"),
        F.col("key"),
        F.col("value").alias("data"),
        parsed(codecs.value, F.col("value")).alias("parsed"),
    )
    bad_key = is_fault(codecs.key, F.col("key"), F.col("_kafka.key"))
    bad_value = is_fault(codecs.value, F.col("data"), F.col("parsed"))
    fault = F.lit(None).cast("string")
    if bad_value is not None:
        fault = F.when(bad_value, F.lit(Component.DECODE_VALUE.value)).otherwise(fault)
    if bad_key is not None:
        fault = F.when(bad_key, F.lit(Component.DECODE_KEY.value)).otherwise(fault)
    can_fault = bad_key is not None or bad_value is not None
    # One struct that is null in good rows, so that the search for dead letters need read no other cached column. A
    # text key that does not decode must still leave as its original bytes.
    kafka = F.col("_kafka")
    letter = F.struct(
        kafka["offset"].alias("offset"),
        F.col("key"),
        F.col("data").alias("value"),
        kafka["headers"].alias("headers"),
        F.unix_millis(kafka["timestamp"]).alias("timestamp_ms"),
        kafka["timestamp_type"].alias("timestamp_type"),
        F.col("fault").alias("component"),
    )
    decoded = (
        staged.withColumn("fault", fault)
        .select(
            "src",
            "_kafka",
            value_of(codecs.value, F.col("parsed")).alias("v"),
            F.when(F.col("fault").isNotNull(), letter).alias("bad"),
        )
        .persist(StorageLevel.MEMORY_AND_DISK)
    )
    good = decoded.where("bad is null") if can_fault else decoded
    good = good.select(*value_columns(codecs.value, value), "_kafka")
    return SliceFrames(decoded, good, can_fault, only_range)


_SOURCE_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    f"headers {HEADERS_TYPE}"
)


def empty_rows(session: SparkSession) -> DataFrame:
    """No rows, with the columns of Spark's Kafka source; no job is started for it."""
    return session.createDataFrame([], _SOURCE_COLUMNS)


def empty_slice(session: SparkSession, codecs: TopicCodecs) -> SliceFrames:
    """The frames of an empty slice: the right columns and no rows."""
    return decode_rows(empty_rows(session), codecs, src=F.lit(0))

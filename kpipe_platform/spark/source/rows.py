"""A slice's records in Spark: decoded once, and what the stage, the writer and isolation see of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform.codecs import Codec
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.policies.faults import Component
from kpipe_platform.spark.column_cache import reused
from kpipe_platform.spark.columns import HEADERS_TYPE, is_fault, parsed, value_columns, value_of
from kpipe_platform.spark.source.cache import RowCache

# Offsets below which a slice is small: to read and decode it twice costs less than to plan, fill and drop a cache.
_SMALL = 5_000


def is_small(span: int) -> bool:
    """Whether so many offsets are few."""
    return span <= _SMALL


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
        columns: The columns of ``good``, computed from ``decoded``.
        cache: Caches the decoded rows, for those who need them more than once.
        can_fault: False where every byte string decodes, so that nobody need look for faults.
        only_range: The range that all rows are of; None where there are several.
        small: Whether there are few records, so that a row for each is cheaper than a job that counts them.
        one_task: Whether there are so few records that several tasks would have them written no sooner than one.
        shared: Whether the stage sees other rows than those of ``decoded``, or others need the rows again, so that they
            are not this slice's alone to drop.
    """

    decoded: DataFrame
    good: DataFrame
    columns: Sequence[Column]
    cache: RowCache
    can_fault: bool
    only_range: int | None = None
    small: bool = False
    one_task: bool = False
    shared: bool = False

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

    def part(self, ranges: Iterable[OffsetRange]) -> SliceFrames:
        """The frames of which the stage sees some offsets only, out of the cache."""
        return replace(self, good=self.good.where(_within(ranges)), shared=True)

    def without(self, records: Iterable[OffsetRange]) -> SliceFrames:
        """The frames of which the stage does not see some records; they count as read all the same.

        Args:
            records: The records to leave out, as ranges of one offset.
        """
        offsets: dict[tuple[str, int], list[int]] = {}
        for record in records:
            offsets.setdefault((record.topic, record.partition), []).append(record.start)
        gone = F.lit(False)
        for place, left_out in offsets.items():
            gone = gone | (_of(*place) & F.col("_kafka.offset").isin(left_out))
        return replace(self, good=self.good.where(~gone), shared=True)

    def none(self) -> SliceFrames:
        """The frames without a row."""
        return replace(self, decoded=self.decoded.limit(0), good=self.good.limit(0), shared=True)

    def totals(self) -> tuple[int, int]:
        """Number of records, and of those that do not decode."""
        row = self.decoded.agg(F.count(F.lit(1)), F.count("bad")).collect()[0]
        return row[0], row[1]

    def sample(self, count: int) -> list[tuple[int, int]]:
        """Index of the range, and offset, of up to so many good records, chosen at random."""
        rows = self.decoded.where("bad is null").select("src", "_kafka.offset").orderBy(F.rand()).limit(count)
        return [(row[0], row[1]) for row in rows.collect()]

    def keep(self) -> None:
        """Cache the rows for those who use them twice, unless there are so few that a cache takes longer."""
        if not self.small:
            self.cache.keep()

    def read_once(self) -> None:
        """Do not cache the rows, unless some are cached already: a single pass reads them once."""
        if not self.cache.is_filled:
            self.cache.drop()

    def release(self) -> None:
        """Drop the cached rows."""
        self.cache.drop()


def _of(topic: str, partition: int) -> Column:
    return (F.col("_kafka.topic") == topic) & (F.col("_kafka.partition") == partition)


def _within(ranges: Iterable[OffsetRange]) -> Column:
    inside = F.lit(False)
    for r in ranges:
        offset = F.col("_kafka.offset")
        inside = inside | (_of(r.topic, r.partition) & (offset >= r.start) & (offset < r.end))
    return inside


# The fields of _kafka.
_KAFKA = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "headers", "tombstone")


def decode_rows(
    rows: DataFrame,
    codecs: TopicCodecs,
    *,
    src: Column,
    only_range: int | None = None,
    small: bool = False,
    one_task: bool = False,
    lacks_times: bool = False,
) -> SliceFrames:
    """Decode rows of Spark's Kafka source.

    Args:
        rows: The rows.
        codecs: How keys and values decode.
        src: Index of a row's range in the slice.
        only_range: As in ``SliceFrames``.
        small: As in ``SliceFrames``.
        one_task: As in ``SliceFrames``.
        lacks_times: Whether a row without a timestamp is a record whose timestamp Spark cannot hold: a fault.
    """
    how = _decoding(codecs.key, codecs.value, lacks_times)
    staged = rows.select(src.cast("int").alias("src"), *how.staged)
    flat = staged.withColumn("fault", how.fault).select(*how.flat)
    decoded = flat.select(*how.decoded)
    # True for a good record, and not deterministic: Spark moves no filter of the stage below such a filter. Otherwise
    # it may compute a stage's condition for a record before it knows that the record did not decode.
    is_good = F.when(F.col("bad").isNull(), F.spark_partition_id()) >= 0
    good = decoded.where(is_good) if how.can_fault else decoded
    good = good.select(*how.good)
    return SliceFrames(decoded, good, how.good, RowCache(flat), how.can_fault, only_range, small, one_task)


@dataclass(frozen=True)
class _Decoding:
    """The columns of each step of decoding, and whether there can be bytes that do not decode.

    What is cached is ``flat``: a struct of them all would be made, copied and read back whole for the one field that
    somebody needs.
    """

    staged: Sequence[Column]
    fault: Column
    flat: Sequence[Column]
    decoded: Sequence[Column]
    good: Sequence[Column]
    can_fault: bool


@reused
def _decoding(key: Codec, value: Codec, lacks_times: bool) -> _Decoding:
    bad_key = is_fault(key, F.col("key_bytes"), F.col("key"))
    bad_value = is_fault(value, F.col("data"), F.col("parsed"))
    fault = F.lit(None).cast("string")
    if bad_value is not None:
        fault = F.when(bad_value, F.lit(Component.DECODE_VALUE.value)).otherwise(fault)
    if bad_key is not None:
        fault = F.when(bad_key, F.lit(Component.DECODE_KEY.value)).otherwise(fault)
    if lacks_times:
        fault = F.when(F.col("timestamp").isNull(), F.lit(Component.SOURCE.value)).otherwise(fault)
    # One struct that is null in good rows, so that the search for dead letters need read no other cached column. A
    # text key that does not decode must still leave as its original bytes.
    letter = F.struct(
        F.col("offset"),
        F.col("key_bytes").alias("key"),
        F.col("data").alias("value"),
        F.col("headers"),
        F.unix_millis(F.col("timestamp")).alias("timestamp_ms"),
        F.col("timestamp_type"),
        F.col("fault").alias("component"),
    )
    return _Decoding(
        staged=[
            *[F.col(name) for name in ("topic", "partition", "offset", "timestamp")],
            F.col("timestampType").alias("timestamp_type"),
            parsed(key, F.col("key")).alias("key"),
            # Null arrays make Spark's Arrow writer quadratic; a record without headers gets an empty one.
            F.coalesce(F.col("headers"), F.array().cast(HEADERS_TYPE)).alias("headers"),
            F.col("value").isNull().alias("tombstone"),
            F.col("key").alias("key_bytes"),
            F.col("value").alias("data"),
            parsed(value, F.col("value")).alias("parsed"),
        ],
        fault=fault,
        flat=[
            F.col("src"),
            *[F.col(name) for name in _KAFKA],
            value_of(value, F.col("parsed")).alias("v"),
            F.when(F.col("fault").isNotNull(), letter).alias("bad"),
        ],
        decoded=[F.col("src"), F.struct(*_KAFKA).alias("_kafka"), F.col("v"), F.col("bad")],
        good=[*value_columns(value, F.col("v")), F.col("_kafka")],
        can_fault=lacks_times or bad_key is not None or bad_value is not None,
    )

"""A slice's records in Spark: decoded once, with views for the stage, the writer and isolation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform.codecs import Codec, RawCodec, TextCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.policies.faults import Component
from kpipe_platform.spark.column_cache import reused
from kpipe_platform.spark.columns import HEADERS_TYPE, KEY_BYTES, framed, parsed, value_columns, without_header
from kpipe_platform.spark.source.cache import RowCache

# Maximum number of offsets of a small slice: reading and decoding it twice costs less than using a cache.
_SMALL = 5_000


def is_small(span: int) -> bool:
    """Whether a slice with this number of offsets is small."""
    return span <= _SMALL


@dataclass(frozen=True)
class TopicCodecs:
    """The codecs of one source topic."""

    key: Codec
    value: Codec

    @classmethod
    def of(cls, topic: KafkaTopic) -> TopicCodecs:
        """Return those of a topic."""
        return cls(topic.key_codec, topic.value_codec)


@dataclass(frozen=True)
class SliceFrames:
    """A slice in Spark, evaluated lazily.

    Args:
        decoded: One row per record: src (index of its range in the slice, int), _kafka, v (decoded value) and bad (a
            struct with the data for a dead letter; null for a good record).
        good: The stage's input: the value's columns and ``_kafka``.
        columns: The columns of ``good``, as expressions over ``decoded``.
        cache: Cache of the decoded rows.
        can_fault: Whether records may fail to decode. False if the codecs accept all byte strings.
        only_range: Index of the range of all rows; None if there are several ranges.
        small: Whether there are so few records that one row per record is cheaper than a job that counts them.
        one_task: Whether there are so few records that several tasks would not write them faster than one.
        shared: Whether the stage's input differs from ``decoded``, or others need the rows again, so that this slice
            must not drop them.
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
        """Records that do not decode.

        Columns:
            src, offset, key, value, headers, timestamp_ms, timestamp_type, component.
        """
        return self.decoded.where("bad is not null").select("src", "bad.*")

    def counts(self) -> DataFrame:
        """Number of records read from each range, and how many of them do not decode.

        Columns:
            src (int), records (bigint), faults (bigint).
        """
        numbers = [F.count(F.lit(1)).alias("records"), F.count("bad").alias("faults")]
        if self.only_range is not None:
            # Without a grouping key there is no shuffle by key, which would take most of the time for a small slice.
            return self.decoded.agg(*numbers).select(F.lit(self.only_range).alias("src"), "records", "faults")
        return self.decoded.groupBy("src").agg(*numbers)

    def part(self, ranges: Iterable[OffsetRange]) -> SliceFrames:
        """The same slice, with the stage's input limited to some offsets.

        Args:
            ranges: The offset ranges to keep.
        """
        return replace(self, good=self.good.where(_within(ranges)), shared=True)

    def without(self, records: Iterable[OffsetRange]) -> SliceFrames:
        """The same slice without some records in the stage's input. They still count as read.

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
        """The same frames without rows."""
        return replace(self, decoded=self.decoded.limit(0), good=self.good.limit(0), shared=True)

    def totals(self) -> tuple[int, int]:
        """Number of records, and number of records that do not decode. Runs a job."""
        row = self.decoded.agg(F.count(F.lit(1)), F.count("bad")).collect()[0]
        return row[0], row[1]

    def sample(self, count: int) -> list[tuple[int, int]]:
        """(index of the range, offset) of up to ``count`` random good records. Runs a job."""
        rows = self.decoded.where("bad is null").select("src", "_kafka.offset").orderBy(F.rand()).limit(count)
        return [(row[0], row[1]) for row in rows.collect()]

    def keep(self) -> None:
        """Cache the rows, because they will be read more than once. Does nothing for a small slice."""
        if not self.small:
            self.cache.keep()

    def read_once(self) -> None:
        """Stop caching the rows unless the cache is filled already, because a single pass reads them once."""
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


def _kafka_fields(key: Codec) -> tuple[str, ...]:
    return _KAFKA if isinstance(key, RawCodec | TextCodec) else (*_KAFKA, KEY_BYTES)


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
        codecs: Codecs of keys and values.
        src: Index of a row's range in the slice.
        only_range: As in ``SliceFrames``.
        small: As in ``SliceFrames``.
        one_task: As in ``SliceFrames``.
        lacks_times: Whether a null timestamp means that Spark cannot represent the timestamp, which is a fault.
    """
    how = _decoding(codecs.key, codecs.value, lacks_times)
    staged = rows.select(src.cast("int").alias("src"), *how.staged)
    flat = staged.withColumn("fault", how.fault).select(*how.flat)
    decoded = flat.select(*how.decoded)
    # True for a good record, and nondeterministic, so that Spark does not push the stage's filters below this one.
    # Otherwise it might evaluate the stage's condition for a record that did not decode.
    is_good = F.when(F.col("bad").isNull(), F.spark_partition_id()) >= 0
    good = decoded.where(is_good) if how.can_fault else decoded
    good = good.select(*how.good)
    return SliceFrames(decoded, good, how.good, RowCache(flat), how.can_fault, only_range, small, one_task)


@dataclass(frozen=True)
class _Decoding:
    """The columns of each decoding step, and whether records may fail to decode.

    The step ``flat`` is cached. If its columns were one struct, Spark would create, copy and read the whole struct to
    access a single field.
    """

    staged: Sequence[Column]
    fault: Column
    flat: Sequence[Column]
    decoded: Sequence[Column]
    good: Sequence[Column]
    can_fault: bool


def _key_value(key: Codec) -> Column:
    """The decoded key. Users see all of it, so a struct has only the declared fields."""
    value = key.value(F.col("key"))
    if not key.is_struct:
        return value
    return F.when(value.isNotNull(), F.struct(*[value[name].alias(name) for name in key.fields.names]))


@reused
def _decoding(key: Codec, value: Codec, lacks_times: bool) -> _Decoding:
    kafka = _kafka_fields(key)
    bad_key = key.fault(F.col("key_bytes"), F.col("key"))
    bad_value = value.fault(F.col("data"), F.col("parsed"))
    fault = F.lit(None).cast("string")
    if bad_value is not None:
        fault = F.when(bad_value, F.lit(Component.DECODE_VALUE.value)).otherwise(fault)
    if bad_key is not None:
        fault = F.when(bad_key, F.lit(Component.DECODE_KEY.value)).otherwise(fault)
    if lacks_times:
        fault = F.when(F.col("timestamp").isNull(), F.lit(Component.SOURCE.value)).otherwise(fault)
    # One struct that is null in good rows, so that the search for faults reads no other cached column. It has the
    # original bytes of the key, because a text key that does not decode must be dead-lettered unchanged.
    letter = F.struct(
        F.col("offset"),
        F.col("key_bytes").alias("key"),
        F.col("data").alias("value"),
        F.col("headers"),
        F.unix_millis(F.col("timestamp")).alias("timestamp_ms"),
        F.col("timestamp_type"),
        F.col("fault").alias("component"),
    )
    # The id is a part of the value, as it is in front of other values. The bytes of the key keep theirs.
    given = {"key": _key_value(key), "headers": without_header(F.col("headers"), value.id_header("value"))}
    return _Decoding(
        staged=[
            *[F.col(name) for name in ("topic", "partition", "offset", "timestamp")],
            F.col("timestampType").alias("timestamp_type"),
            parsed(key, framed(key, F.col("key"), F.col("headers"), "key")).alias("key"),
            # A record without headers gets an empty array, because null arrays make Spark's Arrow writer quadratic.
            F.coalesce(F.col("headers"), F.array().cast(HEADERS_TYPE)).alias("headers"),
            F.col("value").isNull().alias("tombstone"),
            F.col("key").alias("key_bytes"),
            F.col("value").alias("data"),
            parsed(value, framed(value, F.col("value"), F.col("headers"), "value")).alias("parsed"),
        ],
        fault=fault,
        flat=[
            F.col("src"),
            *[given.get(name, F.col(name)).alias(name) for name in kafka],
            value.value(F.col("parsed")).alias("v"),
            F.when(F.col("fault").isNotNull(), letter).alias("bad"),
        ],
        decoded=[F.col("src"), F.struct(*kafka).alias("_kafka"), F.col("v"), F.col("bad")],
        good=[*value_columns(value, F.col("v")), F.col("_kafka")],
        can_fault=lacks_times or bad_key is not None or bad_value is not None,
    )

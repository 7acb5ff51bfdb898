"""Reading a whole compacted topic as a table: the latest value of each key. Commits no offsets."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from kpipe_platform.codecs.base import Part
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import RecordFaultError
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange, read_watermarks
from kpipe_platform.policies.faults import Component
from kpipe_platform.spark.source.client_reader import is_beyond_spark
from kpipe_platform.spark.source.reader import empty_rows, read_by_client, read_ranges, schema_ids
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs, decode_rows


def latest_by_key(
    session: SparkSession,
    clients: Clients,
    topic: KafkaTopic,
    *,
    isolation: str,
    group: str,
    parallelism: int,
    hide_messages: bool = False,
) -> tuple[KafkaTopic, SliceFrames]:
    """Read the latest value of each key. Keys with a tombstone and records without a key are left out.

    The codec may know values that change a table otherwise, as change events do: `Codec.table_changes`.

    If a key is in several partitions, a tombstone removes it only as long as the topic keeps the tombstone
    (``delete.retention.ms``), because compaction processes each partition separately.

    Args:
        session: The Spark session.
        clients: Kafka clients.
        topic: The topic.
        isolation: ``read_committed`` or ``read_uncommitted``.
        group: Prefix of Spark's group ids.
        parallelism: Tasks that the engine runs at once.
        hide_messages: Leave the message of a decode fault out of the error, because it may quote the value.

    Returns:
        The topic, whose codecs know the schemas of its records, and frames whose ``good`` has the decoded value's
        columns and ``_kafka``, up to the log end at the time of the call. The rows are cached from their first use
        until ``release``, because an asset may use them for each of its slices.

    Raises:
        RecordFaultError: A latest value does not decode.
        TopicNotFoundError: The topic does not exist.
    """
    name = topic.name
    count = describe_topics(clients, [name])[name].partitions
    watermarks = read_watermarks(clients, [(name, n) for n in range(count)], isolation)
    ranges = [OffsetRange(name, n, watermarks[(name, n)].log_start, watermarks[(name, n)].end) for n in range(count)]
    by_client = False
    if all(r.is_empty for r in ranges):
        rows = empty_rows(session)
    elif by_client := is_beyond_spark(clients, ranges, isolation):
        rows = read_by_client(session, clients.settings, ranges, isolation=isolation, group=group)
    else:
        rows = read_ranges(
            session, clients.settings, ranges, isolation=isolation, group=group, parts=max(count, parallelism)
        )
    latest = _newest(rows.where("key is not null")).where("value is not null")
    # Only these can remove all rows of a table.
    unkeyed = rows.where("key is null and value is not null")
    if topic.is_framed:
        ids = schema_ids(latest.unionByName(unkeyed), TopicCodecs.of(topic))
        topic = topic.resolved(clients.settings.registry(), ids)
    else:
        topic = topic.resolved(clients.settings.registry())
    codecs = TopicCodecs.of(topic)
    frames = decode_rows(latest, codecs, src=F.lit(0), lacks_times=by_client)
    frames.keep()
    try:
        _refuse_undecoded(frames, name, codecs, hide_messages=hide_messages)
        frames = _without_removed(frames, codecs, unkeyed)
    except BaseException:
        frames.release()
        raise
    return topic, frames


def _newest(rows: DataFrame) -> DataFrame:
    """The last record of each key, including tombstones.

    Within a partition, the highest offset wins. A key can be in several partitions if partitions were added to the
    topic or if producers use different partitioners. Then the latest timestamp wins, and if timestamps are equal, the
    highest partition, since added partitions have higher numbers.
    """
    last = Window.partitionBy("key", "partition").orderBy(F.col("offset").desc())
    newest = Window.partitionBy("key").orderBy(F.col("timestamp").desc(), F.col("partition").desc())
    # One shuffle is enough for both windows.
    newest_rows = rows.repartition("key")
    for window in (last, newest):
        newest_rows = newest_rows.withColumn("_nth", F.row_number().over(window)).where("_nth = 1").drop("_nth")
    return newest_rows


def _without_removed(frames: SliceFrames, codecs: TopicCodecs, unkeyed: DataFrame) -> SliceFrames:
    """Leave out keys whose latest value leaves no row, and rows that a later value of the topic removes."""
    value = F.struct(*[F.col(f"`{name}`") for name in codecs.value.fields.names])
    changes = codecs.value.table_changes(value)
    if changes is None:
        return frames
    good = frames.good.where(~F.coalesce(changes.removes, F.lit(False)))
    clears = decode_rows(unkeyed, codecs, src=F.lit(0)).good.where(changes.clears)
    number = F.col("_kafka.partition")
    last = clears.groupBy(number.alias("partition")).agg(F.max("_kafka.offset"), F.max(changes.at_ms)).collect()
    for partition, offset, at_ms in last:
        # Offsets order the changes of one partition only.
        in_other = F.lit(False) if at_ms is None else F.coalesce(changes.at_ms < at_ms, F.lit(False))
        gone = F.when(number == partition, F.col("_kafka.offset") < offset).otherwise(in_other)
        good = good.where(~gone)
    return replace(frames, good=good, shared=True)


def _refuse_undecoded(frames: SliceFrames, topic: str, codecs: TopicCodecs, *, hide_messages: bool) -> None:
    if not frames.can_fault:
        return
    bad = (
        frames.decoded.where("bad is not null")
        .select("_kafka.partition", "bad.offset", "bad.key", "bad.value", "bad.headers", "bad.component")
        .head(1)
    )
    if bad:
        if bad[0]["component"] == Component.SOURCE.value:
            why = "its timestamp is outside the range that Spark can represent"
        else:
            part: Part = "key" if bad[0]["component"] == Component.DECODE_KEY.value else "value"
            codec = codecs.key if part == "key" else codecs.value
            fault = codec.explain(codec.framed(bytes(bad[0][part] or b""), bad[0]["headers"], part) or b"")
            why = fault.kind if hide_messages else fault.message
        msg = f"{topic}/{bad[0]['partition']} offset {bad[0]['offset']}: {why}"
        raise RecordFaultError(msg, fix="fix the record: write a valid record with the same key", topic=topic)

"""A dead-letter topic as a table. No offsets move."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform.deadletter.context import CORRELATION_HEADER
from kpipe_platform.deadletter.decode import ENVELOPE_PREFIX
from kpipe_platform.deadletter.header_families import ERROR_NAMES, ERROR_PREFIXES, ORIGIN_HEADER, REDACTED_MARK
from kpipe_platform.deadletter.headers import CONNECT_PREFIX, SPRING_PREFIX
from kpipe_platform.deadletter.model import OMITTED_HEADERS, OMITTED_KEY, OMITTED_MESSAGE_HEADERS
from kpipe_platform.deadletter.parts import SCHEMA
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.kafka.offsets import OffsetRange, watermarks
from kpipe_platform.kafka.topics import describe_topics
from kpipe_platform.spark.client_reader import is_beyond_spark
from kpipe_platform.spark.columns import HEADERS_TYPE
from kpipe_platform.spark.reader import empty_rows, read_by_client, read_ranges

# The envelope of version 1. Times stay text until they are cast one by one: one that no calendar has would make a null
# of everything around it.
_ENVELOPE = """
  schema STRING, payload STRING, omitted ARRAY<STRING>,
  original STRUCT<topic STRING, partition INT, offset BIGINT, timestamp_ms BIGINT, key_base64 STRING,
    value_base64 STRING, headers ARRAY<STRUCT<key STRING, value_base64 STRING>>, header_count INT,
    reference STRUCT<key_bytes BIGINT, key_sha256 STRING, value_bytes BIGINT, value_sha256 STRING,
      headers_bytes BIGINT>>,
  origin_range STRUCT<topic STRING, partition INT, start BIGINT, `end` BIGINT>,
  fault STRUCT<component STRING, kind STRING, exception_type STRING, message STRING, field STRING, at STRING,
    stacktrace STRING>,
  asset STRING, run_id STRING, attempt INT, correlation_id STRING, created_at STRING, dead_lettered_at STRING,
  distribution STRUCT<instance STRING, worker STRING, `group` STRING, lease STRING>,
  segments ARRAY<STRUCT<name STRING, started_at STRING, duration_ms BIGINT>>,
  retries ARRAY<STRUCT<attempt INT, at STRING, delay_ms BIGINT, exception_type STRING, message STRING>>,
  rules ARRAY<STRING>, redacted BOOLEAN
"""
# Milliseconds of the years 1 to 9999. Producers may set any 64 bits, and Spark fails on what it cannot count.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
# Of a record in kpipe's raw form `__connect.errors.class.name` is this and the component.
_OUR_CLASS = "kpipe_platform."
_ARRAYS = {
    "rules": "array<string>",
    "retries": "array<struct<attempt:int,at:timestamp,delay_ms:bigint,exception_type:string,message:string>>",
    "segments": "array<struct<name:string,started_at:timestamp,duration_ms:bigint>>",
    "omitted": "array<string>",
}


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
        return dead_letter_columns(empty_rows(session))
    settings = clients.settings
    if is_beyond_spark(clients, wanted, isolation):
        rows = read_by_client(session, settings, wanted, isolation=isolation, group=group)
    else:
        rows = read_ranges(session, settings, wanted, isolation=isolation, group=group, parts=max(parts, len(wanted)))
    return dead_letter_columns(rows)


def dead_letter_columns(rows: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source, read as dead letters.

    A record that is no envelope of version 1 is a row too, with what the headers of Kafka Connect or Spring say.

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
    headers = F.coalesce(F.col("headers"), F.array().cast(HEADERS_TYPE)).alias("headers")
    is_envelope = F.startswith(F.col("value"), F.lit(ENVELOPE_PREFIX)) & ~_Origin(F.col("headers")).is_known
    text = F.when(is_envelope, F.col("value").cast("string"))
    read = rows.select(
        "partition", "offset", "timestamp", "key", "value", headers, F.from_json(text, _ENVELOPE).alias("e")
    )
    e = F.col("e")
    whole = (e["schema"] == SCHEMA) & e["original"].isNotNull() & e["fault"]["component"].isNotNull()
    read = read.select(
        F.col("partition").alias("dlq_partition"),
        F.col("offset").alias("dlq_offset"),
        F.col("timestamp").alias("dlq_timestamp"),
        F.when(whole, "envelope").otherwise("raw").alias("form"),
        *("key", "value", "headers", "e"),
    )
    bare = _of_headers()
    columns = [
        F.when(F.col("form") == "envelope", column).otherwise(bare.get(name, F.lit(None))).alias(name)
        for name, column in _of_envelope(e).items()
    ]
    return read.select("dlq_partition", "dlq_offset", "dlq_timestamp", "form", *columns)


def _of_envelope(e: Column) -> dict[str, Column]:
    original, fault, origin = e["original"], e["fault"], e["origin_range"]
    referred = e["payload"] == "reference"

    def omits(name: str) -> Column:
        return F.array_contains(e["omitted"], name)

    kept = F.transform(
        original["headers"], lambda h: F.struct(h["key"].alias("key"), F.unbase64(h["value_base64"]).alias("value"))
    )
    own = F.slice(F.col("headers"), F.lit(1), original["header_count"])
    own = F.when(omits(OMITTED_MESSAGE_HEADERS), F.array().cast(HEADERS_TYPE)).otherwise(own)
    distribution = e["distribution"]
    return {
        "payload": e["payload"],
        "source_topic": F.coalesce(origin["topic"], original["topic"]),
        "source_partition": F.coalesce(origin["partition"], original["partition"]),
        "source_offset": original["offset"],
        "source_timestamp": _from_ms(original["timestamp_ms"]),
        # What the envelope leaves out, the message's own key and headers hold, unless they had to make way too.
        "key": F.when(omits(OMITTED_KEY) | referred, F.col("key")).otherwise(F.unbase64(original["key_base64"])),
        "value": F.unbase64(original["value_base64"]),
        "headers": F.when(omits(OMITTED_HEADERS) | referred, own).otherwise(kept),
        **{n: fault[n] for n in ("component", "kind", "exception_type", "message", "field", "stacktrace")},
        "fault_at": _time(fault["at"]),
        **{n: e[n] for n in ("asset", "run_id", "attempt", "correlation_id")},
        **{n: _time(e[n]) for n in ("created_at", "dead_lettered_at")},
        **{n: distribution[n] for n in ("instance", "worker", "group", "lease")},
        "rules": F.coalesce(e["rules"], F.array().cast(_ARRAYS["rules"])),
        "retries": F.transform(e["retries"], lambda r: r.withField("at", _time(r["at"]))),
        "segments": F.transform(e["segments"], lambda s: s.withField("started_at", _time(s["started_at"]))),
        "omitted": e["omitted"],
        "redacted": F.coalesce(e["redacted"], F.lit(False)),
        "origin_range": origin,
        "reference": original["reference"],
    }


def _of_headers() -> dict[str, Column]:
    """Of several hops' headers the first coordinates and the last exception count; what is not here is not known.

    As `kpipe_platform.deadletter.families` reads them: where kpipe says the record's origin, that counts.
    """
    origin = _Origin(F.col("headers"))
    mark_name, mark = REDACTED_MARK
    # A mark among the record's own headers says nothing of this dead letter.
    behind_own = F.slice(F.col("headers"), origin.header_count + 1, F.size("headers"))
    added = F.when(origin.is_known, behind_own).otherwise(F.col("headers"))
    timestamp = F.coalesce(_from_ms(_big_endian(f"{SPRING_PREFIX}original-timestamp")), F.col("dlq_timestamp"))
    timestamp = F.when(origin.timestamp_ms.isNull(), timestamp).otherwise(_from_ms(origin.timestamp_ms))
    writer = _last(f"{CONNECT_PREFIX}class.name")
    return {
        "payload": F.lit("embedded"),
        "source_topic": F.when(origin.is_read, origin.topic).otherwise(
            F.coalesce(_first(f"{CONNECT_PREFIX}topic"), _first(f"{SPRING_PREFIX}original-topic"))
        ),
        "source_partition": F.when(origin.is_read, origin.partition).otherwise(
            _coordinate("partition").try_cast("int")
        ),
        "source_offset": F.when(origin.is_known, origin.offset).otherwise(_coordinate("offset")),
        "source_timestamp": timestamp,
        "key": F.col("key"),
        "value": F.col("value"),
        "headers": F.when(origin.is_known, F.slice(F.col("headers"), F.lit(1), origin.header_count)).otherwise(
            F.filter(F.col("headers"), lambda header: ~_is_error(header["key"]))
        ),
        "component": F.when(F.startswith(writer, F.lit(_OUR_CLASS)), F.substr(writer, F.lit(len(_OUR_CLASS) + 1))),
        "kind": _last(f"{CONNECT_PREFIX}stage"),
        "exception_type": _exception("class.name", "fqcn"),
        "message": _exception("message", "message"),
        "stacktrace": _exception("stacktrace", "stacktrace"),
        "asset": _last(f"{CONNECT_PREFIX}connector.name"),
        "run_id": _last(f"{CONNECT_PREFIX}task.id"),
        "correlation_id": _last(CORRELATION_HEADER),
        "created_at": timestamp,
        "group": _last(f"{SPRING_PREFIX}original-consumer-group"),
        **{name: F.array().cast(kind) for name, kind in _ARRAYS.items()},
        "redacted": F.coalesce(
            F.exists(added, lambda header: (header["key"] == mark_name) & (header["value"] == F.lit(mark))),
            F.lit(False),
        ),
    }


class _Origin:
    """Where kpipe says that a record in raw form belongs; see `kpipe_platform.deadletter.header_families.Origin`."""

    def __init__(self, headers: Column) -> None:
        last = F.get(headers, F.size(headers) - 1)
        text = F.when(last["key"] == ORIGIN_HEADER, last["value"].cast("string"))
        self.topic, partition, offset, count, timestamp = (
            F.get_json_object(text, f"$.{name}")
            for name in ("topic", "partition", "offset", "header_count", "timestamp_ms")
        )
        self.timestamp_ms = timestamp.try_cast("bigint")
        self.partition, self.offset = partition.try_cast("int"), offset.try_cast("bigint")
        self.header_count = count.try_cast("int")
        self.is_known = F.coalesce(self.topic.isNotNull() & (self.header_count >= 0), F.lit(False))
        # A rejected output has no offset, and belongs to its slice.
        self.is_read = self.is_known & self.offset.isNotNull()


def _named(name: str) -> Column:
    return F.filter(F.col("headers"), lambda header: header["key"] == name)


def _first(name: str) -> Column:
    return F.get(_named(name), F.lit(0))["value"].cast("string")


def _last(name: str) -> Column:
    # get() gives null for an index outside of the array, -1 too.
    return F.get(_named(name), F.size(_named(name)) - 1)["value"].cast("string")


def _exception(connect: str, spring: str) -> Column:
    names = (f"{CONNECT_PREFIX}exception.{connect}", f"{SPRING_PREFIX}exception-{spring}")
    return F.coalesce(*map(_last, (*names, f"{SPRING_PREFIX}key-exception-{spring}")))


def _coordinate(name: str) -> Column:
    text = _first(f"{CONNECT_PREFIX}{name}")
    return F.coalesce(text.try_cast("bigint"), _big_endian(f"{SPRING_PREFIX}original-{name}"))


def _big_endian(name: str) -> Column:
    return F.conv(F.hex(F.get(_named(name), F.lit(0))["value"]), 16, 10).try_cast("bigint")


def _is_error(name: Column) -> Column:
    return reduce(or_, (F.startswith(name, F.lit(prefix)) for prefix in ERROR_PREFIXES), name.isin(*ERROR_NAMES))


def _from_ms(ms: Column) -> Column:
    return F.when(ms.between(_FIRST_MS, _LAST_MS), F.timestamp_millis(ms))


def _time(text: Column) -> Column:
    return text.try_cast("timestamp")

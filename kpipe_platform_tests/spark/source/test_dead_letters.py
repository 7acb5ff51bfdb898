"""Dead letters as Spark columns: every form and every step of making way, against what Python reads of them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform.dead_letters import (
    DeadLetter,
    DeadLetterContext,
    Distribution,
    OriginRange,
    Retry,
    Segment,
    build_dead_letter,
    decode_envelope,
)
from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault
from kpipe_platform.spark.source.dead_letter_counts import DeadLetterCounts, ReasonCount, count_dead_letters
from kpipe_platform.spark.source.dead_letters import dead_letter_columns
from kpipe_platform.spark.source.reader import empty_rows

pytestmark = pytest.mark.spark

UTC = dt.timezone.utc
NOW_MS = 1_357_020_123_004
RECORD = KafkaRecord(
    topic="flights",
    partition=3,
    offset=42,
    timestamp_ms=1_357_017_420_005,
    timestamp_type="create_time",
    key=b"\xff\x00",
    value=bytes(range(256)),
    headers=(("trace", b"1" * 300), ("trace", None), ("empty", b"")),
)
FAULT = Fault(Component.STAGE, "bad_cast", "ValueError", "m" * 1_000, 1_357_017_421_001, "s" * 3_000, "legs[2].code")
CONTEXT = DeadLetterContext(
    "flights.dlq",
    "flights_enriched",
    "7f3e",
    "kpipe.flights_enriched",
    attempt=2,
    distribution=Distribution("host-a", "pid-7", "kpipe.flights_enriched", "lease-1"),
    segments=(Segment("plan", 1_357_017_420_500, 12), Segment("write", 1_357_017_420_512)),
)
RAW = replace(CONTEXT, form="raw")
INNER = build_dead_letter(KafkaRecord("payments", 0, 7, 5, None, b"k", b"v"), FAULT, CONTEXT, NOW_MS)
RETRIES = (Retry(1, 1_357_017_420_900, 250, "TimeoutError", "no answer"), Retry(2, 1_357_017_421_000, None, "E", ""))

Table = Callable[..., list[dict[str, Any]]]


def moment(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, UTC)


def frame_of(spark: SparkSession, letters: list[DeadLetter]) -> DataFrame:
    """As Spark's Kafka source would read them."""
    rows = [
        (
            letter.key,
            letter.value,
            letter.topic,
            0,
            offset,
            moment(letter.timestamp_ms or 0),
            0,
            [{"key": key, "value": value} for key, value in letter.headers] or None,
        )
        for offset, letter in enumerate(letters)
    ]
    return dead_letter_columns(spark.createDataFrame(rows, empty_rows(spark).schema))


@pytest.fixture
def table(spark: SparkSession) -> Table:
    def read(*letters: DeadLetter) -> list[dict[str, Any]]:
        # Through Arrow the times have their zone.
        return frame_of(spark, list(letters)).orderBy("dlq_offset").toArrow().to_pylist()  # type: ignore[no-any-return]

    return read


def pairs(headers: list[dict[str, Any]]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers)


def test_an_envelope_column_by_column(table: Table) -> None:
    (row,) = table(build_dead_letter(RECORD, FAULT, CONTEXT, NOW_MS, retries=RETRIES, rules=("late", "lost")))
    headers = row.pop("headers")
    assert pairs(headers) == RECORD.headers
    assert row == {
        "dlq_partition": 0,
        "dlq_offset": 0,
        "dlq_timestamp": moment(NOW_MS),
        "form": "envelope",
        "payload": "embedded",
        "source_topic": "flights",
        "source_partition": 3,
        "source_offset": 42,
        "source_timestamp": moment(1_357_017_420_005),
        "key": RECORD.key,
        "value": RECORD.value,
        "component": "stage",
        "kind": "bad_cast",
        "exception_type": "ValueError",
        "message": "m" * 1_000,
        "field": "legs[2].code",
        "stacktrace": "s" * 3_000,
        "fault_at": moment(1_357_017_421_001),
        "asset": "flights_enriched",
        "run_id": "7f3e",
        "attempt": 2,
        "correlation_id": "flights-3-42",
        "created_at": moment(1_357_017_420_005),
        "dead_lettered_at": moment(NOW_MS),
        "instance": "host-a",
        "worker": "pid-7",
        "group": "kpipe.flights_enriched",
        "lease": "lease-1",
        "rules": ["late", "lost"],
        "retries": [
            {
                "attempt": 1,
                "at": moment(1_357_017_420_900),
                "delay_ms": 250,
                "exception_type": "TimeoutError",
                "message": "no answer",
            },
            {"attempt": 2, "at": moment(1_357_017_421_000), "delay_ms": None, "exception_type": "E", "message": ""},
        ],
        "segments": [
            {"name": "plan", "started_at": moment(1_357_017_420_500), "duration_ms": 12},
            {"name": "write", "started_at": moment(1_357_017_420_512), "duration_ms": None},
        ],
        "omitted": [],
        "redacted": False,
        "origin_range": None,
        "reference": None,
    }


def test_whatever_makes_way_the_columns_are_what_restore_gives(table: Table) -> None:
    letters = []
    limit = 1_000_000
    long = replace(RECORD, key=b"\xff" * 200)
    for _ in range(9):
        context = replace(CONTEXT, max_record_bytes=limit)
        letter = build_dead_letter(long, FAULT, context, NOW_MS, rules=("r" * 99,))
        letters.append(letter)
        limit = letter.size_bytes - 1
    rows = table(*letters)
    assert [row["payload"] for row in rows] == ["embedded"] * 6 + ["reference"] * 3
    for letter, row in zip(letters, rows, strict=True):
        assert letter.value is not None
        envelope = decode_envelope(letter.value)
        assert row["omitted"] == list(envelope.omitted)
        if envelope.reference is None:
            record = envelope.restore(letter.key, letter.headers)
            assert (row["key"], row["value"], pairs(row["headers"])) == (record.key, record.value, record.headers)
        else:
            assert row["value"] is None
            assert row["key"] == letter.key
            assert pairs(row["headers"]) == (() if "message_headers" in envelope.omitted else RECORD.headers)
            assert row["reference"]["value_sha256"] == envelope.reference.value_sha256


@pytest.mark.parametrize("context", [CONTEXT, RAW], ids=["envelope", "raw"])
def test_null_is_not_empty(table: Table, context: DeadLetterContext) -> None:
    cases = [(None, None), (b"", b""), (None, b""), (b"", None)]
    rows = table(
        *(build_dead_letter(replace(RECORD, key=k, value=v, headers=()), FAULT, context, NOW_MS) for k, v in cases)
    )
    assert [(row["key"], row["value"]) for row in rows] == cases
    assert [row["headers"] for row in rows] == [[]] * 4


def test_a_rejected_output_belongs_to_its_slices_partition(table: Table) -> None:
    output = KafkaRecord("flights.enriched", key=b"k", value=b"v")
    (row,) = table(build_dead_letter(output, FAULT, CONTEXT, NOW_MS, origin_range=OriginRange("flights", 3, 40, 50)))
    assert (row["source_topic"], row["source_partition"], row["source_offset"]) == ("flights", 3, None)
    assert row["origin_range"] == {"topic": "flights", "partition": 3, "start": 40, "end": 50}
    assert (row["source_timestamp"], row["created_at"]) == (None, None)


def test_a_timestamp_beyond_any_calendar_is_null_and_fails_nothing(table: Table) -> None:
    records = [replace(RECORD, timestamp_ms=each) for each in (2**63 - 1, -(2**63), 253_402_300_800_000)]
    rows = table(*(build_dead_letter(record, FAULT, CONTEXT, NOW_MS) for record in records))
    assert [(row["source_timestamp"], row["created_at"]) for row in rows] == [(None, None)] * 3
    assert [(row["source_offset"], row["kind"]) for row in rows] == [(42, "bad_cast")] * 3


@pytest.mark.parametrize("families", [("connect",), ("spring", "connect")])
def test_kpipes_raw_form_is_read_by_its_connect_headers(table: Table, families: tuple[str, ...]) -> None:
    (row,) = table(build_dead_letter(RECORD, FAULT, replace(RAW, header_families=families), NOW_MS))
    found = {name: row[name] for name in ("form", "payload", "source_topic", "source_partition", "source_offset")}
    assert found == {
        "form": "raw",
        "payload": "embedded",
        "source_topic": "flights",
        "source_partition": 3,
        "source_offset": 42,
    }
    assert (row["key"], row["value"], pairs(row["headers"])) == (RECORD.key, RECORD.value, RECORD.headers)
    assert (row["component"], row["kind"]) == ("stage", "TRANSFORMATION")
    assert (row["exception_type"], row["message"], row["stacktrace"]) == ("ValueError", "m" * 1_000, "s" * 3_000)
    assert (row["asset"], row["run_id"], row["dead_lettered_at"]) == ("flights_enriched", "7f3e", None)
    assert row["source_timestamp"] == row["created_at"] == row["dlq_timestamp"] == moment(1_357_017_420_005)


def test_a_timestamp_that_the_topic_of_a_raw_dead_letter_does_not_take(table: Table) -> None:
    context = replace(RAW, limits=TopicLimits(before_max_ms=1_000))
    (row,) = table(build_dead_letter(RECORD, FAULT, context, NOW_MS))
    assert row["source_timestamp"] == row["created_at"] == moment(1_357_017_420_005)
    assert row["dlq_timestamp"] == moment(NOW_MS)
    assert (row["source_topic"], row["source_offset"]) == ("flights", 42)
    assert pairs(row["headers"]) == RECORD.headers


@pytest.mark.parametrize("component", [Component.STAGE, Component.DECODE_KEY])
def test_springs_binary_headers_are_read_where_there_are_no_others(table: Table, component: Component) -> None:
    context = replace(RAW, header_families=("spring",))
    (row,) = table(build_dead_letter(replace(RECORD, offset=2**40), replace(FAULT, component=component), context, 1))
    assert (row["source_topic"], row["source_partition"], row["source_offset"]) == ("flights", 3, 2**40)
    assert row["source_timestamp"] == moment(1_357_017_420_005)
    assert (row["exception_type"], row["message"]) == ("ValueError", "m" * 1_000)
    assert (row["group"], row["asset"]) == ("kpipe.flights_enriched", None)
    assert pairs(row["headers"]) == RECORD.headers


def test_of_several_hops_the_first_coordinates_and_the_last_exception_count(table: Table) -> None:
    headers = (
        ("__connect.errors.topic", b"first"),
        ("__connect.errors.offset", b"1"),
        ("__connect.errors.exception.class.name", b"Earlier"),
        ("__connect.errors.topic", b"second"),
        ("__connect.errors.offset", b"2"),
        ("__connect.errors.exception.class.name", b"Later"),
        ("correlation-id", b"abc"),
    )
    (row,) = table(DeadLetter("d", None, b"v", headers, 5))
    assert (row["source_topic"], row["source_offset"], row["exception_type"]) == ("first", 1, "Later")
    assert (row["correlation_id"], row["component"]) == ("abc", None)


def test_what_is_no_envelope_is_a_row_all_the_same(table: Table) -> None:
    values = [
        b"plain",
        None,
        b'{"schema":"kpipe.dead_letter/1"',
        b'{"schema":"kpipe.dead_letter/1","payload":"embedded"}',
        b'{"schema":"kpipe.dead_letter/2","original":{},"fault":{"component":"stage"}}',
        b'{"schema":"kpipe.dead_letter/1","original":7,"fault":[]}',
        b"\xff\xfe",
    ]
    strange = (("__connect.errors.partition", b"three"), ("__connect.errors.offset", None))
    rows = table(*(DeadLetter("d", b"k", value, strange, 5) for value in values))
    known = {"dlq_partition", "dlq_offset", "dlq_timestamp", "form", "payload", "key", "value", "headers", "redacted"}
    known |= {"source_timestamp", "created_at", "rules", "retries", "segments", "omitted"}
    for row, value in zip(rows, values, strict=True):
        assert (row["form"], row["key"], row["value"]) == ("raw", b"k", value)
        said = {name: found for name, found in row.items() if name not in known and found not in (None, [], False)}
        assert said == {}, value


def test_an_envelope_from_before_rules_and_redaction(table: Table) -> None:
    letter = build_dead_letter(RECORD, FAULT, CONTEXT, NOW_MS)
    assert letter.value is not None
    older = {n: v for n, v in json.loads(letter.value).items() if n not in ("rules", "redacted")}
    value = json.dumps({**older, "added_in_1_1": {"x": 1}}, separators=(",", ":")).encode()
    (row,) = table(replace(letter, value=value))
    assert (row["form"], row["rules"], row["redacted"], row["source_offset"]) == ("envelope", [], False, 42)


def test_a_mark_of_redaction_is_seen_in_either_form(table: Table) -> None:
    plain = DeadLetter("d", None, b"v", (("kpipe.redacted", b"true"),), 5)
    letter = build_dead_letter(RECORD, FAULT, CONTEXT, NOW_MS)
    assert letter.value is not None
    marked = replace(letter, value=letter.value.replace(b'"redacted":false', b'"redacted":true'))
    rows = table(plain, marked)
    assert [row["redacted"] for row in rows] == [True, True]
    assert rows[0]["headers"] == []


@pytest.mark.parametrize("context", [CONTEXT, RAW], ids=["envelope", "raw"])
def test_both_readers_say_the_same_of_what_is_written(table: Table, context: DeadLetterContext) -> None:
    """Also of a record that brings error headers of other tools, and of what a hook changed."""
    left_over = (("kafka_dlt-original-topic", b"payments"), ("x-original-offset", b"7"), ("kpipe.origin", b"{}"))
    hook = f"{unredacted.__module__}:{unredacted.__qualname__}"
    letters = [
        build_dead_letter(replace(RECORD, headers=headers), FAULT, replace(context, redact=redact), NOW_MS)
        for headers in (RECORD.headers, (*RECORD.headers, *left_over), (("kpipe.redacted", b"true"),), ())
        for redact in (None, hook)
    ]
    # A record of a dead-letter topic that failed again.
    letters.append(build_dead_letter(replace(RECORD, value=INNER.value), FAULT, context, NOW_MS))
    for letter, row in zip(letters, table(*letters), strict=True):
        found = read_dead_letter(
            KafkaRecord("d", 0, 0, letter.timestamp_ms, None, letter.key, letter.value, letter.headers)
        )
        original = found.original
        assert (row["source_topic"], row["source_partition"], row["source_offset"]) == ("flights", 3, 42)
        assert (original.topic, original.partition, original.offset) == ("flights", 3, 42)
        assert (row["redacted"], pairs(row["headers"])) == (found.redacted, original.headers)


def unredacted(record: KafkaRecord, _: Fault) -> KafkaRecord:
    """A hook that leaves everything as it is."""
    return record


# -------------------------------------------------------------------------------------------------- counts


def test_counts_by_reason_partition_asset_and_hour(spark: SparkSession) -> None:
    hour = 3_600_000
    begin = NOW_MS - NOW_MS % hour
    other = replace(FAULT, kind="wrong_type", exception_type="DecodeFault", component=Component.DECODE_VALUE)
    letters = [
        build_dead_letter(RECORD, FAULT, CONTEXT, begin + 5),
        build_dead_letter(replace(RECORD, partition=1), other, CONTEXT, begin + hour - 1),
        build_dead_letter(replace(RECORD, partition=1), other, replace(CONTEXT, asset="b"), begin + hour),
        DeadLetter("d", None, b"v", (), begin + 3 * hour),
    ]
    assert count_dead_letters(frame_of(spark, letters)) == DeadLetterCounts(
        records=4,
        oldest_ms=begin + 5,
        newest_ms=begin + 3 * hour,
        reasons=(
            ReasonCount("decode_value", "wrong_type", "DecodeFault", 2),
            ReasonCount("stage", "bad_cast", "ValueError", 1),
            ReasonCount(None, None, None, 1),
        ),
        partitions=((None, None, 1), ("flights", 1, 2), ("flights", 3, 1)),
        assets=(("flights_enriched", 2), ("b", 1), (None, 1)),
        hours=((begin, 2), (begin + hour, 1), (begin + 3 * hour, 1)),
    )


def test_nothing_counts_as_nothing(spark: SparkSession) -> None:
    assert count_dead_letters(frame_of(spark, [])) == DeadLetterCounts()


def test_what_no_column_holds_costs_no_other_dead_letter(table: Table) -> None:
    """An envelope of another writer, and text that is half of a surrogate pair."""
    whole = build_dead_letter(RECORD, FAULT, CONTEXT, NOW_MS, retries=RETRIES)
    halves = (replace(FAULT, message="\ud800!"), (replace(RETRIES[0], message="\udfff"),))
    half = build_dead_letter(RECORD, halves[0], CONTEXT, NOW_MS, retries=halves[1])
    assert whole.value is not None
    document = json.loads(whole.value)
    original = document["original"] | {"timestamp_ms": "never"}
    odd, odder = (
        replace(whole, value=json.dumps(document | changes, separators=(",", ":")).encode())
        for changes in ({"attempt": "twice", "rules": [1], "run_id": {"id": 7}}, {"original": original})
    )
    first, second, third, fourth = table(whole, odd, half, odder)
    assert first["attempt"] == 2
    assert second == first | {"dlq_offset": 1, "attempt": None, "rules": None, "run_id": None}
    assert (fourth["form"], fourth["source_topic"], fourth["value"]) == ("raw", None, odder.value)
    assert (third["message"], third["retries"][0]["message"]) == ("\\ud800!", "\\udfff")


def test_numbers_that_no_column_holds_are_null(table: Table) -> None:
    """A header may hold any eight bytes, and its message any timestamp."""
    headers = (("kafka_dlt-original-partition", b"\x7f" * 8), ("kafka_dlt-original-timestamp", b"\x7f" * 8))
    (row,) = table(DeadLetter("d", None, b"v", headers, 5))
    assert (row["source_partition"], row["source_timestamp"]) == (None, None)

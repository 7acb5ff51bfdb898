from __future__ import annotations

import gc
import hashlib
import json
import pickle
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kpipe_platform.dead_letters import (
    DeadLetter,
    DeadLetterContext,
    Distribution,
    Envelope,
    OriginRange,
    Retry,
    Segment,
    build_dead_letter,
    correlation_id,
    decode_envelope,
    envelope_schema,
)
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

VALIDATOR = Draft202012Validator(envelope_schema())
NOW_MS = 1_357_017_422_002
RECORD = KafkaRecord(
    topic="flights",
    partition=3,
    offset=42,
    timestamp_ms=1_357_017_420_000,
    timestamp_type="log_append_time",
    key=b"\xff\x00",
    value=b"v" * 1_000,
    headers=(("a", b"1" * 300), ("a", None), ("b", b"")),
)
FAULT = Fault(Component.STAGE, "ValueError", "ValueError", "m" * 1_000, 0, stacktrace="s" * 3_000)
CONTEXT = DeadLetterContext("flights.dlq", "flights_enriched", "7f3e", "kpipe.flights_enriched", attempt=2)
RAW = replace(CONTEXT, form="raw")


@dataclass(frozen=True)
class Range:
    """As `kpipe_platform.kafka.model.offsets.OffsetRange`, which needs the Kafka client."""

    topic: str
    partition: int
    start: int
    end: int


def read(letter: DeadLetter) -> Envelope:
    assert letter.value is not None
    VALIDATOR.validate(json.loads(letter.value))
    return decode_envelope(letter.value)


def test_an_envelope() -> None:
    context = replace(CONTEXT, distribution=Distribution("i", "w", "g", "l"), segments=(Segment("read", NOW_MS, 5),))
    letter = build_dead_letter(RECORD, FAULT, context, NOW_MS)
    assert (letter.topic, letter.key, letter.timestamp_ms) == ("flights.dlq", b"\xff\x00", NOW_MS)
    assert letter.headers[:3] == RECORD.headers
    assert letter.headers[3:5] == (("__connect.errors.topic", b"flights"), ("__connect.errors.partition", b"3"))
    assert read(letter) == Envelope(
        original=RECORD,
        fault=FAULT,
        asset="flights_enriched",
        run_id="7f3e",
        attempt=2,
        correlation_id="flights-3-42",
        dead_lettered_ms=NOW_MS,
        distribution=Distribution("i", "w", "g", "l"),
        created_ms=1_357_017_420_000,
        segments=(Segment("read", NOW_MS, 5),),
        header_count=3,
    )


def test_without_a_distribution_the_group_is_known() -> None:
    assert read(build_dead_letter(RECORD, FAULT, CONTEXT, NOW_MS)).distribution == Distribution(
        group="kpipe.flights_enriched"
    )


def test_raw_form_is_the_record_and_error_headers() -> None:
    letter = build_dead_letter(RECORD, FAULT, RAW, NOW_MS)
    assert (letter.key, letter.value, letter.timestamp_ms) == (RECORD.key, RECORD.value, RECORD.timestamp_ms)
    assert letter.headers[:3] == RECORD.headers
    assert dict(letter.headers)["__connect.errors.exception.message"] == b"m" * 1_000


@pytest.mark.parametrize("value", [None, b""])
@pytest.mark.parametrize("key", [None, b""])
def test_null_is_not_empty(key: bytes | None, value: bytes | None) -> None:
    record = replace(RECORD, key=key, value=value)
    raw = build_dead_letter(record, FAULT, RAW, NOW_MS)
    assert (raw.key, raw.value) == (key, value)
    wrapped = build_dead_letter(record, FAULT, CONTEXT, NOW_MS)
    assert (wrapped.key, read(wrapped).original) == (key, record)


def test_bytes_of_any_kind_are_taken() -> None:
    record = replace(RECORD, key=bytearray(b"k"), value=memoryview(b"v"))  # type: ignore[arg-type]
    letter = build_dead_letter(record, FAULT, RAW, NOW_MS)
    assert (letter.key, letter.value) == (b"k", b"v")


def test_a_decoded_value_is_refused() -> None:
    with pytest.raises(DeadLetterError, match=r"the value of flights\[3\]@42 is dict"):
        build_dead_letter(replace(RECORD, value={"a": 1}), FAULT, CONTEXT, NOW_MS)


def test_a_rejected_output_has_its_slice_as_origin() -> None:
    record = KafkaRecord("flights.enriched", key=b"k", value=b"v", headers=(("a", b"1"),))
    letter = build_dead_letter(record, FAULT, CONTEXT, NOW_MS, origin_range=Range("flights", 3, 40, 50))
    envelope = read(letter)
    assert (envelope.original, envelope.origin_range) == (record, OriginRange("flights", 3, 40, 50))
    assert dict(letter.headers)["__connect.errors.topic"] == b"flights"


def test_an_earlier_dead_letter_keeps_its_headers_and_the_error_that_came_first() -> None:
    record = replace(RECORD, headers=(("__connect.errors.topic", b"first"), ("x", b"1")))
    letter = build_dead_letter(record, FAULT, RAW, NOW_MS)
    assert letter.headers[:2] == record.headers
    assert [value for name, value in letter.headers if name == "__connect.errors.topic"] == [b"first"]


def test_a_records_attempts_follow_those_of_its_slice_and_it_may_have_steps_of_its_own() -> None:
    of_slice, own = Retry(1, 1, 10, "A", "a"), Retry(1, 2, None, "B", "b")
    steps = (Segment("read", 1, 2), Segment("stage", 3))
    context = replace(CONTEXT, retries=(of_slice,), segments=steps[:1])
    letter = build_dead_letter(RECORD, FAULT, context, NOW_MS, retries=(own,), segments=steps, rules=("late", "early"))
    envelope = read(letter)
    assert (envelope.retries, envelope.segments, envelope.rules) == ((of_slice, own), steps, ("late", "early"))
    plain = read(build_dead_letter(RECORD, FAULT, context, NOW_MS))
    assert (plain.retries, plain.segments, plain.rules) == ((of_slice,), steps[:1], ())
    assert read(build_dead_letter(RECORD, FAULT, context, NOW_MS, segments=())).segments == ()


def test_attempts_and_rules_are_bounded_and_it_says_so() -> None:
    retries = tuple(Retry(n, n, 1, "E", "m") for n in range(1, 31))
    rules = tuple(f"{n} " + "r" * 300 for n in range(60))
    context = replace(CONTEXT, retries=retries[:15])
    envelope = read(build_dead_letter(RECORD, FAULT, context, NOW_MS, retries=retries[15:], rules=rules))
    assert envelope.retries == retries[10:]
    assert [rule.split()[0] for rule in envelope.rules] == [str(n) for n in range(50)]
    assert {len(rule) for rule in envelope.rules} == {200}
    assert envelope.omitted == ("retries", "rules")


def test_the_oldest_attempts_are_not_named_twice_when_all_make_way() -> None:
    retries = tuple(Retry(n, n, 1, "E", "m" * 500) for n in range(1, 31))
    context = replace(CONTEXT, retries=retries, max_record_bytes=4_000)
    envelope = read(build_dead_letter(RECORD, FAULT, context, NOW_MS, rules=("late",)))
    assert (envelope.omitted, envelope.payload) == (
        ("retries", "stacktrace", "message", "headers", "key"),
        "embedded",
    )
    assert (envelope.retries, envelope.rules) == ((), ("late",))


# ---------------------------------------------------------------------------------------------------- size

# Each step saves what it names; the limit is one byte below what the step before it takes.
STEPS = [
    ((), "embedded"),
    (("stacktrace",), "embedded"),
    (("stacktrace", "message"), "embedded"),
    (("stacktrace", "message", "headers"), "embedded"),
    (("stacktrace", "message", "headers", "key"), "embedded"),
    (("stacktrace", "message", "headers", "key"), "reference"),
    (("stacktrace", "message", "headers", "key", "message_headers"), "reference"),
    (("stacktrace", "message", "headers", "key", "message_headers", "message_key"), "reference"),
]


def shrink(record: KafkaRecord, context: DeadLetterContext, **more: Any) -> list[DeadLetter]:
    """The dead letters of ever smaller limits, until none fits."""
    letters: list[DeadLetter] = []
    limit = 1_000_000
    while True:
        try:
            letter = build_dead_letter(record, FAULT, replace(context, max_record_bytes=limit), NOW_MS, **more)
        except DeadLetterError:
            return letters
        assert letter.size_bytes <= limit
        letters.append(letter)
        limit = letter.size_bytes - 1


def test_what_makes_way_and_in_which_order() -> None:
    # A key long enough for its copy to count.
    record = replace(RECORD, key=b"\xff" * 200)
    letters = shrink(record, CONTEXT)
    envelopes = [read(letter) for letter in letters]
    assert [(envelope.omitted, envelope.payload) for envelope in envelopes] == STEPS
    for letter, envelope in zip(letters, envelopes, strict=True):
        if envelope.payload == "embedded":
            assert envelope.restore(letter.key, letter.headers) == record
    assert [letter.key for letter in letters] == [record.key] * 7 + [None]
    assert [letter.headers[:3] == record.headers for letter in letters] == [True] * 6 + [False] * 2
    assert {envelope.header_count for envelope in envelopes} == {3}


def test_attempts_and_rules_make_way_before_the_payload_does() -> None:
    record = replace(RECORD, key=b"\xff" * 200)
    letters = shrink(record, CONTEXT, retries=(Retry(1, 1, None, "E", "m"),), rules=("arrives after it departs",))
    envelopes = [read(letter) for letter in letters]
    first = ("stacktrace", "message", "headers", "key")
    assert [(envelope.omitted, envelope.payload) for envelope in envelopes[4:8]] == [
        (first, "embedded"),
        ((*first, "retries"), "embedded"),
        ((*first, "retries", "rules"), "embedded"),
        ((*first, "retries", "rules"), "reference"),
    ]
    assert [(len(e.retries), len(e.rules)) for e in envelopes[4:7]] == [(1, 1), (0, 1), (0, 0)]
    assert envelopes[6].restore(letters[6].key, letters[6].headers) == record


def test_a_shortened_message_is_short_everywhere() -> None:
    letter = shrink(RECORD, CONTEXT)[2]
    assert read(letter).fault.message == "m" * 197 + "..."
    assert dict(letter.headers)["__connect.errors.exception.message"] == b"m" * 197 + b"..."
    assert "__connect.errors.exception.stacktrace" not in dict(letter.headers)


def test_a_record_without_key_and_headers_has_fewer_steps() -> None:
    short = replace(FAULT, message="m", stacktrace=None)
    record = replace(RECORD, key=None, headers=())
    letter = build_dead_letter(record, short, replace(CONTEXT, max_record_bytes=2_000), NOW_MS)
    assert (read(letter).omitted, read(letter).payload) == ((), "reference")


def test_a_reference_identifies_the_payload() -> None:
    record = replace(RECORD, value=b"x" * 9_000)
    letter = build_dead_letter(record, FAULT, replace(CONTEXT, max_record_bytes=10_000), NOW_MS)
    envelope = read(letter)
    assert letter.size_bytes <= 10_000
    assert envelope.reference is not None
    assert (envelope.reference.key_bytes, envelope.reference.value_bytes) == (2, 9_000)
    assert envelope.reference.value_sha256 == hashlib.sha256(b"x" * 9_000).hexdigest()
    assert envelope.reference.key_sha256 == hashlib.sha256(b"\xff\x00").hexdigest()
    assert envelope.reference.headers_bytes == 303
    assert (envelope.original.offset, envelope.original.value) == (42, None)


def test_an_oversized_payload_goes_raw_where_asked_for() -> None:
    record = replace(RECORD, value=b"x" * 9_000)
    context = replace(CONTEXT, max_record_bytes=10_000, oversized="raw")
    letter = build_dead_letter(record, FAULT, context, NOW_MS)
    assert (letter.value, letter.headers[:3]) == (record.value, record.headers)
    assert read(build_dead_letter(replace(record, value=b"x" * 11_000), FAULT, context, NOW_MS)).payload == "reference"


def test_raw_form_gives_up_text_only() -> None:
    letters = shrink(RECORD, RAW)
    errors = [{name for name, _ in letter.headers if name.startswith("__connect")} for letter in letters]
    assert ["__connect.errors.exception.stacktrace" in names for names in errors] == [True, False, False, False]
    assert errors[-1] == {
        f"__connect.errors.{name}" for name in ("topic", "partition", "offset", "exception.class.name")
    }
    assert {(letter.key, letter.value, letter.headers[:3]) for letter in letters} == {
        (RECORD.key, RECORD.value, RECORD.headers)
    }


def test_a_record_that_cannot_fit_in_raw_form_is_an_error() -> None:
    with pytest.raises(DeadLetterError) as caught:
        build_dead_letter(RECORD, FAULT, replace(RAW, max_record_bytes=1_000), NOW_MS)
    error = caught.value
    assert error.message == (
        f"the dead letter of flights[3]@42 has {error.size_bytes:,} bytes or more; topic 'flights.dlq' takes 1,000"
    )
    assert error.fix == (
        f"set max.message.bytes of topic 'flights.dlq' to {error.size_bytes} or more, "
        'or use form="envelope", which replaces a payload that does not fit with a reference'
    )
    fits = build_dead_letter(RECORD, FAULT, replace(RAW, max_record_bytes=error.size_bytes), NOW_MS)
    assert fits.size_bytes == error.size_bytes


def test_an_envelope_that_cannot_fit_at_all_is_an_error() -> None:
    with pytest.raises(DeadLetterError, match="takes 500"):
        build_dead_letter(RECORD, FAULT, replace(CONTEXT, max_record_bytes=500), NOW_MS)


# -------------------------------------------------------------------------------------------- correlation


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ((), "flights-3-42"),
        ((("correlation-id", b"abc"),), "abc"),
        ((("correlation-id", b"first"), ("x", b"y"), ("correlation-id", b"last")), "last"),
        ((("correlation-id", None),), "flights-3-42"),
        ((("correlation-id", b""),), "flights-3-42"),
        ((("Correlation-Id", b"abc"),), "flights-3-42"),
        ((("correlation-id", b"\xff1"),), "\\xff1"),
    ],
)
def test_correlation_id(headers: tuple[tuple[str, bytes | None], ...], found: str) -> None:
    assert correlation_id(replace(RECORD, headers=headers), "correlation-id") == found


def test_an_output_without_source_has_a_correlation_id_of_its_own_that_a_retry_repeats() -> None:
    origin = OriginRange("flights", 3, 40, 50)
    one, other, null = (KafkaRecord("out", key=b"k", value=value) for value in (b"1", b"2", None))
    ids = [correlation_id(record, "correlation-id", origin) for record in (one, one, other, null)]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert ids[0].startswith("flights-3-40-50-")
    assert correlation_id(one, "correlation-id").startswith("out-")


# ------------------------------------------------------------------------------------------------- process


def test_contexts_and_dead_letters_pickle() -> None:
    context = replace(CONTEXT, distribution=Distribution.here(group="g"), segments=(Segment("read", 1, 2),))
    assert pickle.loads(pickle.dumps(context)) == context
    letter = build_dead_letter(RECORD, FAULT, context, NOW_MS)
    assert pickle.loads(pickle.dumps(letter)) == letter


def test_here_names_host_and_process() -> None:
    here = Distribution.here(group="g")
    assert here.instance
    assert here.worker
    assert here.worker.startswith("pid-")
    assert (here.group, here.lease) == ("g", None)


@pytest.mark.parametrize("context", [CONTEXT, RAW], ids=["envelope", "raw"])
def test_a_flood_of_dead_letters_is_quick(context: DeadLetterContext) -> None:
    """100,000 dead letters of 300 bytes take 2 s of a slow core; here a tenth of them may take five times as long."""
    fault = Fault(Component.DECODE_VALUE, "null_field", "DecodeFault", "dep_time is null", 0, field="dep_time")
    records = [
        KafkaRecord("flights", 3, i, NOW_MS + i, "create_time", b"N14228", b"v" * 300, (("a", b"1"),))
        for i in range(10_000)
    ]
    gc.collect()
    began = time.process_time()
    for record in records:
        build_dead_letter(record, fault, context, NOW_MS)
    assert time.process_time() - began < 1.0

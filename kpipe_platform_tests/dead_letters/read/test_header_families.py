"""Dead letters of every family, with the encodings that the systems themselves write."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe_platform.dead_letters import (
    DeadLetterContext,
    OriginRange,
    build_dead_letter,
    decode_envelope,
    encode_envelope,
)
from kpipe_platform.dead_letters.envelope.origin import Origin
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.header_families import header_families, is_error_header
from kpipe_platform.dead_letters.read.reader import read_dead_letter, with_source
from kpipe_platform.dead_letters.read.values import read_number
from kpipe_platform.kafka.model.records import Headers, KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

KEY, VALUE, TIME = b"\xff", b"\x80\xfe not UTF-8", 1_700_000_000_123
OWN: Headers = (("trace", b"\x00\xff"), ("trace", b"again"), ("none", None))
FAULT = Fault(Component.DECODE_VALUE, "wrong_type", "shop.codecs.DecodeFault", "expected int", 1_700_000_100_000)
CONTEXT = DeadLetterContext("orders.dlq", "priced", "run-1", "shop.priced")


def letter(headers: Headers = (), **changes: Any) -> KafkaRecord:
    """A message of the dead-letter topic, with the record's own headers around the others."""
    about = {"key": KEY, "value": VALUE, "timestamp_ms": TIME, "timestamp_type": "create_time", **changes}
    return KafkaRecord("dlq", 4, 77, headers=(OWN[0], *headers, *OWN[1:]), **about)


def text(prefix: str, **values: str | int) -> Headers:
    return tuple((prefix + name.replace("__", ".").replace("_", "-"), str(v).encode()) for name, v in values.items())


def source() -> KafkaRecord:
    return KafkaRecord("orders", 1, 42, TIME, "create_time", KEY, VALUE, OWN)


def in_log(built: Any) -> KafkaRecord:
    """A dead letter that was built, as it is read from its topic."""
    return KafkaRecord("orders.dlq", 0, 5, built.timestamp_ms, "create_time", built.key, built.value, built.headers)


def place(found: FoundDeadLetter) -> tuple[Any, ...]:
    return found.original.topic, found.original.partition, found.original.offset


def assert_bytes(found: FoundDeadLetter, headers: Headers = OWN) -> None:
    assert (found.original.key, found.original.value, found.original.headers) == (KEY, VALUE, headers)


CONNECT = text(
    "__connect.errors.",
    topic="orders",
    partition=1,
    offset=42,
    connector__name="sink",
    task__id=0,
    stage="VALUE_CONVERTER",
    class__name="org.apache.kafka.connect.json.JsonConverter",
    exception__class__name="org.apache.kafka.connect.errors.DataException",
    exception__message="bad",
    exception__stacktrace="at",
)


def spring(prefix: str = "kafka_dlt-", topic: bytes = b"orders", offset: int = 42, error: bytes = b"a.Boom") -> Headers:
    return (
        (f"{prefix}original-topic", topic),
        (f"{prefix}original-partition", struct.pack(">i", 1)),
        (f"{prefix}original-offset", struct.pack(">q", offset)),
        (f"{prefix}original-timestamp", struct.pack(">q", TIME)),
        (f"{prefix}original-timestamp-type", b"CreateTime"),
        (f"{prefix}original-consumer-group", b"billing"),
        (f"{prefix}exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
        (f"{prefix}exception-cause-fqcn", error),
        (f"{prefix}exception-message", b"Listener failed"),
        (f"{prefix}exception-stacktrace", b"at"),
    )


@pytest.mark.parametrize(
    ("family", "headers", "exception", "message", "who"),
    [
        ("connect", CONNECT, "org.apache.kafka.connect.errors.DataException", "bad", "sink"),
        (
            "spring",
            spring(),
            "org.springframework.kafka.listener.ListenerExecutionFailedException",
            "Listener failed",
            "billing",
        ),
        (
            "spring_retry",
            spring("kafka_"),
            "org.springframework.kafka.listener.ListenerExecutionFailedException",
            "Listener failed",
            "billing",
        ),
    ],
)
def test_a_family_of_headers(
    family: str, headers: Headers, exception: str | None, message: str, who: str | None
) -> None:
    found = read_dead_letter(letter(headers))
    assert (found.family, *place(found)) == (family, "orders", 1, 42)
    assert (found.exception_type, found.message, found.who) == (exception, message, who)
    assert found.original.timestamp_ms == TIME
    assert_bytes(found)


def test_a_timestamp_of_the_original_outweighs_that_of_the_message() -> None:
    found = read_dead_letter(letter(spring(), timestamp_ms=TIME + 60_000))
    assert found.original.timestamp_ms == TIME
    assert found.dead_lettered_ms == TIME + 60_000


def test_a_family_that_keeps_the_timestamp_says_no_time_of_its_own() -> None:
    assert read_dead_letter(letter(CONNECT)).dead_lettered_ms is None
    assert read_dead_letter(letter(CONNECT)).time_ms == TIME
    appended = read_dead_letter(letter(CONNECT, timestamp_type="log_append_time"))
    assert appended.dead_lettered_ms == TIME


@pytest.mark.parametrize("timestamp", [TIME.to_bytes(6, "big"), struct.pack(">q", TIME)])
def test_attempts_and_timestamp_of_springs_retry_topics(timestamp: bytes) -> None:
    """The timestamp is a BigInteger there, of as few bytes as it takes."""
    retried: Headers = (
        ("retry_topic-attempts", struct.pack(">i", 4)),
        ("retry_topic-original-timestamp", timestamp),
        ("retry_topic-backoff-timestamp", timestamp),
    )
    found = read_dead_letter(letter((*spring("kafka_"), *retried)))
    assert found.attempts == 4
    assert_bytes(found)
    assert read_number(timestamp) == TIME
    single = (("retry_topic-attempts", b"\x04"),)
    assert read_dead_letter(letter((*spring(), *single))).attempts == 4


def test_kpipes_own_attempts_outweigh_those_of_others() -> None:
    counted: Headers = (("kpipe.redrive.attempts", b"2"), ("retry_topic-attempts", struct.pack(">i", 9)))
    found = read_dead_letter(letter((*spring(), *counted)))
    assert found.attempts == 2
    assert ("kpipe.redrive.attempts", b"2") in found.original.headers


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"42", 42),
        (b" 7 ", 7),
        (struct.pack(">i", 3), 3),
        (struct.pack(">q", 2**40), 2**40),
        (b"\x00", 0),
        (b"1234", 1234),
        (struct.pack(">i", -1), None),
        (b"-1", None),
        (b"", None),
        (None, None),
        (b"\x01" * 9, None),
        (b"9" * 40, None),
    ],
)
def test_numbers(data: bytes | None, number: int | None) -> None:
    assert read_number(data) == number


# ------------------------------------------------------------------------------------------- envelopes


@pytest.mark.parametrize(("key", "value"), [(KEY, VALUE), (None, None), (b"", b""), (KEY, None)])
def test_kpipes_envelope(key: bytes | None, value: bytes | None) -> None:
    record = replace(source(), key=key, value=value)
    found = read_dead_letter(in_log(build_dead_letter(record, FAULT, CONTEXT, TIME + 5)))
    assert found.original == record
    assert (found.family, found.exception_type, found.kind, found.who) == ("kpipe", *FAULT_NAMES)
    assert (found.dead_lettered_ms, found.component, found.attempts) == (TIME + 5, "decode_value", 0)


FAULT_NAMES = ("shop.codecs.DecodeFault", "wrong_type", "priced")


@pytest.mark.parametrize("families", [("connect",), ("spring",), ("connect", "spring")])
def test_kpipes_raw_form(families: Any) -> None:
    context = replace(CONTEXT, form="raw", header_families=families)
    found = read_dead_letter(in_log(build_dead_letter(source(), FAULT, context, TIME + 5)))
    assert (found.family, *place(found)) == ("kpipe", "orders", 1, 42)
    bare = build_dead_letter(replace(source(), headers=()), FAULT, context, TIME + 5)
    # Nothing but the error headers, as Kafka Connect or Spring would write it.
    assert all(name.startswith(("__connect.errors.", "kafka_dlt-")) for name, _ in bare.headers)
    assert (read_dead_letter(in_log(bare)).family, *place(read_dead_letter(in_log(bare)))) == (
        families[0],
        "orders",
        1,
        42,
    )
    assert found.original.timestamp_ms == TIME
    assert (found.exception_type, found.message) == ("shop.codecs.DecodeFault", "expected int")
    assert_bytes(found)


def test_what_did_not_fit_into_the_envelope_is_taken_from_the_message() -> None:
    record = replace(source(), key=b"k" * 300, headers=(*OWN, ("kpipe.redrive.attempts", b"2"), ("big", b"h" * 900)))
    context = replace(CONTEXT, max_record_bytes=3_600)
    built = build_dead_letter(record, FAULT, context, TIME)
    assert b'"headers"' in encode_envelope(decode_envelope(built.value))[:120]  # omitted
    found = read_dead_letter(in_log(built))
    assert found.original == record
    assert found.attempts == 2


def test_a_reference_has_to_be_read_from_the_source() -> None:
    record = replace(source(), value=VALUE * 1_000, headers=(*OWN, ("kpipe.redrive.attempts", b"1")))
    found = read_dead_letter(in_log(build_dead_letter(record, FAULT, replace(CONTEXT, max_record_bytes=3_000), TIME)))
    assert (found.from_source, place(found)) == ("payload", ("orders", 1, 42))
    assert found.attempts == 1
    complete = with_source(found, record)
    assert complete.original == record
    assert (complete.from_source, complete.attempts) == (None, 1)


def test_a_rejected_output_goes_to_the_topic_that_it_was_for() -> None:
    output = KafkaRecord("orders.priced", None, None, TIME, None, KEY, VALUE, OWN)
    built = build_dead_letter(output, FAULT, CONTEXT, TIME, origin_range=OriginRange("orders", 1, 40, 50))
    found = read_dead_letter(in_log(built))
    assert place(found) == ("orders.priced", None, None)
    assert found.origin_range == OriginRange("orders", 1, 40, 50)
    assert_bytes(found)


@pytest.mark.parametrize("value", [b'{"schema":"kpipe.dead_letter/9","x":1}', b'{"schema":"kpipe.dead_letter/1"}'])
def test_an_envelope_that_cannot_be_read_says_so(value: bytes) -> None:
    found = read_dead_letter(letter(value=value))
    assert found.problem is not None
    assert place(found) == (None, None, None)


def test_no_dead_letter_at_all() -> None:
    found = read_dead_letter(letter())
    assert (found.family, *place(found)) == ("unknown", None, None, None)
    assert_bytes(found)


# --------------------------------------------------------------------------------------- several hops


def test_springs_own_hops_are_appended() -> None:
    twice = (*spring(topic=b"orders", offset=42), *spring(topic=b"orders-dlt", offset=7, error=b"z.Last"))
    found = read_dead_letter(letter(twice))
    assert place(found) == ("orders", 1, 42)
    assert found.cause_type == "z.Last"
    assert_bytes(found)


def test_hops_of_different_families() -> None:
    found = read_dead_letter(letter((*CONNECT, *spring(topic=b"orders.dlq", offset=7, error=b"z.Last"))))
    assert place(found) == ("orders", 1, 42)
    assert found.cause_type == "z.Last"
    assert found.who == "billing"
    assert_bytes(found)


def test_headers_that_name_several_topics_say_so() -> None:
    """A chain of dead-letter topics looks like left-over headers, so that nobody can tell where the record belongs."""
    chain = read_dead_letter(letter((*CONNECT, *spring(topic=b"orders.dlq"))))
    assert (chain.original.topic, chain.topics) == ("orders", ("orders", "orders.dlq"))
    twice = read_dead_letter(letter((*spring(), *spring(topic=b"orders-dlt"))))
    assert twice.topics == ("orders", "orders-dlt")
    assert read_dead_letter(letter((*CONNECT, *spring()))).topics == ()


@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_a_dead_letter_that_failed_again_belongs_to_the_topic_that_it_was_read_from(form: Any) -> None:
    """An asset reads a dead-letter topic, of Spring or of kpipe, and fails on a record of it."""
    of_kpipe = in_log(build_dead_letter(source(), replace(FAULT, exception_type="First"), CONTEXT, TIME + 5))
    for before in (letter(spring()), of_kpipe):
        context = replace(CONTEXT, form=form, header_families=("spring", "connect"))
        outer = in_log(build_dead_letter(before, replace(FAULT, exception_type="Last"), context, TIME + 9))
        found = read_dead_letter(outer)
        assert replace(found.original, timestamp_type=before.timestamp_type) == before
        assert (found.family, found.exception_type, found.dead_letter) == ("kpipe", "Last", outer)


NAMES = [
    *(name for family in header_families() for name in family.names),
    *(f"{prefix}{end}" for family in header_families() for prefix in family.prefixes for end in ("topic", "offset")),
    *("kpipe.redacted", "kpipe.origin", "x-original-topic", "mine"),
]
FORGED = (b"true", b"payments", b"7", struct.pack(">q", 7), Origin("payments", 0, 7, 0).to_header()[1])
LEFT_OVER = st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.sampled_from(FORGED) | st.binary(max_size=9)))


@pytest.mark.parametrize("form", ["envelope", "raw"])
@given(LEFT_OVER, st.sampled_from(["plain", "envelope"]), st.sampled_from([(), ("connect",), ("spring",)]))
def test_what_a_record_brings_changes_neither_its_place_nor_its_bytes(
    form: Any, headers: list[tuple[str, bytes | None]], kind: str, families: Any
) -> None:
    """Error headers that another tool left, of a known family or not, or a value that is a dead letter itself."""
    payments = KafkaRecord("payments", 0, 7, TIME, "create_time", KEY, VALUE, OWN)
    values = {
        "plain": VALUE,
        "envelope": build_dead_letter(payments, FAULT, CONTEXT, TIME).value,
    }
    record = replace(source(), value=values[kind], headers=(*OWN, *headers))
    context = replace(CONTEXT, form=form, header_families=families)
    found = read_dead_letter(in_log(build_dead_letter(record, FAULT, context, TIME + 5)))
    assert replace(found.original, timestamp_type="create_time") == record
    assert (found.topics, found.problem, found.from_source) == ((), None, None)


def test_a_rejected_output_in_raw_form_goes_to_the_topic_that_it_was_for() -> None:
    output = KafkaRecord("orders.priced", None, None, TIME, None, KEY, VALUE, OWN)
    context = replace(CONTEXT, form="raw")
    origin = OriginRange("orders", 1, 40, 50)
    found = read_dead_letter(in_log(build_dead_letter(output, FAULT, context, TIME, origin_range=origin)))
    assert place(found) == ("orders.priced", None, None)
    assert (found.exception_type, found.who) == ("shop.codecs.DecodeFault", "priced")
    assert_bytes(found)


@pytest.mark.parametrize(
    "value", [b"", None, b"x", b"[]", b"{}", b'{"topic":"t","partition":-1,"offset":1,"header_count":0}']
)
def test_an_origin_that_cannot_be_read_is_none(value: bytes | None) -> None:
    found = read_dead_letter(replace(letter(), headers=(*CONNECT, ("kpipe.origin", value))))
    assert (found.family, *place(found)) == ("connect", "orders", 1, 42)


@pytest.mark.parametrize("families", [(), ("connect",), ("spring", "connect")])
@pytest.mark.parametrize("brought", [(), spring(topic=b"payments"), (("kpipe.redacted", b"true"),)])
@pytest.mark.parametrize("form", ["envelope", "raw"])
def test_a_redacted_record_is_known_as_such_in_either_form(form: Any, brought: Headers, families: Any) -> None:
    record = replace(source(), headers=(*OWN, *brought))
    for hook in (None, f"{unredacted.__module__}:{unredacted.__qualname__}"):
        context = replace(CONTEXT, form=form, header_families=families, redact=hook)
        found = read_dead_letter(in_log(build_dead_letter(record, FAULT, context, TIME + 5)))
        assert found.redacted == (hook is not None)
        assert found.original.headers == record.headers


def unredacted(record: KafkaRecord, _: Fault) -> KafkaRecord:
    """A hook that leaves everything as it is."""
    return record


# ------------------------------------------------------------------------------------------- stripping


def test_own_headers_that_look_alike_are_kept() -> None:
    alike = (
        "x-original-url",
        "dead-letter-owner",
        "kafka_topic",
        "poisoned",
        "dlq-note",
        "__connect.mine",
        "x-exception",
    )
    assert [name for name in alike if is_error_header(name)] == []
    found = read_dead_letter(letter((*CONNECT, *((name, b"1") for name in alike))))
    assert [name for name, _ in found.original.headers if name in alike] == list(alike)

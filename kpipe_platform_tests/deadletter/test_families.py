"""Dead letters of every family, with the encodings that the systems themselves write."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from kpipe_platform.deadletter import DeadLetterContext, build_dead_letter
from kpipe_platform.deadletter.envelope import Envelope
from kpipe_platform.deadletter.families import read_dead_letter, with_source
from kpipe_platform.deadletter.found import FoundDeadLetter
from kpipe_platform.deadletter.header_families import is_error_header
from kpipe_platform.deadletter.numbers import read_number
from kpipe_platform.kafka.records import Headers, KafkaRecord
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
STREAMS: Headers = (
    ("__streams.errors.exception", b"org.apache.kafka.common.errors.SerializationException: no JSON: at 3"),
    ("__streams.errors.stacktrace", b"at"),
    ("__streams.errors.message", b"no JSON: at 3"),
    ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"1"),
    ("__streams.errors.offset", b"42"),
)
SHARE: Headers = (
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"1"),
    ("__dlq.errors.offset", b"42"),
    ("__dlq.errors.group", b"workers"),
    ("__dlq.errors.delivery.count", b"5"),
    ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
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


SPRING_CLOUD: Headers = (
    ("x-original-topic", b"orders"),
    ("x-original-partition", struct.pack(">i", 1)),
    ("x-original-offset", struct.pack(">q", 42)),
    ("x-original-timestamp", struct.pack(">q", TIME)),
    ("x-original-timestamp-type", b"CreateTime"),
    ("x-exception-fqcn", b"a.Boom"),
    ("x-exception-message", b"bad"),
    ("x-exception-stacktrace", b"at"),
)
SPRING_CLOUD_AS_TEXT = text("x-original-", topic="orders", partition=1, offset=42, timestamp=TIME) + text(
    "x-exception-", fqcn="a.Boom", message="bad"
)
SMALLRYE = text(
    "dead-letter-",
    exception_class_name="a.Boom",
    reason="bad",
    cause_class_name="b.Cause",
    cause="why",
    topic="orders",
    partition=1,
    offset=42,
)
SMALLRYE += (("deserialization-failure-reason", b"no JSON"), ("deserialization-failure-data", b"x"))
WATERMILL: Headers = (
    ("reason_poisoned", b"bad"),
    ("topic_poisoned", b"orders"),
    ("handler_poisoned", b"on_order"),
    ("subscriber_poisoned", b"kafka.Subscriber"),
)


@pytest.mark.parametrize(
    ("family", "headers", "exception", "message", "who"),
    [
        ("connect", CONNECT, "org.apache.kafka.connect.errors.DataException", "bad", "sink"),
        ("streams", STREAMS, "org.apache.kafka.common.errors.SerializationException", "no JSON: at 3", None),
        ("share_group", SHARE, None, "Offset delivery count exceeded the threshold.", "workers"),
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
        ("spring_cloud", SPRING_CLOUD, "a.Boom", "bad", None),
        ("spring_cloud", SPRING_CLOUD_AS_TEXT, "a.Boom", "bad", None),
        ("smallrye", SMALLRYE, "a.Boom", "bad", None),
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


def test_watermill_says_no_partition() -> None:
    found = read_dead_letter(letter(WATERMILL))
    assert (found.family, *place(found)) == ("watermill", "orders", None, None)
    assert (found.message, found.who) == ("bad", "kafka.Subscriber")
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
    assert (found.family, *place(found)) == (families[0], "orders", 1, 42)
    assert found.original.timestamp_ms == TIME
    assert (found.exception_type, found.message) == ("shop.codecs.DecodeFault", "expected int")
    assert_bytes(found)


def test_what_did_not_fit_into_the_envelope_is_taken_from_the_message() -> None:
    record = replace(source(), key=b"k" * 300, headers=(*OWN, ("kpipe.redrive.attempts", b"2"), ("big", b"h" * 900)))
    context = replace(CONTEXT, max_record_bytes=3_600)
    built = build_dead_letter(record, FAULT, context, TIME)
    assert b'"headers"' in Envelope.from_json_bytes(built.value).to_json_bytes()[:120]  # omitted
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
    from kpipe_platform.deadletter import OriginRange

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


def dagster_kafka(**changes: Any) -> KafkaRecord:
    document = {
        "original_message": {
            "topic": "orders",
            "partition": 1,
            "offset": 42,
            "key": "k",
            "value_hex": VALUE.hex(),
            "headers": {"trace": "1"},
            "timestamp": TIME,
            **changes,
        },
        "error_info": {
            "type": "schema_error",
            "message": "bad",
            "traceback": None,
            "failure_timestamp": "2023-11-14T22:20:00+00:00",
            "retry_count": 2,
        },
        "processing_metadata": {
            "consumer_group_id": "g",
            "processing_host": None,
            "dagster_run_id": None,
            "dagster_asset_key": "priced",
        },
        "dlq_metadata": {"dlq_version": "1.0", "created_by": "dagster-kafka-integration"},
    }
    headers = (("dlq-original-topic", b"orders"), ("dlq-error-type", b"schema_error"), ("dlq-retry-count", b"2"))
    return KafkaRecord("dlq", 0, 1, TIME + 9, "create_time", b"k", json.dumps(document, indent=2).encode(), headers)


def test_dagster_kafkas_document() -> None:
    found = read_dead_letter(dagster_kafka())
    assert found.original == KafkaRecord("orders", 1, 42, TIME, None, b"k", VALUE, (("trace", b"1"),))
    assert (found.family, found.kind, found.message, found.who) == ("dagster_kafka", "schema_error", "bad", "priced")
    assert (found.attempts, found.dead_lettered_ms) == (2, 1_700_000_400_000)
    nulls = read_dead_letter(dagster_kafka(key=None, value_hex=None, headers={}, timestamp=None)).original
    assert (nulls.key, nulls.value, nulls.headers, nulls.timestamp_ms) == (None, None, (), None)


def test_dagster_kafkas_headers_over_a_plain_body() -> None:
    """Others imitate the headers and leave the value as it is."""
    found = read_dead_letter(letter((("dlq-original-topic", b"orders"), ("dlq-retry-count", b"1"))))
    assert (found.family, *place(found)) == ("dagster_kafka", "orders", None, None)
    assert found.attempts == 1
    assert_bytes(found)


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


def test_smallryes_own_hops_are_put_in_front() -> None:
    second = text(
        "dead-letter-", exception_class_name="z.Last", reason="last", topic="orders-dlq", partition=0, offset=7
    )
    found = read_dead_letter(letter((*second, *SMALLRYE)))
    assert place(found) == ("orders", 1, 42)
    assert (found.exception_type, found.message) == ("z.Last", "last")
    assert_bytes(found)


@pytest.mark.parametrize("first", [CONNECT, SPRING_CLOUD, STREAMS])
def test_hops_of_different_families(first: Headers) -> None:
    found = read_dead_letter(letter((*first, *spring(topic=b"orders.dlq", offset=7, error=b"z.Last"))))
    assert place(found) == ("orders", 1, 42)
    assert found.cause_type == "z.Last"
    assert found.who == "billing"
    assert_bytes(found)


def test_an_envelope_around_a_dead_letter_of_another_system() -> None:
    """An asset reads Spring's dead-letter topic and fails on a record of it."""
    before = letter(spring(), timestamp_ms=TIME + 1)
    found = read_dead_letter(in_log(build_dead_letter(before, FAULT, CONTEXT, TIME + 5)))
    assert (found.family, *place(found)) == ("spring", "orders", 1, 42)
    assert found.original.timestamp_ms == TIME
    assert (found.exception_type, found.cause_type, found.who) == ("shop.codecs.DecodeFault", None, "priced")
    assert_bytes(found)


def test_an_envelope_around_an_envelope() -> None:
    inner = in_log(build_dead_letter(source(), replace(FAULT, exception_type="First"), CONTEXT, TIME + 5))
    outer = in_log(build_dead_letter(inner, replace(FAULT, exception_type="Last"), CONTEXT, TIME + 9))
    found = read_dead_letter(outer)
    assert found.original == source()
    assert (found.exception_type, found.dead_lettered_ms) == ("Last", TIME + 9)
    assert found.letter == outer


def test_a_chain_without_end_ends() -> None:
    """Twenty envelopes around one another: what is inside is bytes then, and not an error."""
    record = source()
    for _ in range(20):
        context = replace(CONTEXT, max_record_bytes=50_000_000)
        record = in_log(build_dead_letter(record, FAULT, context, TIME))
    found = read_dead_letter(record)
    assert found.original.topic == "orders.dlq"


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


def test_a_share_group_that_copies_nothing_leaves_the_payload_in_the_source() -> None:
    bare = KafkaRecord("dlq", 0, 1, TIME, "create_time", None, None, SHARE)
    assert read_dead_letter(bare).from_source == "payload"
    copied = replace(bare, value=VALUE)
    assert read_dead_letter(copied).from_source == "headers"

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kpipe_platform.codecs import DecodeFault
from kpipe_platform.dead_letters import (
    Distribution,
    Envelope,
    OriginRange,
    PayloadReference,
    Retry,
    Segment,
    decode_envelope,
    encode_envelope,
    envelope_schema,
    is_envelope,
)
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

VALIDATOR = Draft202012Validator(envelope_schema())

FULL = Envelope(
    original=KafkaRecord(
        topic="flights",
        partition=3,
        offset=42,
        timestamp_ms=1_357_017_420_000,
        timestamp_type="create_time",
        key=b"\xff\x00",
        value=b"not json \xe9",
        headers=(("trace", b"1"), ("trace", b"2"), ("empty", b""), ("null", None)),
    ),
    fault=Fault(
        Component.DECODE_VALUE,
        "wrong_type",
        "DecodeFault",
        'field "dep_time": expected int, found string "é"',
        1_357_017_421_001,
        stacktrace="Traceback ...",
        field="dep_time",
    ),
    asset="flights_enriched",
    run_id="7f3e",
    attempt=2,
    correlation_id="flights-3-42",
    dead_lettered_ms=1_357_017_422_002,
    distribution=Distribution("host-a", "pid-7", "kpipe.flights_enriched", "lease-1"),
    created_ms=1_357_017_420_000,
    segments=(Segment("read", 1_357_017_420_500, 12), Segment("decode", 1_357_017_420_512)),
    retries=(Retry(1, 1_357_017_420_900, 250, "TimeoutError", "no answer"),),
    header_count=4,
    rules=("has a tail number", "arrives after it departs"),
    redacted=True,
)
FULL_JSON = {
    "schema": "kpipe.dead_letter/1",
    "payload": "embedded",
    "omitted": [],
    "original": {
        "topic": "flights",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1357017420000,
        "timestamp_type": "create_time",
        "key_base64": "/wA=",
        "value_base64": "bm90IGpzb24g6Q==",
        "headers": [
            {"key": "trace", "value_base64": "MQ=="},
            {"key": "trace", "value_base64": "Mg=="},
            {"key": "empty", "value_base64": ""},
            {"key": "null", "value_base64": None},
        ],
        "header_count": 4,
        "reference": None,
    },
    "origin_range": None,
    "fault": {
        "component": "decode_value",
        "kind": "wrong_type",
        "exception_type": "DecodeFault",
        "message": 'field "dep_time": expected int, found string "é"',
        "field": "dep_time",
        "at": "2013-01-01T05:17:01.001Z",
        "stacktrace": "Traceback ...",
    },
    "asset": "flights_enriched",
    "run_id": "7f3e",
    "attempt": 2,
    "correlation_id": "flights-3-42",
    "segments": [
        {"name": "read", "started_at": "2013-01-01T05:17:00.500Z", "duration_ms": 12},
        {"name": "decode", "started_at": "2013-01-01T05:17:00.512Z", "duration_ms": None},
    ],
    "retries": [
        {
            "attempt": 1,
            "at": "2013-01-01T05:17:00.900Z",
            "delay_ms": 250,
            "exception_type": "TimeoutError",
            "message": "no answer",
        }
    ],
    "created_at": "2013-01-01T05:17:00.000Z",
    "dead_lettered_at": "2013-01-01T05:17:02.002Z",
    "distribution": {"instance": "host-a", "worker": "pid-7", "group": "kpipe.flights_enriched", "lease": "lease-1"},
    "rules": ["has a tail number", "arrives after it departs"],
    "redacted": True,
}
# The least that is known: an output that the destination would not take, from a stage that dropped _kafka.
LEAST = replace(
    FULL,
    original=KafkaRecord(topic="flights.enriched"),
    fault=Fault(Component.DESTINATION, "null_key", "RecordRejected", "\ud800", 0),
    origin_range=OriginRange("flights", 3, 40, 50),
    distribution=Distribution(),
    created_ms=None,
    segments=(),
    retries=(),
    header_count=0,
    rules=(),
    redacted=False,
)
REFERENCE = replace(
    FULL,
    original=replace(FULL.original, key=None, value=None, headers=()),
    omitted=("stacktrace", "message", "headers", "key", "retries", "rules", "message_headers", "message_key"),
    reference=PayloadReference(2, "a" * 64, None, None, 25),
)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(envelope_schema())


def test_the_document() -> None:
    assert json.loads(encode_envelope(FULL)) == FULL_JSON


@pytest.mark.parametrize("envelope", [FULL, LEAST, REFERENCE], ids=["full", "least", "reference"])
def test_documents_fit_the_schema_and_read_back(envelope: Envelope) -> None:
    data = encode_envelope(envelope)
    VALIDATOR.validate(json.loads(data))
    assert decode_envelope(data) == envelope
    assert data.isascii()
    assert is_envelope(data)
    assert pickle.loads(pickle.dumps(envelope)) == envelope


def test_an_envelope_from_before_rules_and_redaction_reads_as_one_without_either() -> None:
    older = {name: value for name, value in FULL_JSON.items() if name not in ("rules", "redacted")}
    VALIDATOR.validate(older)
    assert decode_envelope(json.dumps(older).encode()) == replace(FULL, rules=(), redacted=False)


def test_a_long_message_of_a_retry_is_cut() -> None:
    assert Retry(1, 0, None, "E", "m" * 501).message == "m" * 497 + "..."


@pytest.mark.parametrize(
    ("key", "value", "as_json"),
    [(None, None, (None, None)), (b"", b"", ("", "")), (b"\xff", b"\x00", ("/w==", "AA=="))],
)
def test_null_is_not_empty(key: bytes | None, value: bytes | None, as_json: tuple[str | None, str | None]) -> None:
    envelope = replace(FULL, original=replace(FULL.original, key=key, value=value))
    data = encode_envelope(envelope)
    original = json.loads(data)["original"]
    assert (original["key_base64"], original["value_base64"]) == as_json
    assert decode_envelope(data).original == envelope.original


def test_every_byte_survives() -> None:
    every = bytes(range(256))
    envelope = replace(FULL, original=replace(FULL.original, value=every, headers=(("h", every),)))
    original = json.loads(encode_envelope(envelope))["original"]
    assert base64.b64decode(original["value_base64"]) == every
    assert base64.b64decode(original["headers"][0]["value_base64"]) == every


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), 253_402_300_800_000])
def test_a_timestamp_beyond_any_calendar_is_kept_as_a_number(timestamp_ms: int) -> None:
    record = replace(FULL.original, timestamp_ms=timestamp_ms)
    document = json.loads(encode_envelope(replace(FULL, original=record, created_ms=timestamp_ms)))
    VALIDATOR.validate(document)
    assert (document["original"]["timestamp_ms"], document["created_at"]) == (timestamp_ms, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema": "kpipe.dead_letter/2"},
            "has schema 'kpipe.dead_letter/2'; this version reads 'kpipe.dead_letter/1'",
        ),
        ({"asset": None}, None),
        ({"fault": {}}, "invalid or missing part: KeyError 'component'"),
        ({"dead_lettered_at": "yesterday"}, "invalid or missing part: ValueError"),
        ({"dead_lettered_at": None}, "invalid or missing part: ValueError a required time is null"),
        ({"original": None}, "invalid or missing part: TypeError"),
        ({"original": {**FULL_JSON["original"], "value_base64": "!"}}, "invalid or missing part: Error"),  # type: ignore[dict-item]
        ({"distribution": {"instance": "x"}}, "invalid or missing part: KeyError 'worker'"),
        ({"added_in_1_1": {"x": 1}}, None),
    ],
)
def test_what_is_wrong_in_an_envelope(change: dict[str, Any], message: str | None) -> None:
    data = json.dumps({**FULL_JSON, **change}).encode()
    if message is None:
        decode_envelope(data)
        return
    with pytest.raises(DecodeFault, match=message):
        decode_envelope(data)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"7", b"{}", b'{"a":1}', b"null"])
def test_what_is_no_envelope(data: bytes) -> None:
    assert not is_envelope(data)
    with pytest.raises(DecodeFault, match="not a dead-letter envelope"):
        decode_envelope(data)


def test_no_value_is_no_envelope() -> None:
    assert not is_envelope(None)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "reference"},
        {"omitted": ["nothing"]},
        {"rules": [1]},
        {"redacted": None},
        {"attempt": 0},
        {"created_at": "2013-01-01"},
        {"original": {**FULL_JSON["original"], "partition": -1}},  # type: ignore[dict-item]
        {"fault": {**FULL_JSON["fault"], "component": "elsewhere"}},  # type: ignore[dict-item]
    ],
)
def test_the_schema_refuses(change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid({**FULL_JSON, **change})
    assert VALIDATOR.is_valid(FULL_JSON)


def test_restore_takes_from_the_message_what_the_envelope_left_out() -> None:
    record = FULL.original
    message_headers = (*record.headers, ("__connect.errors.topic", b"flights"))
    short = replace(FULL, original=replace(record, key=None, headers=()), omitted=("headers", "key"))
    assert short.restore(record.key, message_headers) == record
    assert FULL.restore(None, ()) == record


def test_a_reference_restores_nothing() -> None:
    with pytest.raises(DeadLetterError, match=r"flights\[3\]@42 contains only a reference") as caught:
        REFERENCE.restore(b"k", ())
    assert caught.value.correlation_id == "flights-3-42"

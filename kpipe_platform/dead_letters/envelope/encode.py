"""Encode the envelope as JSON with string formatting.

Every record of a slice may become a dead letter. Building a dict and passing it to the general JSON encoder takes
three times as long, and was most of the work of writing a dead letter.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted

from kpipe_platform.dead_letters.envelope.model import Envelope
from kpipe_platform.dead_letters.envelope.parts import SCHEMA, Distribution, Retry, Segment, fields_to_json
from kpipe_platform.dead_letters.envelope.times import to_iso
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Fault

_COMPACT = json.JSONEncoder(separators=(",", ":"))


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the envelope as compact JSON. ASCII only, so that every reader can decode it."""
    origin = envelope.origin_range
    shared = _shared(
        envelope.asset,
        envelope.run_id,
        envelope.attempt,
        envelope.distribution,
        envelope.segments,
    )
    retries = ",".join(map(_retry, envelope.retries)) if envelope.retries else ""
    rules = _COMPACT.encode(envelope.rules) if envelope.rules else "[]"
    text = (
        f'{{"schema":"{SCHEMA}","payload":"{envelope.payload}","omitted":{_COMPACT.encode(envelope.omitted)},'
        f'"original":{_original(envelope, envelope.original)},'
        f'"origin_range":{"null" if origin is None else _COMPACT.encode(fields_to_json(origin))},'
        f'"fault":{_fault(envelope.fault)},'
        f'"correlation_id":{_quoted(envelope.correlation_id)},'
        f'"created_at":{_time(envelope.created_ms)},"dead_lettered_at":{_time(envelope.dead_lettered_ms)},'
        f'{shared},"retries":[{retries}],"rules":{rules},"redacted":{"true" if envelope.redacted else "false"}}}'
    )
    return text.encode("ascii")


def _original(envelope: Envelope, record: KafkaRecord) -> str:
    headers = ",".join([f'{{"key":{_quoted(key)},"value_base64":{_base64(value)}}}' for key, value in record.headers])
    reference = envelope.reference
    return (
        f'{{"topic":{_text(record.topic)},"partition":{_number(record.partition)},'
        f'"offset":{_number(record.offset)},"timestamp_ms":{_number(record.timestamp_ms)},'
        f'"timestamp_type":{_text(record.timestamp_type)},"key_base64":{_base64(record.key)},'
        f'"value_base64":{_base64(record.value)},"headers":[{headers}],"header_count":{envelope.header_count},'
        f'"reference":{"null" if reference is None else _COMPACT.encode(fields_to_json(reference))}}}'
    )


def _fault(fault: Fault) -> str:
    return (
        f'{{"component":"{fault.component.value}","kind":{_quoted(fault.kind)},'
        f'"exception_type":{_quoted(fault.exception_type)},"message":{_quoted(fault.message)},'
        f'"field":{_text(fault.field)},"at":{_time(fault.at_ms)},"stacktrace":{_text(fault.stacktrace)}}}'
    )


@lru_cache(maxsize=64)
def _shared(
    asset: str,
    run_id: str,
    attempt: int,
    distribution: Distribution,
    segments: tuple[Segment, ...],
) -> str:
    """Return the JSON fields that all dead letters of a slice share, without the braces."""
    document = {
        "asset": asset,
        "run_id": run_id,
        "attempt": attempt,
        "distribution": fields_to_json(distribution),
        "segments": [segment.to_json() for segment in segments],
    }
    return _COMPACT.encode(document)[1:-1]


# The retries of a slice repeat in each of its dead letters, so the cache helps. Retries of single records are few.
@lru_cache(maxsize=64)
def _retry(retry: Retry) -> str:
    return _COMPACT.encode(retry.to_json())


def _text(value: str | None) -> str:
    return "null" if value is None else _quoted(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _time(ms: int | None) -> str:
    text = to_iso(ms)
    return "null" if text is None else f'"{text}"'


def _base64(data: bytes | None) -> str:
    return "null" if data is None else f'"{b2a_base64(data, newline=False).decode("ascii")}"'

"""A dead letter as a table row, with a column for each part. Needs no Spark."""

from __future__ import annotations

from typing import Any

from kpipe_platform.dead_letters.envelope.model import OMITTED_MESSAGE_HEADERS, Envelope
from kpipe_platform.dead_letters.envelope.origin import CORRELATION_HEADER
from kpipe_platform.dead_letters.envelope.parts import OriginRange, PayloadReference, fields_to_json
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.values import read_text
from kpipe_platform.kafka.model.records import Headers

COLUMNS = """
  dlq_partition INT, dlq_offset BIGINT, dlq_timestamp TIMESTAMP, form STRING, payload STRING,
  source_topic STRING, source_partition INT, source_offset BIGINT, source_timestamp TIMESTAMP,
  key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>,
  component STRING, kind STRING, exception_type STRING, message STRING, field STRING, stacktrace STRING,
  fault_at TIMESTAMP, asset STRING, run_id STRING, attempt INT, correlation_id STRING,
  created_at TIMESTAMP, dead_lettered_at TIMESTAMP,
  instance STRING, worker STRING, `group` STRING, lease STRING,
  rules ARRAY<STRING>,
  retries ARRAY<STRUCT<attempt INT, at TIMESTAMP, delay_ms BIGINT, exception_type STRING, message STRING>>,
  segments ARRAY<STRUCT<name STRING, started_at TIMESTAMP, duration_ms BIGINT>>,
  omitted ARRAY<STRING>, redacted BOOLEAN,
  origin_range STRUCT<topic STRING, partition INT, start BIGINT, `end` BIGINT>,
  reference STRUCT<key_bytes BIGINT, key_sha256 STRING, value_bytes BIGINT, value_sha256 STRING, headers_bytes BIGINT>
"""
"""The columns of a row, as Spark DDL. In `row_of`, times are microseconds since the epoch."""

# Limits of the years 1 to 9999, in ms. Producers may set any 64-bit number, and pandas fails on other years.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_MAX_INT = 2**31 - 1


def row_of(found: FoundDeadLetter) -> dict[str, Any]:
    """Return the values of the columns in `COLUMNS`.

    Args:
        found: The dead letter.

    Returns:
        Values by column name. A rejected output has the topic and partition of its slice, and no offset.
    """
    record, original = found.dead_letter, found.original
    topic, partition = found.slice_partition or (original.topic, original.partition)
    row = {
        "dlq_partition": record.partition,
        "dlq_offset": record.offset,
        "dlq_timestamp": None if record.timestamp_ms is None else record.timestamp_ms * 1000,
        "form": "raw",
        "payload": "embedded",
        "source_topic": topic,
        # A header may hold any number, but partitions are 32-bit integers.
        "source_partition": partition if isinstance(partition, int) and partition <= _MAX_INT else None,
        "source_offset": original.offset,
        "source_timestamp": _micros(original.timestamp_ms),
        "key": original.key,
        "value": original.value,
        "headers": _headers(original.headers),
        **{name: getattr(found, name) for name in ("component", "kind", "exception_type", "message", "stacktrace")},
        **{name: getattr(found, name) for name in ("asset", "run_id", "group")},
        "correlation_id": _correlation_id(record.headers),
        "created_at": _micros(original.timestamp_ms),
        "dead_lettered_at": _micros(found.dead_lettered_ms),
        "rules": list(found.rules),
        "retries": [],
        "segments": [],
        "omitted": [],
        "redacted": found.redacted,
        "origin_range": _fields(found.origin_range),
        "reference": _fields(found.reference),
    }
    return row if found.envelope is None else row | _of_envelope(found, found.envelope)


def _of_envelope(found: FoundDeadLetter, envelope: Envelope) -> dict[str, Any]:
    """Return the columns that only an envelope has, and for a payload that did not fit, the key and headers."""
    columns = {
        "form": "envelope",
        "payload": envelope.payload,
        "field": envelope.fault.field,
        "fault_at": _micros(envelope.fault.at_ms),
        "attempt": envelope.attempt,
        "correlation_id": envelope.correlation_id,
        "created_at": _micros(envelope.created_ms),
        **fields_to_json(envelope.distribution),
        "retries": [retry.to_json() | {"at": _micros(retry.at_ms)} for retry in envelope.retries],
        "segments": [step.to_json() | {"started_at": _micros(step.started_ms)} for step in envelope.segments],
        "omitted": list(envelope.omitted),
    }
    if envelope.reference is not None:
        record = found.dead_letter
        own = () if OMITTED_MESSAGE_HEADERS in envelope.omitted else record.headers[: envelope.header_count]
        columns |= {"key": record.key, "headers": _headers(own)}
    return columns


def _headers(headers: Headers) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]


def _correlation_id(headers: Headers) -> str | None:
    return next((read_text(value) for name, value in reversed(headers) if name == CORRELATION_HEADER), None)


def _fields(part: OriginRange | PayloadReference | None) -> dict[str, Any] | None:
    return None if part is None else fields_to_json(part)


def _micros(ms: int | None) -> int | None:
    return None if ms is None or not _FIRST_MS <= ms <= _LAST_MS else ms * 1000

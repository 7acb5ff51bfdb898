"""Decode the envelope of a dead letter."""

from __future__ import annotations

import base64
import json
from typing import Any

from kpipe_platform.codecs.faults import UNREADABLE, DecodeFault
from kpipe_platform.dead_letters.envelope.model import Envelope
from kpipe_platform.dead_letters.envelope.parts import (
    SCHEMA,
    Distribution,
    OriginRange,
    PayloadReference,
    Retry,
    Segment,
    fields_of,
)
from kpipe_platform.dead_letters.envelope.times import from_iso, required_from_iso
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

ENVELOPE_PREFIX = b'{"schema":"kpipe.dead_letter/'
"""The first bytes of every envelope that kpipe writes, whatever its version."""


def is_envelope(value: bytes | None) -> bool:
    """Return whether a dead letter's value is an envelope of any version. Cheap: compares only the first bytes."""
    return value is not None and value.startswith(ENVELOPE_PREFIX)


def decode_envelope(data: bytes) -> Envelope:
    """Decode an envelope of version 1.

    Args:
        data: The value of a dead letter.

    Returns:
        The envelope.

    Raises:
        DecodeFault: The value is not an envelope, has another version, or has a missing or invalid part.
    """
    try:
        document = json.loads(data)
        version = document["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise DecodeFault(f"not a dead-letter envelope: {error}", kind=UNREADABLE) from None
    if version != SCHEMA:
        message = f"the dead-letter envelope has schema {version!r}; this version reads {SCHEMA!r}"
        raise DecodeFault(message, kind=UNREADABLE)
    try:
        return _read(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"the dead-letter envelope has an invalid or missing part: {type(error).__name__} {error}"
        raise DecodeFault(message, kind=UNREADABLE) from None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _number(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    msg = f"{value!r} is not a number"
    raise TypeError(msg)


def _read(document: dict[str, Any]) -> Envelope:
    original, fault = document["original"], document["fault"]
    reference, origin_range = original["reference"], document["origin_range"]
    return Envelope(
        original=KafkaRecord(
            topic=original["topic"],
            partition=original["partition"],
            offset=original["offset"],
            timestamp_ms=_number(original["timestamp_ms"]),
            timestamp_type=original["timestamp_type"],
            key=_bytes(original["key_base64"]),
            value=_bytes(original["value_base64"]),
            headers=tuple((h["key"], _bytes(h["value_base64"])) for h in original["headers"]),
        ),
        fault=Fault(
            component=Component(fault["component"]),
            kind=fault["kind"],
            exception_type=fault["exception_type"],
            message=fault["message"],
            at_ms=required_from_iso(fault["at"]),
            stacktrace=fault["stacktrace"],
            field=fault["field"],
        ),
        asset=document["asset"],
        run_id=document["run_id"],
        attempt=document["attempt"],
        correlation_id=document["correlation_id"],
        dead_lettered_ms=required_from_iso(document["dead_lettered_at"]),
        distribution=Distribution(**fields_of(Distribution, document["distribution"])),
        created_ms=from_iso(document["created_at"]),
        origin_range=origin_range and OriginRange(**fields_of(OriginRange, origin_range)),
        segments=tuple(map(Segment.from_json, document["segments"])),
        retries=tuple(map(Retry.from_json, document["retries"])),
        omitted=tuple(document["omitted"]),
        reference=reference and PayloadReference(**fields_of(PayloadReference, reference)),
        header_count=_number(original["header_count"]) or 0,
        rules=tuple(document.get("rules") or ()),
        redacted=bool(document.get("redacted")),
    )

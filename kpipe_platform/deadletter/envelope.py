"""The envelope of a dead letter: one JSON document around the original record, byte for byte.

``envelope.schema.json`` beside this module describes it (JSON Schema 2020-12). Within version 1 names are
only added; readers leave out names that they do not know.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from kpipe_platform.codecs.base import UNREADABLE, DecodeFault
from kpipe_platform.deadletter.envelope_write import envelope_text
from kpipe_platform.deadletter.parts import (
    SCHEMA,
    Distribution,
    OriginRange,
    PayloadReference,
    Retry,
    Segment,
    fields_of,
)
from kpipe_platform.deadletter.times import from_iso, required_from_iso
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.records import Headers, KafkaRecord
from kpipe_platform.policies.faults import Component, Fault

OMITTED_STACKTRACE, OMITTED_MESSAGE, OMITTED_HEADERS, OMITTED_KEY = "stacktrace", "message", "headers", "key"
OMITTED_RETRIES, OMITTED_RULES = "retries", "rules"
OMITTED_MESSAGE_HEADERS, OMITTED_MESSAGE_KEY = "message_headers", "message_key"

ENVELOPE_PREFIX = b'{"schema":"kpipe.dead_letter/'
"""How every envelope of any version begins, as kpipe writes it."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A dead letter: what failed, why, where, and the original record.

    Args:
        original: The record as it was, with null kept apart from empty. Without its bytes in a reference,
            and without what ``omitted`` names.
        fault: Why it failed.
        asset: The asset's key as text.
        run_id: The Dagster run.
        attempt: Number of the run's attempt.
        correlation_id: Taken from the record's header, or made of its coordinates, so that a retry has the
            same.
        dead_lettered_ms: When the dead letter was made, milliseconds since the epoch.
        distribution: Deployment, worker, group, lease.
        created_ms: When the original record was made, by its own timestamp; None where that is not known.
        origin_range: The slice that a rejected output record came from; its source record is not known.
        segments: Steps that the record went through.
        retries: Attempts that were made before it was given up.
        omitted: What was left out to fit the topic's limit, in the order in which it was given up:
            ``retries`` and ``rules`` (some, or all); ``stacktrace``; ``message`` (cut short); ``headers`` and
            ``key`` (only the dead letter's own headers and key hold them, the record's headers being the first
            ``header_count``); ``message_headers`` and ``message_key`` (nowhere but in the source topic).
        reference: Stands for key, value and headers when they do not fit; then ``payload`` is ``reference``.
        header_count: Headers that the original record has.
        rules: Names of the rules that it broke.
        redacted: Whether a hook had its way with record and fault first, so that the bytes need not be the
            original ones. Sizes and checksums in a reference are then those of what the hook left.
    """

    original: KafkaRecord
    fault: Fault
    asset: str
    run_id: str
    attempt: int
    correlation_id: str
    dead_lettered_ms: int
    distribution: Distribution
    created_ms: int | None = None
    origin_range: OriginRange | None = None
    segments: tuple[Segment, ...] = ()
    retries: tuple[Retry, ...] = ()
    omitted: tuple[str, ...] = ()
    reference: PayloadReference | None = None
    header_count: int = 0
    rules: tuple[str, ...] = ()
    redacted: bool = False

    @property
    def payload(self) -> Literal["embedded", "reference"]:
        """Whether the original bytes are in the dead letter, or only what identifies them."""
        return "embedded" if self.reference is None else "reference"

    def restore(self, key: bytes | None, headers: Headers) -> KafkaRecord:
        """The original record, byte for byte; of a ``redacted`` one what its hook left.

        To send a redacted record to its asset again, read it at its coordinates, as long as the source topic retains
        it.

        Args:
            key: The dead letter's own key.
            headers: The dead letter's own headers, all of them.

        Returns:
            The record with its coordinates, key, value, headers and timestamp.

        Raises:
            DeadLetterError: The envelope only refers to the payload.
        """
        if self.reference is not None:
            msg = f"the dead letter of {self.original.coordinates} has a reference to the payload, not its bytes"
            fix = "read the record at these coordinates, as long as the source topic retains it"
            raise DeadLetterError(msg, fix=fix, correlation_id=self.correlation_id)
        record = self.original
        if OMITTED_HEADERS in self.omitted:
            record = replace(record, headers=tuple(headers[: self.header_count]))
        return replace(record, key=key) if OMITTED_KEY in self.omitted else record

    def to_json_bytes(self) -> bytes:
        """The envelope as compact JSON; plain ASCII, so that no reader can stumble over its text."""
        return envelope_text(self).encode("ascii")

    @classmethod
    def from_json_bytes(cls, data: bytes) -> Envelope:
        """Read an envelope of version 1.

        Args:
            data: The value of a dead letter.

        Returns:
            The envelope.

        Raises:
            DecodeFault: It is no envelope, one of another version, or a part of it is missing or wrong.
        """
        try:
            document = json.loads(data)
            version = document["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeFault(f"no dead-letter envelope: {error}", kind=UNREADABLE) from None
        if version != SCHEMA:
            message = f"a dead-letter envelope of schema {version!r}, where {SCHEMA!r} is read"
            raise DecodeFault(message, kind=UNREADABLE)
        try:
            return _read(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"a dead-letter envelope with a wrong or missing part: {type(error).__name__} {error}"
            raise DecodeFault(message, kind=UNREADABLE) from None


def is_envelope(value: bytes | None) -> bool:
    """Whether a dead letter's value is an envelope of any version; cheap, looks at the first bytes only."""
    return value is not None and value.startswith(ENVELOPE_PREFIX)


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the envelope."""
    text = resources.files(__package__).joinpath("envelope.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _read(document: dict[str, Any]) -> Envelope:
    original, fault = document["original"], document["fault"]
    reference, origin_range = original["reference"], document["origin_range"]
    return Envelope(
        original=KafkaRecord(
            topic=original["topic"],
            partition=original["partition"],
            offset=original["offset"],
            timestamp_ms=original["timestamp_ms"],
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
        header_count=original["header_count"],
        rules=tuple(document.get("rules") or ()),
        redacted=bool(document.get("redacted")),
    )

"""Content of a dead letter's envelope: the original record, byte for byte, and its failure.

``envelope.schema.json`` in this folder describes the envelope (JSON Schema 2020-12). Within version 1, fields are only
added. Readers ignore unknown fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from kpipe_platform.dead_letters.envelope.parts import Distribution, OriginRange, PayloadReference, Retry, Segment
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.model.records import Headers, KafkaRecord
from kpipe_platform.policies.faults import Fault

OMITTED_STACKTRACE, OMITTED_MESSAGE, OMITTED_HEADERS, OMITTED_KEY = "stacktrace", "message", "headers", "key"
OMITTED_RETRIES, OMITTED_RULES = "retries", "rules"
OMITTED_MESSAGE_HEADERS, OMITTED_MESSAGE_KEY = "message_headers", "message_key"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A dead letter: what failed, why, where, and the original record.

    Args:
        original: The record as it was read; null and empty values stay distinct. Its bytes are left out if there is a
            ``reference``, and the parts named in ``omitted`` are left out.
        fault: Why the record failed.
        asset: The asset's key as text.
        run_id: The Dagster run.
        attempt: Number of the run's attempt.
        correlation_id: Read from the record's header, or built from its coordinates, so that every retry has the
            same id.
        dead_lettered_ms: When the dead letter was created, milliseconds since the epoch.
        distribution: Deployment, worker, consumer group and lease.
        created_ms: The original record's own timestamp, milliseconds since the epoch. None if unknown.
        origin_range: The slice that a rejected output record came from. Its source record is unknown.
        segments: Steps that the record went through.
        retries: Failed attempts before kpipe gave up on the record.
        omitted: Parts left out to fit the topic's size limit, in the order of their removal:
            ``retries`` and ``rules`` (some, or all); ``stacktrace``; ``message`` (truncated); ``headers`` and
            ``key`` (only the dead letter's own headers and key hold them; the record's headers are the first
            ``header_count``); ``message_headers`` and ``message_key`` (only in the source topic).
        reference: Replaces key, value and headers when they do not fit; then ``payload`` is ``reference``.
        header_count: Number of headers of the original record.
        rules: Names of the rules that the record failed.
        redacted: Whether a redaction hook processed record and fault first, so that the bytes may differ from the
            original ones. Sizes and checksums in a reference then describe the redacted record.
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
        """Whether the dead letter holds the original bytes (``embedded``) or only their reference (``reference``)."""
        return "embedded" if self.reference is None else "reference"

    def restore(self, key: bytes | None, headers: Headers) -> KafkaRecord:
        """Return the original record, byte for byte. A ``redacted`` record is returned as redacted.

        To send the unredacted record to its asset again, read it at its coordinates while the source topic retains it.

        Args:
            key: The dead letter's own key.
            headers: All of the dead letter's own headers.

        Returns:
            The record with its coordinates, key, value, headers and timestamp.

        Raises:
            DeadLetterError: The envelope holds only a reference to the payload.
        """
        if self.reference is not None:
            msg = f"the dead letter of {self.original.coordinates} contains only a reference to the payload"
            fix = "read the record at these coordinates while the source topic retains it"
            raise DeadLetterError(msg, fix=fix, correlation_id=self.correlation_id)
        record = self.original
        if OMITTED_HEADERS in self.omitted:
            record = replace(record, headers=tuple(headers[: self.header_count]))
        return replace(record, key=key) if OMITTED_KEY in self.omitted else record


def envelope_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the envelope."""
    text = resources.files(__package__).joinpath("envelope.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema

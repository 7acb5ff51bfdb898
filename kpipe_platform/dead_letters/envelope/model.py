"""What the envelope of a dead letter says: the original record, byte for byte, and its failure.

``envelope.schema.json`` beside this module describes it (JSON Schema 2020-12). Within version 1 names are
only added; readers leave out names that they do not know.
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


def envelope_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the envelope."""
    text = resources.files(__package__).joinpath("envelope.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema

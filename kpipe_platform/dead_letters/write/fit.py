"""A dead letter, and the smaller and smaller forms of it that are tried until one fits its topic."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kpipe_platform.dead_letters.envelope.decode import is_envelope
from kpipe_platform.dead_letters.envelope.encode import encode_envelope
from kpipe_platform.dead_letters.envelope.model import (
    OMITTED_HEADERS,
    OMITTED_KEY,
    OMITTED_MESSAGE,
    OMITTED_MESSAGE_HEADERS,
    OMITTED_MESSAGE_KEY,
    OMITTED_RETRIES,
    OMITTED_RULES,
    OMITTED_STACKTRACE,
    Envelope,
)
from kpipe_platform.dead_letters.envelope.origin import ORIGIN_HEADER, REDACTED_MARK, Origin
from kpipe_platform.dead_letters.envelope.parts import PayloadReference
from kpipe_platform.dead_letters.write.context import DeadLetterContext
from kpipe_platform.dead_letters.write.headers import coordinate_headers, error_headers
from kpipe_platform.kafka.model.records import Headers, KafkaRecord
from kpipe_platform.kafka.model.sizes import compressed_size, record_size
from kpipe_platform.policies.faults import Fault, truncate

# Safety margin: the share of the topic's limit that the estimated compressed size may reach.
_SURE = 0.9

SHORT_MESSAGE_CHARS = 200
"""Length to which a fault's message is truncated if the dead letter does not fit otherwise."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record for the dead-letter topic.

    Args:
        topic: The dead-letter topic.
        key: The original key.
        value: The envelope, or the original value.
        headers: The record's own headers in their order, then the error headers.
        timestamp_ms: Milliseconds since the epoch. In raw form the original timestamp, as in Kafka Connect, if the
            topic accepts it. For an envelope the time of dead-lettering, so that the topic's retention starts then.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None

    @property
    def size_bytes(self) -> int:
        """Upper bound of the uncompressed size that the broker compares with ``max.message.bytes``."""
        return record_size(self.key, self.value, self.headers)

    def fits(self, context: DeadLetterContext) -> bool:
        """Return whether the topic is certain to accept it. A rejected dead letter would fail the run."""
        limit = context.max_record_bytes
        if self.size_bytes <= limit or context.compression == "none":
            return self.size_bytes <= limit
        return compressed_size(context.compression, self.key, self.value, self.headers) <= limit * _SURE


class Failure(NamedTuple):
    """The content from which a dead letter is built.

    Args:
        envelope: The complete envelope, with the record as it may be written.
        context: Form, header families, and how to handle an oversized payload.
    """

    envelope: Envelope
    context: DeadLetterContext

    def errors(self, record: KafkaRecord, fault: Fault) -> list[tuple[str, bytes | None]]:
        """Return the error headers to add to a record's own headers."""
        return error_headers(record, fault, self.context, self.envelope.origin_range)


def raw_dead_letters(failure: Failure) -> Iterator[DeadLetter]:
    """Yield dead letters in raw form, each with fewer error headers than the one before."""
    envelope, context = failure
    record, fault = envelope.original, envelope.fault
    own: Headers = record.headers
    if envelope.redacted:
        # After a mark of the record itself, which does not apply to this dead letter.
        own = (*own, REDACTED_MARK)
    origin: Headers = ()
    timestamp_ms, kept_ms = record.timestamp_ms, None
    if timestamp_ms is not None and timestamp_ms not in context.limits.times_ms(envelope.dead_lettered_ms):
        timestamp_ms, kept_ms = envelope.dead_lettered_ms, timestamp_ms
    if envelope.origin_range is not None or kept_ms is not None or record.headers or is_envelope(record.value):
        # A reader may mistake any header of the record for an error header, and the error headers of a rejected output
        # name its source. Error headers alone are unambiguous only if the record has no headers of its own.
        origin = (Origin(record.topic, record.partition, record.offset, len(record.headers), kept_ms).to_header(),)

    def dead_letter(errors: list[tuple[str, bytes | None]]) -> DeadLetter:
        return DeadLetter(context.topic, record.key, record.value, (*own, *errors, *origin), timestamp_ms)

    for less, _ in _shrunk(fault):
        yield dead_letter(failure.errors(record, less))
    yield dead_letter(coordinate_headers(failure.errors(record, fault)))


def envelope_dead_letters(failure: Failure) -> Iterator[DeadLetter]:
    """Yield dead letters with smaller and smaller envelopes, and finally with a reference to the payload."""
    envelope, context = failure
    record, fault = envelope.original, envelope.fault

    def dead_letter(key: bytes | None, own: Headers) -> DeadLetter:
        described = record if own is record.headers else replace(record, headers=())
        headers = (*own, *failure.errors(described, envelope.fault))
        if headers and headers[-1][0] == ORIGIN_HEADER:
            # The record's own header must not be last: it would be mistaken for this dead letter's.
            headers = (*headers, (ORIGIN_HEADER, None))
        return DeadLetter(context.topic, key, encode_envelope(envelope), headers, envelope.dead_lettered_ms)

    known = envelope.omitted
    for less, omitted in _shrunk(fault):
        if less is not fault:
            envelope = replace(envelope, fault=less, omitted=(*known, *omitted))
        yield dead_letter(record.key, record.headers)
    if record.headers:
        without = replace(envelope.original, headers=())
        envelope = replace(envelope, original=without, omitted=(*envelope.omitted, OMITTED_HEADERS))
        yield dead_letter(record.key, record.headers)
    if record.key is not None:
        without = replace(envelope.original, key=None)
        envelope = replace(envelope, original=without, omitted=(*envelope.omitted, OMITTED_KEY))
        yield dead_letter(record.key, record.headers)
    if envelope.retries:
        envelope = replace(envelope, retries=(), omitted=_with(envelope.omitted, OMITTED_RETRIES))
        yield dead_letter(record.key, record.headers)
    if envelope.rules:
        envelope = replace(envelope, rules=(), omitted=_with(envelope.omitted, OMITTED_RULES))
        yield dead_letter(record.key, record.headers)
    if context.oversized == "raw":
        yield from raw_dead_letters(failure)
    without = replace(envelope.original, key=None, value=None, headers=())
    envelope = replace(envelope, original=without, reference=_reference(record))
    yield dead_letter(record.key, record.headers)
    if record.headers:
        envelope = replace(envelope, omitted=(*envelope.omitted, OMITTED_MESSAGE_HEADERS))
        yield dead_letter(record.key, ())
    if record.key is not None:
        envelope = replace(envelope, omitted=(*envelope.omitted, OMITTED_MESSAGE_KEY))
        yield dead_letter(None, ())


def _shrunk(fault: Fault) -> Iterator[tuple[Fault, tuple[str, ...]]]:
    """Yield the fault, then the fault with less text, each with the names of the omitted parts."""
    omitted: tuple[str, ...] = ()
    yield fault, omitted
    if fault.stacktrace is not None:
        fault, omitted = replace(fault, stacktrace=None), (*omitted, OMITTED_STACKTRACE)
        yield fault, omitted
    if len(fault.message) > SHORT_MESSAGE_CHARS:
        fault = replace(fault, message=truncate(fault.message, SHORT_MESSAGE_CHARS))
        yield fault, (*omitted, OMITTED_MESSAGE)


def _with(omitted: tuple[str, ...], name: str) -> tuple[str, ...]:
    return omitted if name in omitted else (*omitted, name)


def _reference(record: KafkaRecord) -> PayloadReference:
    key, value = record.key, record.value
    return PayloadReference(
        key_bytes=None if key is None else len(key),
        key_sha256=None if key is None else hashlib.sha256(key).hexdigest(),
        value_bytes=None if value is None else len(value),
        value_sha256=None if value is None else hashlib.sha256(value).hexdigest(),
        headers_bytes=sum(
            len(name.encode("utf-8", "surrogatepass")) + len(data or b"") for name, data in record.headers
        ),
    )

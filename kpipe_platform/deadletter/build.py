"""From a failed record to the dead letter that fits its topic."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kpipe_platform.deadletter.context import DeadLetterContext
from kpipe_platform.deadletter.envelope import (
    OMITTED_HEADERS,
    OMITTED_KEY,
    OMITTED_MESSAGE,
    OMITTED_MESSAGE_HEADERS,
    OMITTED_MESSAGE_KEY,
    OMITTED_STACKTRACE,
    Envelope,
)
from kpipe_platform.deadletter.headers import coordinate_headers, error_headers
from kpipe_platform.deadletter.parts import Distribution, OriginRange, PayloadReference
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.records import Headers, KafkaRecord
from kpipe_platform.kafka.sizes import record_size
from kpipe_platform.policies.faults import Fault, bounded

SHORT_MESSAGE_CHARS = 200
"""What is left of a fault's message when the dead letter would not fit otherwise."""


class AnyRange(Protocol):
    """Offsets ``[start, end)`` of a partition, of whatever class."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def start(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """The offset behind the last one."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record for the dead-letter topic.

    Args:
        topic: The dead-letter topic.
        key: The original key.
        value: The envelope, or the original value.
        headers: The record's own headers in their order, then the error headers.
        timestamp_ms: The original timestamp in raw form, as Kafka Connect keeps it; the time of
            dead-lettering for an envelope, so that the topic's retention counts from there.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None

    @property
    def size_bytes(self) -> int:
        """Upper bound of what the broker counts against ``max.message.bytes``."""
        return record_size(self.key, self.value, self.headers)


def build_dead_letter(
    record: KafkaRecord,
    fault: Fault,
    context: DeadLetterContext,
    now_ms: int,
    *,
    origin_range: AnyRange | None = None,
) -> DeadLetter:
    """Make the dead letter of a record, as complete as fits.

    The payload is never cut. What makes way for it, one after another until the dead letter fits: the
    stack trace; the message behind its first `SHORT_MESSAGE_CHARS` characters; the envelope's copies of
    headers and key, which the dead letter's own headers and key hold as well. A payload that still does
    not fit is referred to by coordinates, sizes and checksums, and the envelope says so.

    Args:
        record: The failed record with its original bytes; without an offset for a rejected output record.
        fault: Why it failed.
        context: Topic, form, size limit, and who writes.
        now_ms: The time, milliseconds since the epoch.
        origin_range: The slice that a record without an offset came from.

    Returns:
        The dead letter.

    Raises:
        DeadLetterError: It cannot be made small enough, or the record holds a value that is not bytes.
    """
    if type(record.value) is not bytes or (record.key is not None and type(record.key) is not bytes):
        record = _with_bytes(record)
    origin = None
    if origin_range is not None:
        places = (origin_range.topic, origin_range.partition, origin_range.start, origin_range.end)
        origin = OriginRange(*places)
    letters = _raw if context.form == "raw" else _envelopes
    size = 0
    for letter in letters(record, fault, context, now_ms, origin):
        size = letter.size_bytes
        if size <= context.max_record_bytes:
            return letter
    limit = context.max_record_bytes
    msg = f"the dead letter of {record.coordinates} takes {size:,} bytes at least; {context.topic!r} takes {limit:,}"
    fix = f"set max.message.bytes of topic {context.topic!r} to {size} or more"
    if context.form == "raw":
        fix += ', or use form="envelope", which can refer to a payload that does not fit'
    raise DeadLetterError(msg, fix=fix, topic=context.topic, size_bytes=size, limit_bytes=limit)


def correlation_id(record: KafkaRecord, header: str, origin: OriginRange | None = None) -> str:
    """The record's correlation id: of its last header of that name, else of its coordinates.

    Made of coordinates it is the same for every attempt. A record without coordinates gets its slice and a
    checksum of its bytes.
    """
    for name, value in reversed(record.headers):
        if name == header and value:
            return value.decode("utf-8", "backslashreplace")
    if record.offset is not None:
        return f"{record.topic}-{record.partition}-{record.offset}"
    digest = hashlib.sha256()
    for part in (record.key, record.value):
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    if origin is None:
        return f"{record.topic}-{digest.hexdigest()[:16]}"
    return f"{origin.topic}-{origin.partition}-{origin.start}-{origin.end}-{digest.hexdigest()[:16]}"


def _shrunk(fault: Fault) -> Iterator[tuple[Fault, tuple[str, ...]]]:
    """The fault, then with less and less text, and what each time is left out."""
    omitted: tuple[str, ...] = ()
    yield fault, omitted
    if fault.stacktrace is not None:
        fault, omitted = replace(fault, stacktrace=None), (*omitted, OMITTED_STACKTRACE)
        yield fault, omitted
    if len(fault.message) > SHORT_MESSAGE_CHARS:
        fault = replace(fault, message=bounded(fault.message, SHORT_MESSAGE_CHARS))
        yield fault, (*omitted, OMITTED_MESSAGE)


def _raw(
    record: KafkaRecord, fault: Fault, context: DeadLetterContext, now_ms: int, origin: OriginRange | None
) -> Iterator[DeadLetter]:
    def letter(errors: list[tuple[str, bytes | None]]) -> DeadLetter:
        headers = (*record.headers, *errors)
        return DeadLetter(context.topic, record.key, record.value, headers, record.timestamp_ms)

    for less, _ in _shrunk(fault):
        yield letter(error_headers(record, less, context, origin))
    yield letter(coordinate_headers(error_headers(record, fault, context, origin)))


def _envelopes(
    record: KafkaRecord, fault: Fault, context: DeadLetterContext, now_ms: int, origin: OriginRange | None
) -> Iterator[DeadLetter]:
    envelope = Envelope(
        original=record,
        fault=fault,
        asset=context.asset,
        run_id=context.run_id,
        attempt=context.attempt,
        correlation_id=correlation_id(record, context.correlation_header, origin),
        dead_lettered_ms=now_ms,
        distribution=context.distribution or Distribution(group=context.group),
        created_ms=record.timestamp_ms,
        origin_range=origin,
        segments=context.segments,
        retries=context.retries,
        header_count=len(record.headers),
    )

    def letter(key: bytes | None, own: Headers) -> DeadLetter:
        described = record if own is record.headers else replace(record, headers=())
        errors = error_headers(described, envelope.fault, context, origin)
        return DeadLetter(context.topic, key, envelope.to_json_bytes(), (*own, *errors), now_ms)

    for less, omitted in _shrunk(fault):
        if less is not fault:
            envelope = replace(envelope, fault=less, omitted=omitted)
        yield letter(record.key, record.headers)
    if record.headers:
        without = replace(envelope.original, headers=())
        envelope = replace(envelope, original=without, omitted=(*envelope.omitted, OMITTED_HEADERS))
        yield letter(record.key, record.headers)
    if record.key is not None:
        without = replace(envelope.original, key=None)
        envelope = replace(envelope, original=without, omitted=(*envelope.omitted, OMITTED_KEY))
        yield letter(record.key, record.headers)
    if context.oversized == "raw":
        yield from _raw(record, fault, context, now_ms, origin)
    without = replace(envelope.original, key=None, value=None, headers=())
    envelope = replace(envelope, original=without, reference=_reference(record))
    yield letter(record.key, record.headers)
    if record.headers:
        envelope = replace(envelope, omitted=(*envelope.omitted, OMITTED_MESSAGE_HEADERS))
        yield letter(record.key, ())
    if record.key is not None:
        envelope = replace(envelope, omitted=(*envelope.omitted, OMITTED_MESSAGE_KEY))
        yield letter(None, ())


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


def _with_bytes(record: KafkaRecord) -> KafkaRecord:
    return replace(record, key=_as_bytes(record.key, "key", record), value=_as_bytes(record.value, "value", record))


def _as_bytes(data: Any, what: str, record: KafkaRecord) -> bytes | None:
    if data is None or isinstance(data, bytes | bytearray | memoryview):
        return None if data is None else bytes(data)
    msg = f"the {what} of {record.coordinates} is {type(data).__name__}, and a dead letter keeps original bytes"
    raise DeadLetterError(msg, fix="give the record as it was read from Kafka, before its codec decoded it")

"""From a failed record to the dead letter that fits its topic."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Protocol

from kpipe_platform.dead_letters.envelope.model import OMITTED_RETRIES, OMITTED_RULES, Envelope
from kpipe_platform.dead_letters.envelope.parts import Distribution, OriginRange, Retry, Segment
from kpipe_platform.dead_letters.write.context import DeadLetterContext
from kpipe_platform.dead_letters.write.fit import DeadLetter, Failure, envelope_letters, raw_letters
from kpipe_platform.dead_letters.write.redaction import redacted
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Fault, bounded

MAX_RETRIES = 20
"""Attempts that a dead letter keeps, the last ones: some 15 kB at most."""

MAX_RULES = 50
"""Rules that a dead letter names, the first ones."""

MAX_RULE_CHARS = 200
"""Longest name of a rule that a dead letter keeps."""


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


def build_dead_letter(
    record: KafkaRecord,
    fault: Fault,
    context: DeadLetterContext,
    now_ms: int,
    *,
    origin_range: AnyRange | None = None,
    retries: tuple[Retry, ...] = (),
    segments: tuple[Segment, ...] | None = None,
    rules: tuple[str, ...] = (),
) -> DeadLetter:
    """Make the dead letter of a record, as complete as fits.

    The payload is never cut. What makes way for it, one after another until the dead letter fits: the
    stack trace; the message behind its first 200 characters; the envelope's copies of headers and key,
    which the dead letter's own headers and key hold as well; the attempts; the rules' names. A payload that
    still does not fit is referred to by coordinates, sizes and checksums, and the envelope says so.

    Args:
        record: The failed record with its original bytes; without an offset for a rejected output record.
        fault: Why it failed.
        context: Topic, form, size limit, redaction, and who writes.
        now_ms: The time, milliseconds since the epoch.
        origin_range: The slice that a record without an offset came from.
        retries: Attempts that were made with this record alone; they follow those of its slice. The last
            `MAX_RETRIES` are kept.
        segments: Steps that this record went through; None: those of its slice.
        rules: Names of the rules that failed. The first `MAX_RULES` are kept.

    Returns:
        The dead letter.

    Raises:
        ConfigError: The redaction hook cannot be imported here.
        DeadLetterError: It cannot be made small enough, the record holds a value that is not bytes, or the
            redaction hook failed.
    """
    record = _with_bytes(record)
    if context.redact is not None:
        kept, fault = redacted(record, fault, context.redact)
        record = _with_bytes(kept)
    origin = None
    if origin_range is not None:
        places = (origin_range.topic, origin_range.partition, origin_range.start, origin_range.end)
        origin = OriginRange(*places)
    omitted: tuple[str, ...] = ()
    retries = (*context.retries, *retries)
    if len(retries) > MAX_RETRIES:
        retries, omitted = retries[-MAX_RETRIES:], (*omitted, OMITTED_RETRIES)
    if context.redact is not None:
        # The hook does not see these messages, and they may quote values as the fault's does.
        retries = tuple(replace(retry, message="") for retry in retries)
    if len(rules) > MAX_RULES:
        rules, omitted = rules[:MAX_RULES], (*omitted, OMITTED_RULES)
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
        segments=context.segments if segments is None else segments,
        retries=retries,
        omitted=omitted,
        header_count=len(record.headers),
        rules=tuple(bounded(rule, MAX_RULE_CHARS) for rule in rules) if rules else (),
        redacted=context.redact is not None,
    )
    letters = raw_letters if context.form == "raw" else envelope_letters
    size = 0
    for letter in letters(Failure(envelope, context)):
        size = letter.size_bytes
        if letter.fits(context):
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


def _with_bytes(record: KafkaRecord) -> KafkaRecord:
    if type(record.value) is bytes and (record.key is None or type(record.key) is bytes):
        return record
    return replace(record, key=_as_bytes(record.key, "key", record), value=_as_bytes(record.value, "value", record))


def _as_bytes(data: Any, what: str, record: KafkaRecord) -> bytes | None:
    if data is None or isinstance(data, bytes | bytearray | memoryview):
        return None if data is None else bytes(data)
    msg = f"the {what} of {record.coordinates} is {type(data).__name__}, and a dead letter keeps original bytes"
    raise DeadLetterError(msg, fix="give the record as it was read from Kafka, before its codec decoded it")

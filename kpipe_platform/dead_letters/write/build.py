"""Build the dead letter of a failed record, within the size limit of the dead-letter topic."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Protocol

from kpipe_platform.dead_letters.envelope.model import OMITTED_RETRIES, OMITTED_RULES, Envelope
from kpipe_platform.dead_letters.envelope.parts import Distribution, OriginRange, Retry, Segment
from kpipe_platform.dead_letters.write.context import DeadLetterContext
from kpipe_platform.dead_letters.write.fit import DeadLetter, Failure, envelope_dead_letters, raw_dead_letters
from kpipe_platform.dead_letters.write.redaction import redacted
from kpipe_platform.errors import DeadLetterError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Fault, truncate

MAX_RETRIES = 20
"""Maximum number of retries in a dead letter. The last ones are kept, about 15 kB at most."""

MAX_RULES = 50
"""Maximum number of failed rules in a dead letter. The first ones are kept."""

MAX_RULE_CHARS = 200
"""Maximum length of a rule's name in a dead letter. Longer names are truncated."""


class AnyRange(Protocol):
    """An offset range ``[start, end)`` of a partition, of any class."""

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
        """The offset after the last one."""


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
    """Build the dead letter of a record, as complete as the size limit allows.

    The payload is never truncated. Other parts are removed, one after another, until the dead letter fits: the
    stack trace; the message after its first 200 characters; the envelope's copies of headers and key,
    which the dead letter's own headers and key also hold; the retries; the names of the rules. A payload that
    still does not fit is replaced by a reference with coordinates, sizes and checksums, and the envelope records this.

    Args:
        record: The failed record with its original bytes. A rejected output record has no offset.
        fault: Why the record failed.
        context: Topic, form, size limit, redaction, asset and run.
        now_ms: The current time, milliseconds since the epoch.
        origin_range: The slice that a record without an offset came from.
        retries: Retries of this record alone. They follow the retries of its slice. The last
            `MAX_RETRIES` are kept.
        segments: Steps that this record went through. None means the steps of its slice.
        rules: Names of the rules that failed. The first `MAX_RULES` are kept.

    Returns:
        The dead letter.

    Raises:
        ConfigError: The redaction hook cannot be imported in this process.
        DeadLetterError: The dead letter exceeds the size limit even in its smallest form, the record's key or value is
            not bytes, or the redaction hook failed.
    """
    record = _with_bytes(record)
    if context.redact is not None:
        kept, fault = redacted(record, fault, context.redact)
        record = _with_bytes(kept)
    origin = None
    if origin_range is not None:
        coordinates = (origin_range.topic, origin_range.partition, origin_range.start, origin_range.end)
        origin = OriginRange(*coordinates)
    omitted: tuple[str, ...] = ()
    retries = (*context.retries, *retries)
    if len(retries) > MAX_RETRIES:
        retries, omitted = retries[-MAX_RETRIES:], (*omitted, OMITTED_RETRIES)
    if context.redact is not None:
        # The hook does not process these messages, and they may quote the record's values.
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
        rules=tuple(truncate(rule, MAX_RULE_CHARS) for rule in rules) if rules else (),
        redacted=context.redact is not None,
    )
    candidates = raw_dead_letters if context.form == "raw" else envelope_dead_letters
    size = 0
    for dead_letter in candidates(Failure(envelope, context)):
        size = dead_letter.size_bytes
        if dead_letter.fits(context):
            return dead_letter
    limit = context.max_record_bytes
    msg = f"the dead letter of {record.coordinates} has {size:,} bytes or more; topic {context.topic!r} takes {limit:,}"
    fix = f"set max.message.bytes of topic {context.topic!r} to {size} or more"
    if context.form == "raw":
        fix += ', or use form="envelope", which replaces a payload that does not fit with a reference'
    raise DeadLetterError(msg, fix=fix, topic=context.topic, size_bytes=size, limit_bytes=limit)


def correlation_id(record: KafkaRecord, header: str, origin: OriginRange | None = None) -> str:
    """Return the record's correlation id, from its last header of this name, or else from its coordinates.

    An id from coordinates is the same for every attempt. For a record without an offset, the id consists of its
    topic or slice and a checksum of its key and value.
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
    msg = f"the {what} of {record.coordinates} is {type(data).__name__}; a dead letter needs the original bytes"
    raise DeadLetterError(msg, fix="pass the record as read from Kafka, before its codec decoded it")

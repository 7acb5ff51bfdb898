"""Read a dead letter of any family: kpipe's envelope, kpipe's raw form, or the form of another tool."""

from __future__ import annotations

from dataclasses import replace

from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.dead_letters.envelope.decode import decode_envelope, is_envelope
from kpipe_platform.dead_letters.envelope.model import OMITTED_MESSAGE_HEADERS
from kpipe_platform.dead_letters.envelope.origin import REDACTED_MARK, Origin
from kpipe_platform.dead_letters.read.error_headers import Hops, attempts_of, find_hops
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.dead_letters.read.header_families import own_headers
from kpipe_platform.kafka.model.records import KafkaRecord

# In kpipe's raw form, `__connect.errors.class.name` is this prefix and the component.
_KPIPE_CLASS = "kpipe_platform."


def read_dead_letter(record: KafkaRecord) -> FoundDeadLetter:
    """Read a dead letter.

    kpipe's envelope and its header ``kpipe.origin`` take precedence. The record is then returned as it was, including
    error headers of other tools. Without them, the coordinates come from error headers. If several hops left error
    headers, the first original coordinates and the last exception are used, and ``topics`` lists the topics if they
    differ.

    Args:
        record: The record in the dead-letter topic.

    Returns:
        The content of the dead letter. A record that is not a dead letter of any known family has family ``unknown``.

    Raises:
        ConfigError: The entry point of a family does not load.
    """
    origin = Origin.from_headers(record.headers)
    if origin is None and is_envelope(record.value):
        return _read_envelope(record)
    hops = find_hops(record.headers)
    if origin is not None:
        return _read_raw(record, origin, hops)
    if hops is not None:
        return _read_headers(record, hops)
    redacted, attempts = REDACTED_MARK in record.headers, attempts_of(record.headers) or 0
    return FoundDeadLetter(record, "unknown", _nowhere(record), attempts=attempts, redacted=redacted)


def with_source(dead_letter: FoundDeadLetter, source: KafkaRecord) -> FoundDeadLetter:
    """Complete a dead letter with the record that was read at its original coordinates.

    Args:
        dead_letter: A dead letter whose payload or headers are only in the source topic.
        source: The record in the source topic.
    """
    known = attempts_of(source.headers)
    attempts = dead_letter.attempts if known is None else max(known, dead_letter.attempts)
    return replace(dead_letter, original=source, attempts=attempts, redacted=False, from_source=None, reference=None)


def _read_envelope(record: KafkaRecord) -> FoundDeadLetter:
    try:
        envelope = decode_envelope(record.value)
    except DecodeFault as error:
        return FoundDeadLetter(record, "kpipe", _nowhere(record), problem=f"its envelope cannot be decoded: {error}")
    fault, origin = envelope.fault, envelope.origin_range
    original, own, problem = envelope.original, record.headers[: envelope.header_count], None
    if envelope.reference is None:
        original = envelope.restore(record.key, record.headers)
        own = original.headers
    elif OMITTED_MESSAGE_HEADERS in envelope.omitted:
        own = ()
    if envelope.reference is not None and original.offset is None:
        problem = "its payload did not fit into the envelope and is not in any topic"
    return FoundDeadLetter(
        record,
        "kpipe",
        original,
        exception_type=fault.exception_type,
        message=fault.message,
        stacktrace=fault.stacktrace,
        who=envelope.asset,
        asset=envelope.asset,
        group=envelope.distribution.group,
        run_id=envelope.run_id,
        component=fault.component.value,
        kind=fault.kind,
        rules=envelope.rules,
        dead_lettered_ms=envelope.dead_lettered_ms,
        attempts=attempts_of(own) or 0,
        redacted=envelope.redacted,
        from_source=None if envelope.reference is None else "payload",
        reference=envelope.reference,
        origin_range=origin,
        slice_partition=None if origin is None else (origin.topic, origin.partition),
        problem=problem,
        envelope=envelope,
    )


def _read_raw(record: KafkaRecord, origin: Origin, hops: Hops | None) -> FoundDeadLetter:
    """Read kpipe's raw form with an origin header, which it has if error headers alone would be ambiguous."""
    own, added = record.headers[: origin.header_count], record.headers[origin.header_count :]
    original = replace(
        record,
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offset,
        timestamp_ms=record.timestamp_ms if origin.timestamp_ms is None else origin.timestamp_ms,
        timestamp_type=None,
        headers=own,
    )
    about = FoundDeadLetter(record, "kpipe", original)
    if hops is not None:
        about = _of_hops(record, hops)
    source = about.original
    return replace(
        about,
        family="kpipe",
        original=original,
        attempts=attempts_of(own) or 0,
        redacted=REDACTED_MARK in added,
        # A rejected output was never in a log. Its error headers name the slice that it came from.
        slice_partition=(source.topic, source.partition) if hops is not None and origin.offset is None else None,
        topics=(),
    )


def _read_headers(record: KafkaRecord, hops: Hops) -> FoundDeadLetter:
    dead_letter = _of_hops(record, hops)
    for family in hops.present:
        if family.refine is not None:
            dead_letter = family.refine(dead_letter)
    return dead_letter


def _of_hops(record: KafkaRecord, hops: Hops) -> FoundDeadLetter:
    origin, failure = hops.origin, hops.failure
    timestamp = hops.original_number(origin.timestamp)
    original = replace(
        record,
        topic=hops.original_text(origin.topic),
        partition=hops.original_number(origin.partition),
        offset=hops.original_number(origin.offset),
        timestamp_ms=record.timestamp_ms if timestamp is None else timestamp,
        timestamp_type=None,
        headers=own_headers(record.headers),
    )
    topics = hops.topics
    own_time = record.timestamp_type == "log_append_time" or not failure.keeps_timestamp
    return FoundDeadLetter(
        record,
        origin.name,
        original,
        exception_type=hops.newest_text(failure.exceptions),
        cause_type=hops.newest_text((failure.cause,)),
        message=hops.newest_text(failure.messages),
        stacktrace=hops.newest_text(failure.stacktraces),
        who=hops.who,
        asset=hops.any_text("asset"),
        group=hops.any_text("group"),
        run_id=hops.any_text("run"),
        component=_component(hops),
        kind=hops.any_text("kind"),
        dead_lettered_ms=record.timestamp_ms if own_time else None,
        attempts=attempts_of(record.headers) or 0,
        redacted=REDACTED_MARK in record.headers,
        topics=topics if len(topics) > 1 else (),
    )


def _component(hops: Hops) -> str | None:
    """Return the component that kpipe's raw form names."""
    text = hops.newest_text(("__connect.errors.class.name",)) or ""
    return text[len(_KPIPE_CLASS) :] if text.startswith(_KPIPE_CLASS) else None


def _nowhere(record: KafkaRecord) -> KafkaRecord:
    """Return the message without coordinates, because the dead-letter topic is not the record's origin."""
    return replace(record, topic=None, partition=None, offset=None, headers=own_headers(record.headers))

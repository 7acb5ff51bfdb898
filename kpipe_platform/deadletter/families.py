"""Reading a dead letter of any family: kpipe's envelope, kpipe's raw form, and what other systems write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kpipe_platform.codecs.base import DecodeFault
from kpipe_platform.deadletter.decode import decode_envelope, is_envelope
from kpipe_platform.deadletter.found import FoundDeadLetter
from kpipe_platform.deadletter.header_families import REDACTED_MARK, Origin, own_headers
from kpipe_platform.deadletter.hops import Hops, attempts_of, find_hops
from kpipe_platform.deadletter.json_body import JsonBody, read_json_body
from kpipe_platform.deadletter.model import OMITTED_MESSAGE_HEADERS
from kpipe_platform.deadletter.numbers import read_text
from kpipe_platform.kafka.records import KafkaRecord

_KPIPE_CLASS = "kpipe_platform."


def read_dead_letter(letter: KafkaRecord) -> FoundDeadLetter:
    """Read a dead letter.

    Where a document holds the record, as kpipe's envelope does, its coordinates count, and the record in it is taken as
    it is, left-over error headers of earlier tools and all. Where only headers tell, and several hops left theirs, the
    first original coordinates and the last exception count, and ``topics`` says whether they agree.

    Args:
        letter: The message as it lies in the dead-letter topic.

    Returns:
        What it says. A message that is no dead letter of any known family is one of family ``unknown``.
    """
    origin, hops = Origin.from_headers(letter.headers), find_hops(letter.headers)
    if origin is not None:
        return _read_own(letter, origin, hops)
    if is_envelope(letter.value):
        return _read_envelope(letter)
    body = read_json_body(letter.value)
    if body is not None:
        return _read_body(letter, body)
    if hops is not None:
        return _read_headers(letter, hops)
    redacted, attempts = REDACTED_MARK in letter.headers, attempts_of(letter.headers) or 0
    return FoundDeadLetter(letter, "unknown", _nowhere(letter), attempts=attempts, redacted=redacted)


def with_source(found: FoundDeadLetter, source: KafkaRecord) -> FoundDeadLetter:
    """Complete a dead letter with the record that was read at its original coordinates.

    Args:
        found: One whose bytes or headers only the source topic has.
        source: The record there.
    """
    known = attempts_of(source.headers)
    attempts = found.attempts if known is None else max(known, found.attempts)
    return replace(found, original=source, attempts=attempts, redacted=False, from_source=None, reference=None)


def _read_envelope(record: KafkaRecord) -> FoundDeadLetter:
    try:
        envelope = decode_envelope(record.value)
    except DecodeFault as error:
        return FoundDeadLetter(record, "kpipe", _nowhere(record), problem=f"its envelope cannot be read: {error}")
    fault = envelope.fault
    about: dict[str, Any] = {
        "exception_type": fault.exception_type,
        "message": fault.message,
        "who": envelope.asset,
        "component": fault.component.value,
        "kind": fault.kind,
        "rules": envelope.rules,
        "dead_lettered_ms": envelope.dead_lettered_ms,
    }
    if envelope.reference is None:
        restored = envelope.restore(record.key, record.headers)
        return FoundDeadLetter(
            record,
            "kpipe",
            restored,
            attempts=attempts_of(restored.headers) or 0,
            redacted=envelope.redacted,
            origin_range=envelope.origin_range,
            **about,
        )
    own = () if OMITTED_MESSAGE_HEADERS in envelope.omitted else record.headers[: envelope.header_count]
    problem = None
    if envelope.original.offset is None:
        problem = "its payload did not fit into the envelope, and it was in no log before"
    return FoundDeadLetter(
        record,
        "kpipe",
        envelope.original,
        attempts=attempts_of(own) or 0,
        redacted=envelope.redacted,
        from_source="payload",
        reference=envelope.reference,
        origin_range=envelope.origin_range,
        problem=problem,
        **about,
    )


def _read_body(record: KafkaRecord, body: JsonBody) -> FoundDeadLetter:
    attempts = attempts_of(body.original.headers)
    return FoundDeadLetter(
        record,
        "dagster_kafka",
        body.original,
        exception_type=body.kind,
        kind=body.kind,
        message=body.message,
        who=body.asset,
        dead_lettered_ms=body.failed_ms,
        attempts=body.attempts if attempts is None else attempts,
    )


def _read_own(record: KafkaRecord, origin: Origin, hops: Hops | None) -> FoundDeadLetter:
    """The raw form of kpipe, where the error headers alone would not say where the record belongs."""
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
    about = FoundDeadLetter(record, "kpipe", original) if hops is None else _read_headers(record, hops)
    return replace(
        about,
        family="kpipe",
        original=original,
        attempts=attempts_of(own) or 0,
        redacted=REDACTED_MARK in added,
        from_source=None,
        problem=None,
        topics=(),
    )


def _read_headers(record: KafkaRecord, hops: Hops) -> FoundDeadLetter:
    origin, failure = hops.origin, hops.failure
    topic = hops.original_text(origin.topic)
    partition, offset = hops.original_number(origin.partition), hops.original_number(origin.offset)
    timestamp = hops.original_number(origin.timestamp)
    original = replace(
        record,
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=record.timestamp_ms if timestamp is None else timestamp,
        timestamp_type=None,
        headers=own_headers(record.headers),
    )
    exception, message = hops.failure_text(failure.exceptions), hops.failure_text(failure.messages)
    if failure.name == "streams" and exception is not None:
        # The header is the exception's toString(): the class, and often the message behind it.
        exception = exception.partition(":")[0].strip()
    topics = hops.topics
    from_source = problem = None
    if not hops.keeps_headers and None not in (topic, partition, offset):
        # A share group copies neither key nor value unless it is told to.
        bare = failure.name == "share_group" and record.key is None and record.value is None
        if len(topics) == 1:
            from_source = "payload" if bare else "headers"
        elif bare:
            problem = f"its payload is in one of the topics {', '.join(topics)}, and it does not say in which"
    own_time = record.timestamp_type == "log_append_time" or not failure.keeps_timestamp
    return FoundDeadLetter(
        record,
        origin.name,
        original,
        exception_type=exception,
        cause_type=hops.failure_text((failure.cause,)),
        message=message,
        who=hops.either("who"),
        component=_component(record),
        kind=hops.either("kind"),
        dead_lettered_ms=record.timestamp_ms if own_time else None,
        attempts=attempts_of(record.headers) or 0,
        redacted=REDACTED_MARK in record.headers,
        from_source=from_source,  # type: ignore[arg-type]  # a conditional of two literals
        problem=problem,
        topics=topics if len(topics) > 1 else (),
    )


def _component(record: KafkaRecord) -> str | None:
    """The component that kpipe's raw form names."""
    for name, value in record.headers:
        if name == "__connect.errors.class.name":
            text = read_text(value) or ""
            return text[len(_KPIPE_CLASS) :] if text.startswith(_KPIPE_CLASS) else None
    return None


def _nowhere(record: KafkaRecord) -> KafkaRecord:
    """The message's bytes, from no known place: the dead-letter topic is not where the record comes from."""
    return replace(record, topic=None, partition=None, offset=None, headers=own_headers(record.headers))

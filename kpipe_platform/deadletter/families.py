"""Reading a dead letter of any family: kpipe's envelope, kpipe's raw form, and what other systems write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kpipe_platform.codecs.base import DecodeFault
from kpipe_platform.deadletter.envelope import OMITTED_MESSAGE_HEADERS, Envelope, is_envelope
from kpipe_platform.deadletter.found import FoundDeadLetter
from kpipe_platform.deadletter.header_families import Family, own_headers
from kpipe_platform.deadletter.hops import Hops, attempts_of, find_hops
from kpipe_platform.deadletter.json_body import JsonBody, read_json_body
from kpipe_platform.deadletter.numbers import read_text
from kpipe_platform.kafka.records import KafkaRecord

# Dead letters of dead letters of dead letters; more than this is no accident of a few consumers in a row.
_MAX_HOPS = 16

_KPIPE_CLASS = "kpipe_platform."


def read_dead_letter(letter: KafkaRecord) -> FoundDeadLetter:
    """Read a dead letter.

    When several hops left their marks, the first original coordinates and the last exception are the ones that count;
    an envelope around a dead letter is a hop too.

    Args:
        letter: The message as it lies in the dead-letter topic.

    Returns:
        What it says. A message that is no dead letter of any known family is one of family ``unknown``.
    """
    found = _peel(letter, 0)
    if found is not None:
        return found
    return FoundDeadLetter(letter, "unknown", _nowhere(letter), attempts=attempts_of(letter.headers) or 0)


def with_source(found: FoundDeadLetter, source: KafkaRecord) -> FoundDeadLetter:
    """Complete a dead letter with the record that was read at its original coordinates.

    Args:
        found: One whose bytes or headers only the source topic has.
        source: The record there. It may be a dead letter itself: then it is the one that counts.
    """
    inner = _peel(source, 1)
    known = attempts_of(source.headers)
    attempts = found.attempts if known is None else max(known, found.attempts)
    if inner is None:
        original = replace(source, headers=own_headers(source.headers))
        return replace(found, original=original, attempts=attempts, redacted=False, from_source=None, reference=None)
    return replace(
        found,
        family=inner.family,
        original=inner.original,
        attempts=max(attempts, inner.attempts),
        redacted=inner.redacted,
        from_source=inner.from_source,
        reference=inner.reference,
        problem=inner.problem,
    )


def _peel(record: KafkaRecord, depth: int) -> FoundDeadLetter | None:
    """Read a message, and what is inside it; None where it is no dead letter."""
    if depth >= _MAX_HOPS:
        return None
    if is_envelope(record.value):
        return _read_envelope(record, depth)
    body = read_json_body(record.value)
    if body is not None:
        return _read_body(record, body, depth)
    hops = find_hops(record.headers)
    return None if hops is None else _read_headers(record, hops)


def _read_envelope(record: KafkaRecord, depth: int) -> FoundDeadLetter:
    try:
        envelope = Envelope.from_json_bytes(record.value)
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
        about |= {"redacted": envelope.redacted, "origin_range": envelope.origin_range}
        return _around(record, restored, depth, "kpipe", **about)
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


def _read_body(record: KafkaRecord, body: JsonBody, depth: int) -> FoundDeadLetter:
    about: dict[str, Any] = {"exception_type": body.kind, "kind": body.kind, "message": body.message, "who": body.asset}
    found = _around(record, body.original, depth, "dagster_kafka", dead_lettered_ms=body.failed_ms, **about)
    return found if attempts_of(body.original.headers) is not None else replace(found, attempts=body.attempts)


def _around(record: KafkaRecord, inside: KafkaRecord, depth: int, family: Family, **about: Any) -> FoundDeadLetter:
    """A document that holds a record, which may be a dead letter of an earlier hop itself."""
    inner = _peel(inside, depth + 1)
    if inner is None:
        original = replace(inside, headers=own_headers(inside.headers))
        return FoundDeadLetter(record, family, original, attempts=attempts_of(inside.headers) or 0, **about)
    # The record's own redaction stays with it; a rejected output that is a dead letter has coordinates again.
    about = {**about, "redacted": inner.redacted or about.get("redacted", False), "origin_range": inner.origin_range}
    unsaid = {name: None for name in ("exception_type", "cause_type", "component", "dead_lettered_ms")}
    return replace(inner, letter=record, **{**unsaid, "rules": (), **about})


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
    from_source = None
    if not hops.keeps_headers and None not in (topic, partition, offset):
        # A share group copies neither key nor value unless it is told to.
        bare = failure.name == "share_group" and record.key is None and record.value is None
        from_source = "payload" if bare else "headers"
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
        from_source=from_source,  # type: ignore[arg-type]  # a conditional of two literals
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

"""A dead letter as it was found, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kpipe_platform.deadletter.header_families import Family
from kpipe_platform.deadletter.parts import OriginRange, PayloadReference
from kpipe_platform.kafka.records import KafkaRecord

FromSource: TypeAlias = Literal["payload", "headers"]
"""What only the source topic has: the whole record, or the headers of a record whose bytes are here."""


@dataclass(frozen=True, slots=True)
class FoundDeadLetter:
    """What a dead letter says.

    Args:
        letter: The dead letter as it lies in its topic.
        family: Who wrote it; with several hops, the first one, where the record comes from.
        original: The record as it was before the first failure: coordinates, timestamp, key, value, and its own
            headers without error headers. None of its coordinates is invented: what the dead letter does not say is
            None. Without key, value and headers where ``from_source`` is ``payload``.
        exception_type: Class of the last exception.
        cause_type: Class of its cause.
        message: What the last exception said.
        who: Who gave the record up: asset, connector, or consumer group.
        component: The component of kpipe in which it failed.
        kind: A short reason: the fault's kind, or Connect's stage.
        rules: Names of the rules that failed.
        dead_lettered_ms: When it was dead-lettered, milliseconds since the epoch; None where the dead letter has its
            record's timestamp only.
        attempts: How often it was redriven, or tried by others before that.
        redacted: Whether the payload was changed before it was written.
        from_source: What has to be read from the source topic before the record is complete; None: nothing.
        reference: Sizes and checksums by which the payload is recognised.
        origin_range: The slice that a rejected output record came from.
        problem: Why the original bytes cannot be had; None where they can.
        topics: Original topics that error headers name, where they name several: the record came with left-over headers
            of another tool, or went through several dead-letter topics. ``original`` has the first.
    """

    letter: KafkaRecord
    family: Family
    original: KafkaRecord
    exception_type: str | None = None
    cause_type: str | None = None
    message: str | None = None
    who: str | None = None
    component: str | None = None
    kind: str | None = None
    rules: tuple[str, ...] = ()
    dead_lettered_ms: int | None = None
    attempts: int = 0
    redacted: bool = False
    from_source: FromSource | None = None
    reference: PayloadReference | None = None
    origin_range: OriginRange | None = None
    problem: str | None = None
    topics: tuple[str, ...] = ()

    @property
    def time_ms(self) -> int | None:
        """When it was dead-lettered, or the message's own timestamp where that is all there is."""
        return self.letter.timestamp_ms if self.dead_lettered_ms is None else self.dead_lettered_ms

    @property
    def place(self) -> str:
        """Where the dead letter lies, for messages."""
        return self.letter.coordinates

"""A dead letter as it was read, of any family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kpipe_platform.dead_letters.envelope.model import Envelope
from kpipe_platform.dead_letters.envelope.parts import OriginRange, PayloadReference
from kpipe_platform.kafka.model.records import KafkaRecord

FromSource: TypeAlias = Literal["payload", "headers"]
"""Parts of the record that are only in the source topic: the whole record (``payload``), or only its headers."""


@dataclass(frozen=True, slots=True)
class FoundDeadLetter:
    """The content of a dead letter.

    Args:
        dead_letter: The record in the dead-letter topic.
        family: The tool that wrote the dead letter: ``kpipe``, the name of a `HeaderFamily`, or ``unknown`` if it has
            no known error headers. With several hops, the family of the first hop.
        original: The record before its first failure: coordinates, timestamp, key, value, and its own headers without
            error headers. Coordinates that the dead letter does not name are None. Key, value and headers are
            missing if ``from_source`` is ``payload``.
        exception_type: Class of the last exception.
        cause_type: Class of its cause.
        message: Message of the last exception.
        stacktrace: Stack trace of the last exception.
        who: The asset, connector or consumer group that last gave up on the record.
        asset: The asset or connector that a hop names.
        group: The consumer group that a hop names.
        run_id: The run or task.
        component: The kpipe component in which the record failed.
        kind: A short reason: the fault's kind, or Connect's stage.
        rules: Names of the rules that failed.
        dead_lettered_ms: When it was dead-lettered, milliseconds since the epoch. None if the dead letter has only its
            record's timestamp.
        attempts: Number of redrives, or of attempts by other tools if it was never redriven.
        redacted: Whether a redaction hook processed the payload before it was written.
        from_source: Parts that must be read from the source topic to complete the record. None means it is complete.
        reference: Sizes and checksums that identify the payload.
        origin_range: The slice that a rejected output record came from.
        slice_partition: Topic and partition of that slice, also available in raw form. None for any other record.
        problem: Why the original bytes are not available. None if they are.
        topics: Original topics named in the error headers, if there are several: the record arrived with error headers
            of another tool, or went through several dead-letter topics. ``original`` has the first topic.
        envelope: The envelope. None if there is none or it cannot be decoded.
    """

    dead_letter: KafkaRecord
    family: str
    original: KafkaRecord
    exception_type: str | None = None
    cause_type: str | None = None
    message: str | None = None
    stacktrace: str | None = None
    who: str | None = None
    asset: str | None = None
    group: str | None = None
    run_id: str | None = None
    component: str | None = None
    kind: str | None = None
    rules: tuple[str, ...] = ()
    dead_lettered_ms: int | None = None
    attempts: int = 0
    redacted: bool = False
    from_source: FromSource | None = None
    reference: PayloadReference | None = None
    origin_range: OriginRange | None = None
    slice_partition: tuple[str | None, int | None] | None = None
    problem: str | None = None
    topics: tuple[str, ...] = ()
    envelope: Envelope | None = None

    @property
    def time_ms(self) -> int | None:
        """When the record was dead-lettered, or the dead letter's own timestamp if that time is unknown."""
        return self.dead_letter.timestamp_ms if self.dead_lettered_ms is None else self.dead_lettered_ms

    @property
    def place(self) -> str:
        """Coordinates of the dead letter, for messages."""
        return self.dead_letter.coordinates

"""A dead letter as it was found, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kpipe_platform.dead_letters.envelope.model import Envelope
from kpipe_platform.dead_letters.envelope.parts import OriginRange, PayloadReference
from kpipe_platform.kafka.model.records import KafkaRecord

FromSource: TypeAlias = Literal["payload", "headers"]
"""What only the source topic has: the whole record, or the headers of a record whose bytes are here."""


@dataclass(frozen=True, slots=True)
class FoundDeadLetter:
    """What a dead letter says.

    Args:
        letter: The dead letter as it lies in its topic.
        family: Who wrote it: ``kpipe``, or the name of a `HeaderFamily`; ``unknown`` where no header says so. With
            several hops, the first one, where the record comes from.
        original: The record as it was before the first failure: coordinates, timestamp, key, value, and its own
            headers without error headers. None of its coordinates is invented: what the dead letter does not say is
            None. Without key, value and headers where ``from_source`` is ``payload``.
        exception_type: Class of the last exception.
        cause_type: Class of its cause.
        message: What the last exception said.
        stacktrace: Its stack trace.
        who: Who gave the record up last: asset, connector, or consumer group.
        asset: The asset or connector that a hop names.
        group: The consumer group that a hop names.
        run_id: The run or task.
        component: The component of kpipe in which it failed.
        kind: A short reason: the fault's kind, or Connect's stage.
        rules: Names of the rules that failed.
        dead_lettered_ms: When it was dead-lettered, milliseconds since the epoch; None where the dead letter has its
            record's timestamp only.
        attempts: How often it was redriven, or tried by others before that.
        redacted: Whether the payload was changed before it was written.
        from_source: What has to be read from the source topic before the record is complete; None: nothing.
        reference: Sizes and checksums by which the payload is recognized.
        origin_range: The slice that a rejected output record came from.
        slice_partition: Topic and partition of that slice, which raw form knows too; None for any other record.
        problem: Why the original bytes cannot be had; None where they can.
        topics: Original topics that error headers name, where they name several: the record came with left-over headers
            of another tool, or went through several dead-letter topics. ``original`` has the first.
        envelope: The envelope, where it is one that can be read.
    """

    letter: KafkaRecord
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
        """When it was dead-lettered, or the message's own timestamp where that is all there is."""
        return self.letter.timestamp_ms if self.dead_lettered_ms is None else self.dead_lettered_ms

    @property
    def place(self) -> str:
        """Where the dead letter lies, for messages."""
        return self.letter.coordinates

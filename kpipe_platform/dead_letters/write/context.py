"""What all dead letters of one slice share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kpipe_platform.dead_letters.envelope.origin import CORRELATION_HEADER
from kpipe_platform.dead_letters.envelope.parts import Distribution, Retry, Segment
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.model.sizes import DEFAULT_MAX_RECORD_BYTES

Form: TypeAlias = Literal["envelope", "raw"]
"""``envelope``: documented JSON around the original bytes. ``raw``: the original bytes and headers."""

HeaderStyle: TypeAlias = Literal["connect", "spring"]
"""Which error headers to write: Kafka Connect's text headers, Spring Kafka's binary ones."""


@dataclass(frozen=True, slots=True)
class DeadLetterContext:
    """Where dead letters go, in which form, and who writes them. Pickles: it travels to the writer's tasks.

    Args:
        topic: The dead-letter topic.
        asset: The asset's key as text.
        run_id: The Dagster run.
        group: The asset's consumer group.
        attempt: Number of the run's attempt, from 1.
        form: ``envelope`` or ``raw``.
        max_record_bytes: The largest record that the dead-letter topic takes (``max.message.bytes``).
        distribution: Deployment and worker; without it, the group only.
        header_families: Error headers to write, in this order.
        correlation_header: Header of the original record that holds its correlation id.
        segments: Steps that the slice went through.
        retries: Attempts that were made before.
        oversized: What becomes of a payload that does not fit into an envelope: ``reference`` keeps its
            coordinates, size and checksum, and the source topic has the bytes until retention takes them;
            ``raw`` writes the original bytes and headers without an envelope if they fit like that, else a
            reference.
        redact: Hook that takes out of record and fault what must not be kept, ``package.module:function``; see
            `kpipe_platform.dead_letters.write.redaction`. None: everything is kept.
        limits: What the dead-letter topic takes, for the timestamps of dead letters in raw form.
        compression: How the batches are compressed whose size the dead-letter topic's brokers judge: ``none``,
            ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
    """

    topic: str
    asset: str
    run_id: str
    group: str
    attempt: int = 1
    form: Form = "envelope"
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES
    distribution: Distribution | None = None
    header_families: tuple[HeaderStyle, ...] = ("connect",)
    correlation_header: str = CORRELATION_HEADER
    segments: tuple[Segment, ...] = ()
    retries: tuple[Retry, ...] = ()
    oversized: Literal["reference", "raw"] = "reference"
    redact: str | None = None
    limits: TopicLimits = field(default_factory=TopicLimits)
    compression: str = "none"

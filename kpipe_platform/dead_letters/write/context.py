"""Settings that all dead letters of one slice share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kpipe_platform.dead_letters.envelope.origin import CORRELATION_HEADER
from kpipe_platform.dead_letters.envelope.parts import Distribution, Retry, Segment
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.model.sizes import DEFAULT_MAX_RECORD_BYTES

Form: TypeAlias = Literal["envelope", "raw"]
"""``envelope``: a documented JSON object with the original bytes. ``raw``: the original bytes and headers."""

HeaderStyle: TypeAlias = Literal["connect", "spring"]
"""Which error headers to write: Kafka Connect's text headers, Spring Kafka's binary ones."""


@dataclass(frozen=True, slots=True)
class DeadLetterContext:
    """Destination, form and origin of dead letters. Can be pickled, because it is sent to the writer's tasks.

    Args:
        topic: The dead-letter topic.
        asset: The asset's key as text.
        run_id: The Dagster run.
        group: The asset's consumer group.
        attempt: Number of the run's attempt, from 1.
        form: ``envelope`` or ``raw``.
        max_record_bytes: The largest record that the dead-letter topic accepts (``max.message.bytes``).
        distribution: Deployment and worker. None means that only the group is recorded.
        header_families: Error headers to write, in this order.
        correlation_header: Header of the original record that holds its correlation id.
        segments: Steps that the slice went through.
        retries: Earlier attempts of the slice.
        oversized: How to handle a payload that does not fit into an envelope. ``reference`` keeps only its
            coordinates, sizes and checksums; the source topic has the bytes until retention deletes them.
            ``raw`` writes the original bytes and headers without an envelope if they fit, and a reference if they
            do not.
        redact: Hook that removes confidential data from record and fault, ``package.module:function``; see
            `kpipe_platform.dead_letters.write.redaction`. None means that everything is kept.
        limits: Limits of the dead-letter topic, to check the timestamps of dead letters in raw form.
        compression: Compression of the batches whose size the brokers compare with the topic's limit: ``none``,
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

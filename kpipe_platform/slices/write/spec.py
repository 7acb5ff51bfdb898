"""Create the specification of the writer's tasks from a run's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kpipe_platform.codecs import Codec, RawCodec
from kpipe_platform.dead_letters import DeadLetterContext, Distribution
from kpipe_platform.kafka.model.instance_names import INSTANCE_HEADER, LEASE_HEADER, WORKER_HEADER
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.target import SliceTarget
from kpipe_platform.slices.values import StagedSlice
from kpipe_platform.spark.batches import ship
from kpipe_platform.spark.sink.spec import DEFAULT_COMPRESSION, OutputTopic, WriterSpec


def writer_spec(
    staged: StagedSlice, settings: SliceSettings, target: SliceTarget, mode: Literal["transactional", "parallel"]
) -> WriterSpec:
    """Create the writer's specification for a slice.

    Args:
        staged: The slice with its stage's output.
        settings: The run's settings.
        target: The topics for outputs and dead letters.
        mode: ``transactional``: one task writes and commits. ``parallel``: several tasks write and the driver
            commits.
    """
    topics = {topic.name: topic for topic, _ in staged.sources.values()}
    destination = settings.destination
    where = destination or settings.dead_letter
    codecs: list[tuple[Codec, Codec]] = []
    for planned in staged.slice.ranges:
        topic = topics.get(planned.range.topic)
        codecs.append((topic.key_codec, topic.value_codec) if topic else (RawCodec(), RawCodec()))
    for pair in codecs:
        for codec in pair:
            ship(codec)
    spec = WriterSpec(
        settings=(where.connection if where else settings.source).for_executors(),
        source_settings=settings.source.for_executors(),
        slice=staged.slice,
        mode=mode,
        outputs=tuple(OutputTopic(name, limits) for name, limits in target.limits.items()),
        dead_letters=tuple(_dead_letters(p.range, staged, settings, target) for p in staged.slice.ranges),
        policies=settings.policies,
        limit=settings.limit,
        codecs=tuple(codecs),
        isolation=settings.policy.isolation,
        hide_messages=settings.hide_messages,
    )
    if destination is None:
        return spec
    return replace(
        spec,
        stamp_source=destination.stamp_source,
        provenance=provenance_headers(settings.run.provenance),
        correlation_header=destination.correlation_header,
        preview_rows=destination.preview_rows,
        producer={"compression.type": destination.compression, **destination.producer},
        transaction_timeout_s=destination.transaction_timeout_s,
        delivery_timeout_s=min(destination.delivery_timeout_s, destination.transaction_timeout_s),
    )


def _dead_letters(
    source: OffsetRange, staged: StagedSlice, settings: SliceSettings, target: SliceTarget
) -> DeadLetterContext | None:
    topic_and_limits = target.dead_letter_topics.get(source.topic)
    dead_letter = settings.dead_letter
    if topic_and_limits is None or dead_letter is None:
        return None
    topic, limits = topic_and_limits
    compression = DEFAULT_COMPRESSION if settings.destination is None else settings.destination.compression
    return DeadLetterContext(
        topic=topic,
        form=dead_letter.form,
        header_families=dead_letter.header_families,
        oversized=dead_letter.oversized,
        correlation_header=dead_letter.correlation_header,
        redact=dead_letter.redact,
        max_record_bytes=limits.max_message_bytes,
        limits=limits,
        compression="none" if limits.uncompressed else compression,
        asset=settings.run.asset,
        run_id=settings.run.run_id,
        attempt=settings.run.attempt,
        group=settings.run.group,
        distribution=settings.run.provenance,
        segments=staged.segments,
        retries=staged.retries,
    )


def provenance_headers(provenance: Distribution) -> tuple[tuple[str, bytes], ...]:
    """Create the provenance headers of a slice's outputs. They are the same for all outputs of a slice."""
    named = {INSTANCE_HEADER: provenance.instance, WORKER_HEADER: provenance.worker, LEASE_HEADER: provenance.lease}
    return tuple((name, value.encode()) for name, value in named.items() if value is not None)

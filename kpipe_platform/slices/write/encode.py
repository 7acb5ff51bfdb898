"""Encode a stage's output as record keys, values and headers. See ``kpipe_platform.spark.sink.rows`` for columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kpipe_platform.codecs import RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.values import StagedSlice
from kpipe_platform.spark.columns import key_type, value_type
from kpipe_platform.spark.sink.output_schema import check_output_schema, columns_of
from kpipe_platform.spark.sink.rows import WriterRows, output_rows
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.convert import is_records, to_frame
from kpipe_platform.spark.stage.whole_records import of_whole_records


@dataclass(frozen=True)
class EncodedOutput:
    """A slice's output as rows for the writer, not evaluated yet.

    Args:
        rows: The rows.
        columns: Name and type of each column of the stage's output.
    """

    rows: WriterRows
    columns: Sequence[tuple[str, str]]


def encode_output(
    staged: StagedSlice,
    topic: KafkaTopic,
    settings: SliceSettings,
    *,
    single_pass: bool = False,
    whole_records: bool = False,
) -> EncodedOutput:
    """Encode a stage's output for a topic.

    Args:
        staged: The slice with its stage's output.
        topic: The destination topic.
        settings: The run's settings.
        single_pass: Allow single-pass writing, if nothing else reads the rows. Default False.
        whole_records: Omit all rows of a record if the stage set one of them aside, because parallel writers cannot
            omit them. Default False.

    Raises:
        ConfigError: The output does not match the topic.
        IncompatibleSchemaError: The schema registry refuses the output's schema.
    """
    registry = None if settings.destination is None else settings.destination.connection.registry()
    topic = topic.resolved_to_write(registry)
    values = [source.value_codec for source, _ in staged.sources.values()]
    read = [field for value in values if value.is_struct for field in value.fields]
    frame = to_frame(settings.engine.spark_session, staged.output, topic.value_codec, read)
    if is_records(staged.output):
        # Records contain their own key, timestamp and encoded value.
        topic = replace(topic, value_codec=RawCodec(), key_column=None, timestamp_column=None)
    topic = topic.resolved_to_write(registry, value_type(frame.schema), key_type(frame.schema, topic.key_column))
    codec = topic.value_codec
    if whole_records:
        frame = of_whole_records(frame, staged.notes)
    check_output_schema(frame, codec, topic.name)
    source = _only_source(staged) if single_pass else None
    rows = output_rows(
        frame,
        staged.slice,
        codec,
        key=topic.key_column,
        timestamp=topic.timestamp_column,
        key_codec=topic.key_codec,
        source=source,
    )
    return EncodedOutput(rows, columns_of(frame))


def _only_source(staged: StagedSlice) -> SliceFrames | None:
    """Return the source of a slice that can be written in a single pass; None if its rows are read more than once."""
    if len(staged.sources) != 1 or staged.notes.faults or staged.notes.counts:
        return None
    ((_, source),) = staged.sources.values()
    return None if source.shared or source.cache.is_filled else source

"""Encode a stage's output as record keys, values and headers. See ``kpipe_platform.spark.sink.rows`` for columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kpipe_platform.codecs import Codec, JsonCodec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.slices.values import StagedSlice
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
    staged: StagedSlice, topic: KafkaTopic, session: Any, *, single_pass: bool = False, whole_records: bool = False
) -> EncodedOutput:
    """Encode a stage's output for a topic.

    Args:
        staged: The slice with its stage's output.
        topic: The destination topic.
        session: The Spark session.
        single_pass: Allow single-pass writing, if nothing else reads the rows. Default False.
        whole_records: Omit all rows of a record if the stage set one of them aside, because parallel writers cannot
            omit them. Default False.

    Raises:
        ConfigError: The output does not match the topic.
    """
    values = [source.value_codec for source, _ in staged.sources.values()]
    read = [field for value in values if isinstance(value, JsonCodec) for field in value.fields]
    frame = to_frame(session, staged.output, topic.value_codec, read)
    codec: Codec = topic.value_codec
    key, timestamp = topic.key_column, topic.timestamp_column
    if is_records(staged.output):
        # Records contain their own key, timestamp and encoded value.
        codec, key, timestamp = RawCodec(), None, None
    if whole_records:
        frame = of_whole_records(frame, staged.notes)
    check_output_schema(frame, codec, topic.name)
    source = _only_source(staged) if single_pass else None
    rows = output_rows(frame, staged.slice, codec, key=key, timestamp=timestamp, source=source)
    return EncodedOutput(rows, columns_of(frame))


def _only_source(staged: StagedSlice) -> SliceFrames | None:
    """Return the source of a slice that can be written in a single pass; None if its rows are read more than once."""
    if len(staged.sources) != 1 or staged.notes.faults or staged.notes.counts:
        return None
    ((_, source),) = staged.sources.values()
    return None if source.shared or source.cache.is_filled else source

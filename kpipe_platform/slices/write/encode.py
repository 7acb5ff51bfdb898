"""Encode a stage's output as record keys, values and headers. See ``kpipe_platform.spark.sink.rows`` for columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe_platform.codecs import JsonCodec, RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import Destination
from kpipe_platform.errors import ConfigError
from kpipe_platform.slices.values import StagedSlice
from kpipe_platform.spark.sink.encode import Routing, codec_of_all, refuse_unused, value_fields
from kpipe_platform.spark.sink.output_schema import check_output_schema, columns_of
from kpipe_platform.spark.sink.rows import WriterRows, output_rows, rows_of_topics
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform.spark.stage.convert import is_records, to_frame
from kpipe_platform.spark.stage.whole_records import of_whole_records


@dataclass(frozen=True)
class EncodedOutput:
    """A slice's output as rows for the writer, not evaluated yet.

    Args:
        rows: The rows.
        columns: Name and type of each column of the values, by topic.
    """

    rows: WriterRows
    columns: Mapping[str, Sequence[tuple[str, str]]]


def encode_output(
    staged: StagedSlice,
    destination: Destination,
    session: Any,
    *,
    single_pass: bool = False,
    whole_records: bool = False,
) -> EncodedOutput:
    """Encode a stage's output for its topic or topics.

    Args:
        staged: The slice with its stage's output.
        destination: The topics.
        session: The Spark session.
        single_pass: Allow single-pass writing, if nothing else reads the rows. Default False.
        whole_records: Omit all rows of a record if the stage set one of them aside, because parallel writers cannot
            omit them. Default False.

    Raises:
        ConfigError: The output does not match a topic.
    """
    source = _only_source(staged) if single_pass else None
    if not destination.has_outputs:
        return _encode(staged, staged.output, destination, session, source, whole_records=whole_records)
    # Several outputs read the rows several times.
    source = source if len(destination.topics) == 1 else None
    each = [
        _encode(staged, staged.output[name], Destination((topic,)), session, source, whole_records=whole_records)
        for name, topic in zip(destination.names, destination.topics, strict=True)
    ]
    columns = {topic: columns for encoded in each for topic, columns in encoded.columns.items()}
    return EncodedOutput(rows_of_topics([encoded.rows for encoded in each]), columns)


def _encode(
    staged: StagedSlice,
    output: Any,
    destination: Destination,
    session: Any,
    source: SliceFrames | None,
    *,
    whole_records: bool,
) -> EncodedOutput:
    values = [topic.value_codec for topic, _ in staged.sources.values()]
    read = [field for value in values if isinstance(value, JsonCodec) for field in value.fields]
    topics, by = destination.topics, destination.by
    if is_records(output):
        if by is not None and output:
            msg = f"the stage returned list[KafkaRecord], but column {by!r} names the topic of each row"
            raise ConfigError(msg, fix="return a DataFrame with this column, or use @kafka_multi_asset")
        codec = topics[0].value_codec
        # Records contain their own key, timestamp, headers, partition and encoded value.
        topics = tuple(KafkaTopic(topic.name, value_codec=RawCodec()) for topic in topics)
    else:
        codec = codec_of_all(topics)
    frame = to_frame(session, output, codec, read)
    if whole_records:
        frame = of_whole_records(frame, staged.notes)
    if is_records(output):
        rows = output_rows(frame, staged.slice, topics[:1])
        return EncodedOutput(rows, {topics[0].name: columns_of(frame)})
    for topic in topics:
        check_output_schema(frame, topic.value_codec, topic.name, value_fields(frame.schema, topic, by))
    if by is not None:
        refuse_unused(frame.schema, topics, by)
    routing = None if by is None else Routing(by, destination.names)
    rows = output_rows(frame, staged.slice, topics, routing=routing, source=source)
    return EncodedOutput(
        rows, {topic.name: columns_of(frame, value_fields(frame.schema, topic, by)) for topic in topics}
    )


def _only_source(staged: StagedSlice) -> SliceFrames | None:
    """Return the source of a slice that can be written in a single pass; None if its rows are read more than once."""
    if len(staged.sources) != 1 or staged.notes.faults or staged.notes.counts:
        return None
    ((_, source),) = staged.sources.values()
    return None if source.shared or source.cache.is_filled else source

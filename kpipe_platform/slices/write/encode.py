"""Encode a stage's output as record keys, values and headers. See ``kpipe_platform.spark.sink.rows`` for columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe_platform.codecs import RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.codecs.topics import Destination
from kpipe_platform.errors import ConfigError
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.values import StagedSlice
from kpipe_platform.spark.columns import key_type, value_type
from kpipe_platform.spark.sink.encode import (
    Routing,
    declared_fields,
    key_of_topic,
    refuse_unused,
    value_fields,
    with_keys,
)
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
    settings: SliceSettings,
    *,
    single_pass: bool = False,
    whole_records: bool = False,
) -> EncodedOutput:
    """Encode a stage's output for its topic or topics.

    Args:
        staged: The slice with its stage's output.
        destination: The topics.
        settings: The run's settings.
        single_pass: Allow single-pass writing, if nothing else reads the rows. Default False.
        whole_records: Omit all rows of a record if the stage set one of them aside, because parallel writers cannot
            omit them. Default False.

    Raises:
        ConfigError: The output does not match a topic.
        IncompatibleSchemaError: The schema registry refuses the output's schema.
    """
    source = _only_source(staged) if single_pass else None
    if not destination.has_outputs:
        return _encode(staged, staged.output, destination, settings, source, whole_records=whole_records)
    # Several outputs read the rows several times.
    source = source if len(destination.topics) == 1 else None
    each = [
        _encode(staged, staged.output[name], Destination((topic,)), settings, source, whole_records=whole_records)
        for name, topic in zip(destination.names, destination.topics, strict=True)
    ]
    columns = {topic: columns for encoded in each for topic, columns in encoded.columns.items()}
    return EncodedOutput(rows_of_topics([encoded.rows for encoded in each]), columns)


def _encode(
    staged: StagedSlice,
    output: Any,
    destination: Destination,
    settings: SliceSettings,
    source: SliceFrames | None,
    *,
    whole_records: bool,
) -> EncodedOutput:
    registry = None if settings.destination is None else settings.destination.connection.registry()
    topics, by = tuple(topic.resolved_to_write(registry) for topic in destination.topics), destination.by
    values = [source.value_codec for source, _ in staged.sources.values()]
    read = [field for value in values if value.is_struct for field in value.fields]
    if by is not None and is_records(output) and output:
        msg = f"the stage returned list[KafkaRecord], but column {by!r} names the topic of each row"
        raise ConfigError(msg, fix="return a DataFrame with this column, or use @kafka_multi_asset")
    frame = to_frame(settings.engine.spark_session, output, topics[0].value_codec, read, declared_fields(topics))
    if is_records(output):
        # Records contain their own key, timestamp, headers, partition and encoded value. An empty list has no topic.
        topics, by = (KafkaTopic(topics[0].name, value_codec=RawCodec()),), None
    if whole_records:
        frame = of_whole_records(frame, staged.notes)
    frame = with_keys(frame, topics)
    schema = frame.schema
    topics = tuple(
        topic.resolved_to_write(
            registry, value_type(value_fields(schema, topic, by)), key_type(schema, key_of_topic(topic))
        )
        for topic in topics
    )
    for topic in topics:
        check_output_schema(frame, topic.value_codec, topic.name, value_fields(schema, topic, by))
    if by is not None:
        refuse_unused(schema, topics, by)
    routing = None if by is None else Routing(by, destination.names)
    rows = output_rows(frame, staged.slice, topics, routing=routing, source=source)
    columns = {topic.name: columns_of(frame, value_fields(schema, topic, by)) for topic in topics}
    return EncodedOutput(rows, columns)


def _only_source(staged: StagedSlice) -> SliceFrames | None:
    """Return the source of a slice that can be written in a single pass; None if its rows are read more than once."""
    if len(staged.sources) != 1 or staged.notes.faults or staged.notes.counts:
        return None
    ((_, source),) = staged.sources.values()
    return None if source.shared or source.cache.is_filled else source

"""Read: the rows of a planned slice, decoded, as lazy DataFrames."""

from __future__ import annotations

from collections.abc import Mapping

from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.slices.settings import SliceSettings
from kpipe_platform.slices.values import Sources
from kpipe_platform.spark.failures import classified
from kpipe_platform.spark.source.reader import SliceReader
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs


def read_sources(
    slice_: Slice,
    topics: Mapping[str, KafkaTopic],
    settings: SliceSettings,
    *,
    by_client: bool = False,
    find_ids: bool = False,
) -> Sources:
    """Read each topic's part of a slice; no Spark job runs yet, except to find the ids of schemas.

    Args:
        slice_: The slice.
        topics: The topics by input name.
        settings: The run's settings.
        by_client: Read with kpipe's own client, because Spark's source fails on a record's timestamp.
        find_ids: Find the ids of the schemas of all records first.

    Returns:
        The rows by input name, each with its topic, whose codecs know the schemas.

    Raises:
        KpipeError: The Spark session is unavailable, or it does not have the Kafka connector.
    """
    return {name: _read_topic(slice_, topic, settings, by_client, find_ids) for name, topic in topics.items()}


def _read_topic(
    slice_: Slice, topic: KafkaTopic, settings: SliceSettings, by_client: bool, find_ids: bool
) -> tuple[KafkaTopic, SliceFrames]:
    tasks = settings.engine.tasks_at_once
    if settings.destination is not None and settings.destination.delivery == "at_least_once":
        # Several writers for one partition would not keep its order.
        tasks = min(tasks, len(slice_.ranges) * settings.parallelism.writers_per_partition)
    with classified(str(slice_)):
        rows = SliceReader(
            settings.engine.spark_session,
            settings.source,
            slice_,
            topic.name,
            isolation=settings.policy.isolation,
            parallelism=max(tasks // slice_.lanes, 1),
            by_client=by_client,
        )
        ids = rows.schema_ids(TopicCodecs.of(topic)) if find_ids and topic.is_framed else None
        topic = topic.resolved(settings.source.registry(), ids)
        return topic, rows.decoded(TopicCodecs.of(topic))

"""Loading a dead-letter topic as a table. No offsets move, and nobody's group is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kpipe_platform.codecs import RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError, StageFailedError, TopicNotFoundError
from kpipe_platform.io_managers.step import DEAD_LETTERS
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.resources.destination import KafkaDeadLetterDestination
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.resources.spark import SparkEngine
from kpipe_platform.spark.failures import classify, is_sparks
from kpipe_platform.spark.source.dead_letter_counts import DeadLetterCounts, count_dead_letters
from kpipe_platform.spark.source.dead_letters import dead_letter_frame, newest_ranges
from kpipe_platform.spark.stage.convert import to_form

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class DeadLetterTable:
    """A dead-letter topic that an asset shows as a table.

    Args:
        source_topic: Topic of the records that failed.
        topic: The dead-letter topic.
        max_records: The newest offsets of each partition, so many at most; None: all.
    """

    source_topic: str
    topic: str
    max_records: int | None = None

    def as_metadata(self) -> dict[str, Any]:
        """Metadata of the asset: read as slices, its records are bytes."""
        declared = {"source_topic": self.source_topic, "topic": self.topic, "max_records": self.max_records}
        return {**KafkaTopic(self.topic, value_codec=RawCodec()).as_metadata(), DEAD_LETTERS: declared}

    @classmethod
    def of(cls, metadata: Mapping[str, Any] | None) -> DeadLetterTable | None:
        """What an asset declares; None for any other asset."""
        declared = (metadata or {}).get(DEAD_LETTERS)
        value = declared.value if isinstance(declared, dg.MetadataValue) else declared
        return None if value is None else cls(**value)


class TableReader(NamedTuple):
    """The resources that read a dead-letter topic as a table.

    Args:
        source: Isolation, and the prefix of Spark's group ids.
        spark: The engine.
        dead_letter: Where the topic is; None: where the source is.
    """

    source: KafkaSource
    spark: SparkEngine
    dead_letter: KafkaDeadLetterDestination | None


@dataclass(frozen=True)
class OpenTable:
    """A dead-letter topic as it was when it was looked at.

    Args:
        ranges: What it holds, a range a partition; none where it does not exist yet.
        frame: The table, lazily.
    """

    ranges: list[OffsetRange]
    frame: DataFrame

    def counts(self) -> DeadLetterCounts:
        """Count the dead letters; no Spark job for an empty topic.

        Raises:
            KpipeError: The brokers or the engine did not answer.
        """
        if all(r.is_empty for r in self.ranges):
            return DeadLetterCounts()
        try:
            return count_dead_letters(self.frame)
        except Exception as error:
            if not is_sparks(error):
                raise
            found = classify(error, ", ".join(map(str, self.ranges)))
            # There is no stage here that could have failed.
            if isinstance(found, StageFailedError):
                raise
            raise found from error


def open_table(reader: TableReader, declared: DeadLetterTable, asset_key: dg.AssetKey) -> OpenTable:
    """Look at a dead-letter topic as it is now.

    Args:
        reader: Where the topic is, and what reads it.
        declared: The topic.
        asset_key: Asset of the table; Spark's group ids are named after it.

    Raises:
        TopicNotFoundError: The topic does not exist, and it is not one that the first run creates.
    """
    where = reader.dead_letter or reader.source
    isolation = reader.source.isolation
    with Clients(where.connection.settings) as clients:
        try:
            ranges = newest_ranges(clients, declared.topic, isolation, declared.max_records)
        except TopicNotFoundError as error:
            if not _will_be_created(reader.dead_letter, declared):
                msg = f"{error.message}, so there are no dead letters of topic {declared.source_topic!r} to show"
                fix = (
                    "give dead_letter_asset(topic=...) the name that KafkaDeadLetterDestination has, or create it: "
                    f"kpipe topics create {declared.topic}"
                )
                raise TopicNotFoundError(msg, fix=fix, topic=declared.topic) from error
            ranges = []
        frame = dead_letter_frame(
            reader.spark.spark_session,
            clients,
            ranges,
            isolation=isolation,
            group=reader.source.group(asset_key),
            parts=reader.spark.tasks_at_once,
        )
    return OpenTable(ranges, frame)


def _will_be_created(destination: KafkaDeadLetterDestination | None, declared: DeadLetterTable) -> bool:
    """Whether the topic is missing only because no run has created it: then nothing has failed yet."""
    if destination is None or not destination.create_topic:
        return False
    return destination.topic_for(declared.source_topic) == declared.topic


def load_dead_letters(reader: TableReader, declared: DeadLetterTable, asset_key: dg.AssetKey, form: str) -> Any:
    """The table in the form that an input asks for.

    Raises:
        ConfigError: It asks for records.
        TopicNotFoundError: As `open_table`.
    """
    if form == "records":
        msg = f"asset {asset_key.to_user_string()} is a table of dead letters, which list[KafkaRecord] cannot hold"
        raise ConfigError(msg, fix="annotate a Spark, pandas or polars DataFrame, or a pyarrow Table")
    return to_form(open_table(reader, declared, asset_key).frame, form, RawCodec())

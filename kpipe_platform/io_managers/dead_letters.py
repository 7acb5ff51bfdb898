"""Load a dead-letter topic as a table, without committing offsets or reading a group's offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from kpipe_platform.codecs import RawCodec
from kpipe_platform.codecs.topic import KafkaTopic
from kpipe_platform.errors import ConfigError, StageFailedError, TopicNotFoundError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.metadata_keys import DEAD_LETTER_TABLE
from kpipe_platform.resources.destination import KafkaDeadLetterDestination
from kpipe_platform.resources.source import KafkaSource
from kpipe_platform.slices.settings import Engine
from kpipe_platform.spark.failures import classify, is_sparks
from kpipe_platform.spark.source.dead_letter_counts import DeadLetterCounts, count_dead_letters
from kpipe_platform.spark.source.dead_letters import dead_letter_frame, newest_ranges
from kpipe_platform.spark.stage.convert import to_form

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class DeadLetterTable:
    """Declares that an asset shows a dead-letter topic as a table.

    Args:
        source_topic: Topic of the records that failed.
        topic: The dead-letter topic.
        max_records: Number of newest offsets to read from each partition; None: all.
    """

    source_topic: str
    topic: str
    max_records: int | None = None

    def as_metadata(self) -> dict[str, Any]:
        """Return the asset's metadata. If the topic is read as slices, its records are raw bytes."""
        declared = {"source_topic": self.source_topic, "topic": self.topic, "max_records": self.max_records}
        return {**KafkaTopic(self.topic, value_codec=RawCodec()).as_metadata(), DEAD_LETTER_TABLE: declared}

    @classmethod
    def of(cls, metadata: Mapping[str, Any] | None) -> DeadLetterTable | None:
        """Read the declaration from an asset's metadata; None if there is none."""
        declared = (metadata or {}).get(DEAD_LETTER_TABLE)
        value = declared.value if isinstance(declared, dg.MetadataValue) else declared
        return None if value is None else cls(**value)


class TableReader(NamedTuple):
    """The resources that read a dead-letter topic as a table.

    Args:
        source: Source, for the isolation level and the prefix of Spark's group ids.
        engine: The engine.
        dead_letter: Destination whose cluster has the topic; None: the source's cluster.
    """

    source: KafkaSource
    engine: Engine
    dead_letter: KafkaDeadLetterDestination | None


@dataclass(frozen=True)
class OpenTable:
    """A snapshot of a dead-letter topic.

    Args:
        ranges: The offset range of each partition; empty if the topic does not exist yet.
        frame: The table, not evaluated yet.
    """

    ranges: list[OffsetRange]
    frame: DataFrame

    def counts(self) -> DeadLetterCounts:
        """Count the dead letters. An empty topic starts no Spark job.

        Raises:
            KpipeError: The brokers or the engine did not respond.
        """
        if all(r.is_empty for r in self.ranges):
            return DeadLetterCounts()
        try:
            return count_dead_letters(self.frame)
        except Exception as error:
            if not is_sparks(error):
                raise
            found = classify(error, ", ".join(map(str, self.ranges)))
            # This job has no stage, so it is not a stage failure.
            if isinstance(found, StageFailedError):
                raise
            raise found from error


def open_table(reader: TableReader, declared: DeadLetterTable, asset_key: dg.AssetKey) -> OpenTable:
    """Open the current contents of a dead-letter topic.

    Args:
        reader: The resources that read the topic.
        declared: The topic.
        asset_key: Asset of the table; Spark's group ids are named after it.

    Raises:
        TopicNotFoundError: The topic does not exist, and no run would create it.
    """
    where = reader.dead_letter or reader.source
    isolation = reader.source.isolation
    with Clients(where.connection_settings) as clients:
        try:
            ranges = newest_ranges(clients, declared.topic, isolation, declared.max_records)
        except TopicNotFoundError as error:
            if not _will_be_created(reader.dead_letter, declared):
                msg = f"{error.message}, so the dead letters of topic {declared.source_topic!r} cannot be loaded"
                fix = (
                    "set dead_letter_asset(topic=...) to the topic of KafkaDeadLetterDestination, or create the topic: "
                    f"kpipe topics create {declared.topic}"
                )
                raise TopicNotFoundError(msg, fix=fix, topic=declared.topic) from error
            ranges = []
        frame = dead_letter_frame(
            reader.engine.spark_session,
            clients,
            ranges,
            isolation=isolation,
            group=reader.source.group(asset_key),
            parts=reader.engine.tasks_at_once,
        )
    return OpenTable(ranges, frame)


def _will_be_created(destination: KafkaDeadLetterDestination | None, declared: DeadLetterTable) -> bool:
    """Return whether a run will create the missing topic. If so, there are no dead letters yet."""
    if destination is None or not destination.create_topic:
        return False
    return destination.topic_for(declared.source_topic) == declared.topic


def load_dead_letters(reader: TableReader, declared: DeadLetterTable, asset_key: dg.AssetKey, form: str) -> Any:
    """Load the table in the given form.

    Raises:
        ConfigError: The form is ``records``.
        TopicNotFoundError: See `open_table`.
    """
    if form == "records":
        msg = f"asset {asset_key.to_user_string()} is a table of dead letters: list[KafkaRecord] cannot hold its rows"
        raise ConfigError(
            msg, fix="annotate the parameter as a Spark, pandas or polars DataFrame, or as a pyarrow Table"
        )
    return to_form(open_table(reader, declared, asset_key).frame, form, RawCodec())

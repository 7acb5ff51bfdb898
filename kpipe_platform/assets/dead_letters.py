"""A dead-letter topic as an asset: what failed, why, where and when, in Dagster's UI and as a table."""

# No "from __future__ import annotations": Dagster reads the classes in an asset function's annotations.
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from kpipe_platform import metadata_keys as keys
from kpipe_platform.assets.bars import bar_chart
from kpipe_platform.assets.source import Source, declared_metadata, require_source
from kpipe_platform.dead_letters.envelope.times import to_iso
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.dead_letters import DeadLetterTable, OpenTable, open_table
from kpipe_platform.io_managers.kafka import KafkaIOManager
from kpipe_platform.io_managers.step import ASSET_METADATA, refuse_unknown, topic_of
from kpipe_platform.spark.sink.output_schema import columns_of
from kpipe_platform.spark.source.dead_letter_counts import DeadLetterCounts, ReasonCount

# Maximum number of rows of a metadata table. Dagster stores the complete table with every event.
_TABLE_ROWS = 100
_HOURS = 48


def dead_letter_asset(
    source: Source,
    *,
    topic: str = "{source_topic}.dlq",
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    group_name: str | None = None,
    io_manager_key: str = "kafka_io_manager",
    max_records: int | None = None,
    deps: Sequence[Any] = (),
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    **asset_kwargs: Any,
) -> dg.AssetsDefinition:
    """Declare the dead letters of a topic as an asset.

    A materialization counts the dead letters that are in the topic at that time, by reason, source partition, asset and
    hour. The metadata shows the counts as tables and a chart. Nothing is stored, and no offsets move. A downstream
    asset loads the current dead letters as the type of its annotation: a Spark, pandas or polars DataFrame, or a
    pyarrow Table. `kpipe_platform.spark.source.dead_letters.dead_letter_columns` lists the columns.

    Args:
        source: The asset of the topic whose records failed, from ``kafka_topic_asset``; its ``dagster.AssetSpec``; or
            a Kafka asset.
        topic: The dead-letter topic, as in ``KafkaDeadLetterDestination``.
        name: Asset name; None: the source's name with the suffix ``_dead_letters``.
        key_prefix: Prefix of the asset key; None: the source's.
        group_name: Dagster asset group.
        io_manager_key: Resource key of the KafkaIOManager that reads the topic.
        max_records: Number of newest offsets to read from each partition; None: all.
        deps: Further upstream assets, for example those that write the dead letters.
        description: Text for the UI.
        metadata: Further metadata.
        **asset_kwargs: Further arguments of ``dagster.asset``, for example ``automation_condition``.

    Returns:
        An asset without partitions that depends on the source.

    Raises:
        ConfigError: An argument is invalid.
    """
    if max_records is not None and max_records < 1:
        msg = f"dead_letter_asset(max_records={max_records}) is out of range"
        raise ConfigError(msg, fix="set it to 1 or more, or to None to read every dead letter")
    require_source(source, "dead_letter_asset(source=...)")
    refuse_unknown(metadata, ASSET_METADATA, "dead_letter_asset(...)")
    source_topic = topic_of(declared_metadata(source), source.key).name
    declared = DeadLetterTable(source_topic, topic.replace("{source_topic}", source_topic), max_records)
    prefix, own = source.key.path[:-1], source.key.path[-1]
    if key_prefix is not None:
        prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix)

    # Without a type argument, the result has no value and no IO manager is called to store one.
    def show(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
        manager = getattr(context.resources, io_manager_key)
        if not isinstance(manager, KafkaIOManager):
            msg = (
                f"asset {context.asset_key.to_user_string()} needs a KafkaIOManager, but resource {io_manager_key!r} "
                f"is {type(manager).__name__}"
            )
            raise ConfigError(msg, fix=f'Definitions(resources={{"{io_manager_key}": KafkaIOManager(...)}})')
        table = open_table(manager.table_reader(), declared, context.asset_key)
        counts = table.counts()
        context.log.info("topic %s has %s dead letters (%s)", declared.topic, counts.records, _places(table))
        return dg.MaterializeResult(metadata=metadata_of(table, counts))

    decorate = dg.asset(
        key=[*prefix, name or f"{own}_dead_letters"],
        deps=[source, *deps],
        metadata={**declared.as_metadata(), **(metadata or {})},
        group_name=group_name,
        io_manager_key=io_manager_key,
        required_resource_keys={io_manager_key} | asset_kwargs.pop("required_resource_keys", set()),
        description=description or f"Dead letters of topic {source_topic}, stored in topic {declared.topic}.",
        kinds=asset_kwargs.pop("kinds", {"kafka", "spark"}),
        **asset_kwargs,
    )
    made: dg.AssetsDefinition = decorate(show)
    return made


def _places(table: OpenTable) -> str:
    return ", ".join(map(str, table.ranges)) or "the topic does not exist yet"


def metadata_of(table: OpenTable, counts: DeadLetterCounts) -> dict[str, Any]:
    """Return the metadata of one materialization.

    Returns:
        By key: the number of dead letters; if there are any, their times, and tables by reason, source partition,
        asset and hour; if the topic exists, the offset ranges that were read; row count and column schema.
    """
    found: dict[str, Any] = {keys.DEAD_LETTERS: dg.MetadataValue.int(counts.records)}
    if counts.oldest_ms is not None and counts.newest_ms is not None:
        found |= {
            keys.OLDEST: dg.MetadataValue.timestamp(counts.oldest_ms / 1000),
            keys.NEWEST: dg.MetadataValue.timestamp(counts.newest_ms / 1000),
            keys.REASONS: _table([{**reason._asdict(), "share": _share(reason, counts)} for reason in counts.reasons]),
            keys.REASONS_CHART: dg.MetadataValue.md(
                bar_chart(
                    [(_title(reason), reason.records) for reason in counts.reasons],
                    title=f"Reasons for {counts.records:,} dead letters",
                )
            ),
            keys.BY_PARTITION: _table(
                [{"topic": topic, "partition": number, "records": n} for topic, number, n in counts.partitions]
            ),
            keys.BY_ASSET: _table([{"asset": asset, "records": n} for asset, n in counts.assets]),
            keys.BY_HOUR: _table([{"hour": _hour(ms), "records": n} for ms, n in counts.hours[-_HOURS:]]),
        }
    if table.ranges:
        found[keys.OFFSETS] = _table([{"partition": r.partition, "start": r.start, "end": r.end} for r in table.ranges])
    columns = [dg.TableColumn(column, kind) for column, kind in columns_of(table.frame)]
    return {
        **found,
        "dagster/row_count": dg.MetadataValue.int(counts.records),
        "dagster/column_schema": dg.TableSchema(columns=columns),
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows[:_TABLE_ROWS]])


def _share(reason: ReasonCount, counts: DeadLetterCounts) -> float:
    return round(reason.records / counts.records, 4)


def _title(reason: ReasonCount) -> str:
    """Return a one-line title of a reason, or "unknown" if it has no details."""
    parts = [part for part in (reason.component, reason.kind, reason.exception_type) if part]
    return " · ".join(dict.fromkeys(parts)) or "unknown"


def _hour(ms: int) -> str:
    text = to_iso(ms)
    return str(ms) if text is None else f"{text[:16]}Z"

"""Counts of dead letters by reason, source partition, asset and hour, from one Spark job that reads them once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_HOUR_MS = 3_600_000


class ReasonCount(NamedTuple):
    """The number of records that failed for one reason."""

    component: str | None
    kind: str | None
    exception_type: str | None
    records: int


@dataclass(frozen=True)
class DeadLetterCounts:
    """Counts of the dead letters in a topic.

    Args:
        records: Number of dead letters.
        oldest_ms: When the first record was dead-lettered, milliseconds since the epoch. If a dead letter does not
            contain this time, its message timestamp is used. None if there are no dead letters.
        newest_ms: When the last record was dead-lettered, likewise.
        reasons: Counts by reason, the most frequent first.
        partitions: Counts as (source topic, source partition, records), in order. Topic and partition are None for dead
            letters that do not contain them.
        assets: Counts as (asset, records), the most frequent first.
        hours: Counts as (start of the hour in milliseconds since the epoch, records), in order.
    """

    records: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    reasons: tuple[ReasonCount, ...] = ()
    partitions: tuple[tuple[str | None, int | None, int], ...] = ()
    assets: tuple[tuple[str | None, int], ...] = ()
    hours: tuple[tuple[int, int], ...] = ()


def count_dead_letters(frame: DataFrame) -> DeadLetterCounts:
    """Count dead letters. Runs a Spark job.

    Args:
        frame: Rows of `kpipe_platform.spark.source.dead_letters.dead_letter_columns`.
    """
    at_ms = F.unix_millis(F.coalesce("dead_lettered_at", "dlq_timestamp"))
    slim = frame.select(
        *("component", "kind", "exception_type", "source_topic", "source_partition", "asset"),
        at_ms.alias("at_ms"),
        (at_ms - F.pmod(at_ms, F.lit(_HOUR_MS))).alias("hour_ms"),
    )
    sets = [["component", "kind", "exception_type"], ["source_topic", "source_partition"], ["asset"], ["hour_ms"], []]
    names = [name for each in sets for name in each]
    rows = (
        slim.groupingSets(sets, *names)
        .agg(
            *[F.grouping(name).alias(f"no_{name}") for name in names],
            F.count(F.lit(1)).alias("records"),
            F.min("at_ms").alias("oldest_ms"),
            F.max("at_ms").alias("newest_ms"),
        )
        .collect()
    )
    counts: dict[tuple[str, ...], list[Any]] = {tuple(each): [] for each in sets}
    for row in rows:
        counts[tuple(name for name in names if not row[f"no_{name}"])].append(row)
    reasons, partitions, assets, hours, total = counts.values()
    if not total:
        return DeadLetterCounts()
    return DeadLetterCounts(
        records=total[0]["records"],
        oldest_ms=total[0]["oldest_ms"],
        newest_ms=total[0]["newest_ms"],
        reasons=tuple(
            sorted((ReasonCount(*(row[n] for n in (*sets[0], "records"))) for row in reasons), key=_by_count)
        ),
        partitions=tuple(
            sorted(
                ((row["source_topic"], row["source_partition"], row["records"]) for row in partitions),
                key=lambda each: (each[0] or "", -1 if each[1] is None else each[1]),
            )
        ),
        assets=tuple(sorted(((row["asset"], row["records"]) for row in assets), key=_by_count)),
        hours=tuple(sorted((row["hour_ms"], row["records"]) for row in hours)),
    )


def _by_count(row: tuple[Any, ...]) -> tuple[int, str]:
    return -row[-1], str(row[:-1])

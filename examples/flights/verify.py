"""Verify that every flight was processed exactly once, by reading the topics."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.dataset as ds
from confluent_kafka import Message

from examples.flights.reading import committed_records, group_lags
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS
from kpipe_platform.kafka.client.settings import ConnectionSettings

SOURCE_HEADER = "kpipe.source"
_EXPECTED_REASON = ("missing_field", "dep_time")

Coordinates = tuple[int, int]
"""Partition and offset in the topic of flights."""


@dataclass(frozen=True)
class Figures:
    """Counts of records.

    Args:
        records: Records in the topic of flights.
        enriched: Records in the topic of enriched flights.
        dead_letters: Records in the dead-letter topic.
        lost: Flights that are neither enriched nor a dead letter.
        duplicated: Flights that occur more than once, in one topic or in both.
        strays: Outputs and dead letters that do not belong to a flight.
        reasons: Dead letters by kind of fault and field.
        lag: Total lag of the consumer groups.
        table_rows: Rows of the table of delays.
    """

    records: int
    enriched: int
    dead_letters: int
    lost: int
    duplicated: int
    strays: int = 0
    reasons: dict[tuple[str, str | None], int] = field(default_factory=dict)
    lag: int = 0
    table_rows: int = 0

    def problems(self, *, records: int, dead_letters: int) -> list[str]:
        """Return the differences from the expected counts; empty if there are none.

        Args:
            records: Number of flights.
            dead_letters: Number of flights that never departed.
        """
        counts = {
            f"records in {FLIGHTS}": (self.records, records),
            f"records in {ENRICHED}": (self.enriched, records - dead_letters),
            f"records in {DEAD_LETTERS}": (self.dead_letters, dead_letters),
            "lost flights": (self.lost, 0),
            "duplicated flights": (self.duplicated, 0),
            "records without a flight": (self.strays, 0),
            "lag of the consumer groups": (self.lag, 0),
            "rows in the table of delays": (self.table_rows, records - dead_letters),
            "dead letters for a missing dep_time": (self.reasons.get(_EXPECTED_REASON, 0), dead_letters),
        }
        return [
            f"{what}: {actual:,}, expected {right:,}" for what, (actual, right) in counts.items() if actual != right
        ]


@dataclass(frozen=True)
class Outcomes:
    """What the topics contain about every flight.

    Args:
        flights: Coordinates of the flights.
        ends: Number of outputs and dead letters of each flight; those without a flight have the key None.
        enriched: Number of outputs.
        reasons: Dead letters by kind of fault and field.
        seconds: Duration of the count.
    """

    flights: set[Coordinates]
    ends: Counter[Coordinates | None]
    enriched: int
    reasons: Counter[tuple[str, str | None]]
    seconds: float

    @property
    def read(self) -> int:
        """Number of records that were read."""
        return len(self.flights) + self.ends.total()


def count_outcomes(settings: ConnectionSettings) -> Outcomes:
    """Read the committed records of all topics.

    Raises:
        KpipeError: A topic is missing, or the brokers do not respond.
    """
    began = time.monotonic()
    flights = set(map(_place, committed_records(settings, FLIGHTS)))
    ends = Counter(_source(message.headers()) for message in committed_records(settings, ENRICHED))
    enriched = ends.total()
    reasons: Counter[tuple[str, str | None]] = Counter()
    for message in committed_records(settings, DEAD_LETTERS):
        envelope = json.loads(message.value() or b"{}")
        original, fault = envelope["original"], envelope["fault"]
        ends[(original["partition"], original["offset"]) if original["topic"] == FLIGHTS else None] += 1
        reasons[(fault["kind"], fault["field"])] += 1
    return Outcomes(flights, ends, enriched, reasons, time.monotonic() - began)


def figures_of(outcomes: Outcomes, settings: ConnectionSettings, *, groups: dict[str, str], table: Path) -> Figures:
    """Count what happened to every flight, and read the lag and the table.

    Args:
        outcomes: What the topics contain.
        settings: Connection settings.
        groups: Topic by consumer group that reads it.
        table: Folder of the table of delays.

    Raises:
        KpipeError: A topic is missing, or the brokers do not respond.
    """
    flights, ends = outcomes.flights, outcomes.ends
    lags = [group_lags(settings, group, topic) for group, topic in groups.items()]
    return Figures(
        records=len(flights),
        enriched=outcomes.enriched,
        dead_letters=ends.total() - outcomes.enriched,
        lost=len(flights - ends.keys()),
        duplicated=sum(1 for where, times in ends.items() if times > 1 and where in flights),
        strays=sum(times for where, times in ends.items() if where not in flights),
        reasons=dict(outcomes.reasons),
        lag=sum(sum(lag.values()) for lag in lags),
        table_rows=ds.dataset(table, partitioning="hive").count_rows() if table.exists() else 0,
    )


def _place(message: Message) -> Coordinates:
    partition, offset = message.partition(), message.offset()
    # A consumed record has both.
    return (partition or 0, offset or 0)


def _source(headers: object) -> Coordinates | None:
    """Return the coordinates in the last source header, ``topic/partition/offset``, if it names the flights."""
    for name, value in reversed(headers if isinstance(headers, list) else []):
        if name == SOURCE_HEADER:
            topic, partition, offset = value.decode().rsplit("/", 2)
            return (int(partition), int(offset)) if topic == FLIGHTS else None
    return None

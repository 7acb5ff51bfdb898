"""``python -m benchmarks.dagster_events``: what a materialization leaves in Dagster's storage, in rows and in bytes.

A real instance (SQLite, as `dagster dev` has it), a real broker, a local Spark; runs of slices of different sizes.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef
from pyspark.sql import DataFrame

import kpipe_platform as kp
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import produce
from kpipe_platform.testing.topics import create_topic

_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
# Records of a slice, and slices of a run.
_RUNS = ((10, 1), (10_000, 1), (1_000, 10), (100, 30))


@dataclass(frozen=True)
class Volume:
    """What is in the storage.

    Args:
        rows: Rows of all event tables: the run's own, and the index over all runs.
        event_bytes: Serialized events of them.
        disk_bytes: All files of the storage.
    """

    rows: int
    event_bytes: int
    disk_bytes: int

    def __sub__(self, other: Volume) -> Volume:
        return Volume(self.rows - other.rows, self.event_bytes - other.event_bytes, self.disk_bytes - other.disk_bytes)


def volume(home: Path) -> Volume:
    """Count what an instance's folder holds."""
    rows = event_bytes = 0
    for file in home.rglob("*.db"):
        with closing(sqlite3.connect(file)) as database:
            # What stands in the write-ahead log counts too, once.
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for count, length in _event_rows(database):
                rows += count
                event_bytes += length
    return Volume(rows, event_bytes, sum(file.stat().st_size for file in home.rglob("*") if file.is_file()))


def _event_rows(database: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "event_logs" in tables:
        yield database.execute("SELECT count(*), coalesce(sum(length(event)), 0) FROM event_logs").fetchone()


def main() -> None:
    """Measure, and print a table."""
    print("| slices a run | records a slice | event rows a run | event kB a run | kB a slice | disk kB a run |")
    print("|---:|---:|---:|---:|---:|---:|")
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        overrides = {"telemetry": {"enabled": False}}
        with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides=overrides)) as instance:
            engine = kp.SparkEngine()
            # The first run of an asset makes tables and rows that later ones share.
            run(broker.bootstrap_servers, engine, instance, "orders", 1, 1)
            for number, (records, slices) in enumerate(_RUNS):
                before = volume(home)
                run(broker.bootstrap_servers, engine, instance, f"orders-{number}", records, slices)
                found = volume(home) - before
                kb = found.event_bytes / 1000
                disk = found.disk_bytes / 1000
                print(
                    f"| {slices} | {records:,} | {found.rows} | {kb:.0f} | {kb / slices:.1f} | {disk:.0f} |", flush=True
                )


def run(
    servers: str, engine: kp.SparkEngine, instance: dg.DagsterInstance, topic: str, records: int, slices: int
) -> None:
    """One run that takes so many slices of so many records.

    Raises:
        RuntimeError: It took others.
    """
    for name in (topic, f"{topic}.copy"):
        create_topic(servers, name)
    value = json.dumps({"id": 1, "note": "a" * 100}).encode()
    produce(servers, topic, ({"value": value} for _ in range(records * slices)))
    connection = kp.KafkaConnection(bootstrap_servers=servers)
    source = kp.kafka_topic_asset(
        topic, name="orders", value_codec=kp.JsonCodec("id BIGINT, note STRING"), partitions=1
    )

    @kp.kafka_asset(
        source=source,
        topic=kp.KafkaTopic(f"{topic}.copy"),
        scaling=kp.PartitionScaling(max_records=records),
        max_slices=slices,
    )
    def copied(orders: DataFrame) -> DataFrame:
        return orders

    manager = kp.KafkaIOManager(
        source=kp.KafkaSource(connection=connection, group_prefix=topic, start="earliest"),
        destination=kp.KafkaDestination(connection=connection),
        dead_letter=kp.KafkaDeadLetterDestination(connection=connection, create_topic=True),
        spark=engine,
    )
    result = dg.materialize(
        [source, copied],
        selection=[copied],
        partition_key="0",
        resources={"kafka_io_manager": manager},
        instance=instance,
        run_config=_QUIET,
    )
    (event,) = result.asset_materializations_for_node("copied")
    read = int(str(event.metadata["kpipe/records_read"].value))
    if read != records * slices:
        raise RuntimeError(f"the run read {read} records, not {records * slices}")


if __name__ == "__main__":
    main()

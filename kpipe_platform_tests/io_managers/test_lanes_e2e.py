"""RELAX_ORDERING_WITHIN_PARTITION: parts of one partition's slice are staged and written at the same time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import (
    ExecutionMode,
    FaultAction,
    JsonCodec,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    PartitionScaling,
    SparkEngine,
)
from kpipe_platform.errors import ConfigError, DeadLetterLimitError, EngineUnavailableError, RecordFaultError
from kpipe_platform.kafka.model.commit_metadata import CommitMetadata

from .conftest import BAD, Orders, incompressible, order
from .killing import writers_at

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RELAXED = PartitionScaling(execution_mode=ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION, max_in_flight_per_partition=2)


def stored(orders: Orders, partition: int = 0) -> CommitMetadata:
    found = orders.manager.source.committed(orders.group, orders.source)[partition]
    assert found is not None
    assert found.metadata is not None
    return found.metadata


def manager_with(orders: Orders, **changes: Any) -> KafkaIOManager:
    """The orders' IO manager with other parts."""
    names = ("source", "destination", "dead_letter", "spark")
    return KafkaIOManager(**{**{name: getattr(orders.manager, name) for name in names}, **changes})


def test_parts_are_written_at_once_and_everything_is_there_once(orders: Orders) -> None:
    good = [order(n) for n in range(4000)]
    orders.send(*good[:700], BAD, *good[700:3300], BAD, *good[3300:])
    found = orders.metadata(orders.run(orders.asset(scaling=RELAXED)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (4002, 4000, 2)
    assert sorted(orders.ids()) == list(range(4000))
    assert len(orders.letters()) == 2
    assert (orders.committed(), orders.lag()) == (4002, 0)
    assert (stored(orders).lane, stored(orders).lanes) == (2, 2)
    assert found["transactions_per_slice"] == 2
    # Each part is in the partition's order.
    written = orders.ids()
    for part in ([n for n in written if n < 2000], [n for n in written if n >= 2000]):
        assert part == sorted(part)
    # The next slice goes on, with or without parts.
    orders.send(order(4000))
    assert orders.metadata(orders.run(orders.asset()))["records_read"] == 1


@pytest.mark.parametrize(
    ("delivery", "records"),
    # Without a transaction the parts are those that are read, which are larger.
    [("exactly_once", 2_000), ("at_least_once", 40_000)],
)
def test_parts_overlap_in_time(orders: Orders, tmp_path: Path, delivery: Any, records: int) -> None:
    """Each part's stage waits until the other's runs too: one after the other would never end."""
    orders.send(*(order(n) for n in range(records)))
    folder = str(tmp_path)

    @F.udf("bigint")
    def meets_the_other(number):  # type: ignore[no-untyped-def]  # Spark reads hints as an Arrow UDF's
        half = number // (records // 2)
        if number % (records // 2) == 0:
            Path(folder, f"part-{half}").touch()
            end = time.monotonic() + 60
            while not Path(folder, f"part-{1 - half}").exists():
                if time.monotonic() > end:
                    raise RuntimeError("the other part is not at work")
                time.sleep(0.01)
        return number

    stage = lambda orders: orders.withColumn("id", meets_the_other("id"))  # noqa: E731
    destination = KafkaDestination(connection=orders.manager.source.connection, delivery=delivery)
    manager = manager_with(orders, destination=destination)
    found = orders.metadata(orders.run(orders.asset(stage, scaling=RELAXED), manager=manager))
    assert found["records_written"] == records
    assert ("transactions_per_slice" in found) is (delivery == "exactly_once")
    assert sorted(orders.ids()) == list(range(records))
    assert orders.lag() == 0


def test_a_record_that_stops_the_run_leaves_the_parts_before_it_committed(orders: Orders) -> None:
    good = [order(n) for n in range(4000)]
    orders.send(*good[:3000], BAD, *good[3000:])
    asset = orders.asset(scaling=RELAXED, on_fault=FaultAction.STOP)
    with pytest.raises(RecordFaultError, match=f"{orders.source}/0 offset 3000"):
        orders.run(asset)
    assert orders.committed() == 2000
    assert sorted(orders.ids()) == list(range(2000))
    held = orders.instance.get_latest_materialization_event(dg.AssetKey("enriched"))
    assert held is not None
    assert held.asset_materialization is not None
    ranges: Any = held.asset_materialization.metadata["kpipe/ranges"].value
    assert [(r["start"], r["end"]) for r in ranges] == [(0, 2000)]
    found = orders.metadata(orders.run(orders.asset(scaling=RELAXED)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (2001, 2000, 1)
    assert sorted(orders.ids()) == list(range(4000))


def test_a_record_that_the_destination_refuses_is_dead_lettered(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(target={"config": {"max.message.bytes": "20000"}})
    good = [order(n) for n in range(3000)]
    orders.send(*good[:500], order(-1, value={"note": incompressible(30_000)}), *good[500:])
    found = orders.metadata(orders.run(orders.asset(scaling=RELAXED)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (3001, 3000, 1)
    assert sorted(orders.ids()) == list(range(3000))
    assert len(orders.letters()) == 1


def test_a_stage_that_fails_on_a_record_is_isolated(orders: Orders) -> None:
    orders.send(*(order(n) for n in range(2000)))

    def stage(orders: DataFrame) -> DataFrame:
        fails = F.raise_error(F.lit("poison")).cast("string")
        return orders.withColumn("note", F.when(F.col("id") == 1500, fails).otherwise(F.col("note")))

    found = orders.metadata(orders.run(orders.asset(stage, scaling=RELAXED)))
    assert (found["records_written"], found["dead_letters"]) == (1999, 1)
    assert sorted(orders.ids()) == [n for n in range(2000) if n != 1500]
    assert orders.lag() == 0


def test_the_limit_is_the_whole_slices(orders: Orders) -> None:
    # All the bad ones are in the second part: the first alone would have been committed.
    orders.send(*(order(n) for n in range(1000)), *[BAD] * 600, *(order(n) for n in range(1000, 1400)))
    asset = orders.asset(scaling=RELAXED, max_dead_letter_ratio=0.2)
    with pytest.raises(DeadLetterLimitError):
        orders.run(asset)
    assert (orders.ids(), orders.committed()) == ([], None)


def test_every_partition_of_an_unpartitioned_asset_has_parts(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(2)
    orders.send(*({**order(n), "partition": n % 2} for n in range(4000)))
    asset = orders.asset(scaling=RELAXED, partitioned=False)
    assert orders.metadata(orders.run(asset, None))["records_written"] == 4000
    assert sorted(orders.ids()) == list(range(4000))
    assert [stored(orders, n).unit for n in (0, 1)] == [f"{orders.group}/{orders.source}/all"] * 2


@pytest.mark.parametrize(("after", "committed"), [(0, None), (1, 1000)])
def test_a_writer_that_is_killed_before_and_between_the_commits_of_its_parts(
    orders: Orders, spark: SparkSession, tmp_path: Path, after: int, committed: int | None
) -> None:
    orders.send(*(order(n) for n in range(2000)))
    with (
        writers_at("hang_before_commit", spark, tmp_path, killed=True, after=after) as reached,
        pytest.raises(EngineUnavailableError),
    ):
        orders.run(orders.asset(scaling=RELAXED))
    assert reached.exists()
    found = orders.metadata(orders.run(orders.asset(scaling=RELAXED)))
    assert found["records_written"] == 2000 - (committed or 0)
    assert [item["start"] for item in found["ranges"]] == [committed or 0]
    assert sorted(orders.ids()) == list(range(2000))
    assert orders.lag() == 0


def test_what_cannot_be_taken_in_parts_is_refused_before_any_work(orders: Orders) -> None:
    orders.send(order(1))

    @dg.asset(
        name="enriched",
        io_manager_key="kafka_io_manager",
        partitions_def=orders.topic_asset.partitions_def,
        ins={"orders": dg.AssetIn(orders.topic_asset.key)},
        metadata=KafkaTopic(orders.target, value_codec=JsonCodec()).as_metadata(),
    )
    def plain(orders: DataFrame) -> DataFrame:
        return orders

    source = orders.manager.source
    relaxed = KafkaSource(connection=source.connection, group_prefix=source.group_prefix, scaling=RELAXED)
    with pytest.raises(ConfigError, match="@kafka_asset"):
        orders.run(plain, manager=manager_with(orders, source=relaxed))
    unknown = manager_with(orders, spark=SparkEngine(master="spark://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="the number of tasks"):
        orders.run(orders.asset(scaling=RELAXED), manager=unknown)
    assert orders.committed() is None


def test_scaling_that_does_not_fit_its_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="RELAX_ORDERING_WITHIN_PARTITION"):
        PartitionScaling(max_in_flight_per_partition=2)
    parallel = ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS
    with pytest.raises(ValueError, match="RELAX_ORDERING_WITHIN_PARTITION"):
        PartitionScaling(execution_mode=parallel, max_in_flight_per_partition=2)
    assert PartitionScaling(execution_mode=parallel).in_flight_per_partition == 1
    assert PartitionScaling(execution_mode=RELAXED.execution_mode).in_flight_per_partition == 4
    assert json.loads(RELAXED.model_dump_json())["execution_mode"] == "relax_ordering_within_partition"
    # A declaration as asset metadata comes back the same.
    assert PartitionScaling(**json.loads(RELAXED.model_dump_json())) == RELAXED

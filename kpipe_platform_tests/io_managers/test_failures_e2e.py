"""What goes wrong in the middle of a slice: exactly once all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kpipe_platform import KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource
from kpipe_platform.errors import (
    BrokerUnavailableError,
    EngineUnavailableError,
    KpipeError,
    OffsetConflictError,
)

from .conftest import BAD, Orders, order
from .killing import writers_at

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_stage_that_fails_once_mid_partition(make_orders: Callable[..., Orders], tmp_path: Path) -> None:
    """Spark retries the task; outputs and dead letters are there once, in order within each partition."""
    marker = str(tmp_path / "failed")
    orders = make_orders(target={"partitions": 2})

    @F.udf("bigint")
    def fails_once(number):  # type: ignore[no-untyped-def]  # Spark reads hints as an Arrow UDF's
        if number == 250 and not Path(marker).exists():
            Path(marker).touch()
            raise RuntimeError("once")
        return number

    good = [order(n) for n in range(500)]
    orders.send(*good[:300], BAD, *good[300:])
    stage = lambda orders: orders.withColumn("id", fails_once("id"))  # noqa: E731
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert Path(marker).exists()
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (501, 500, 1)
    assert sorted(orders.ids()) == list(range(500))
    assert len(orders.letters()) == 1
    for partition in (0, 1):
        offsets = [
            int((r.header("kpipe.source") or b"").rsplit(b"/", 1)[1])
            for r in sorted(orders.outputs(), key=lambda r: r.offset)
            if r.partition == partition
        ]
        assert offsets == sorted(offsets)
        assert offsets


@pytest.mark.parametrize("place", ["hang_before_offsets", "hang_before_commit"])
def test_a_writer_that_is_killed_after_the_flush_and_before_the_commit(
    orders: Orders, spark: SparkSession, tmp_path: Path, place: str
) -> None:
    orders.send(*(order(n) for n in range(50)), BAD)
    with writers_at(place, spark, tmp_path, killed=True) as reached, pytest.raises(EngineUnavailableError):
        orders.run(orders.asset())
    # Each try of the task wrote everything, and none of them a record that a reader sees.
    flushed = len(orders.outputs(settled=False, isolation="read_uncommitted"))
    assert (reached.exists(), flushed % 50, flushed >= 50) == (True, 0, True)
    assert orders.outputs(settled=False, settle_s=0) == []
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (50, 1)
    assert orders.ids() == list(range(50))
    assert len(orders.letters()) == 1
    assert orders.lag() == 0


def test_two_runs_of_one_partition_at_the_same_time(orders: Orders) -> None:
    orders.send(*(order(n) for n in range(100)))
    both_planned = threading.Barrier(2, timeout=60)

    # Calls with Spark's DataFrames do not overlap in one process.
    def stage(orders: pd.DataFrame) -> pd.DataFrame:
        both_planned.wait()
        return orders

    results: list[Any] = []

    def run() -> None:
        try:
            # An ephemeral instance is one SQLite connection: each run has its own, as two deployments would.
            with dg.DagsterInstance.ephemeral() as instance:
                own = replace(orders, instance=instance)
                results.append(own.metadata(own.run(own.asset(stage))))
        except KpipeError as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    won = [r for r in results if isinstance(r, dict)]
    lost = [r for r in results if isinstance(r, Exception)]
    assert len(won) == 1, results
    assert won[0]["records_written"] == 100
    assert isinstance(lost[0], OffsetConflictError), lost
    assert orders.ids() == list(range(100))
    assert orders.committed() == 100


def test_no_broker_at_all(orders: Orders) -> None:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:9", request_timeout_s=1.5)
    manager = KafkaIOManager(
        source=KafkaSource(connection=connection),
        destination=KafkaDestination(connection=connection),
        spark=orders.manager.spark,
    )
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:9"):
        orders.run(orders.asset(on_fault=None), manager=manager)
    assert time.monotonic() - began < 10

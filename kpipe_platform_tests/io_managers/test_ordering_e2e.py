"""What keeps its order, and what runs at the same time, by the mode of execution."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd
import pytest

from kpipe_platform import ExecutionMode, KafkaDestination, KafkaIOManager, PartitionScaling

from .conftest import Orders, order
from .unchanged import as_arrow, as_pandas, as_polars, as_records

pytestmark = [pytest.mark.broker, pytest.mark.spark]


# Both modes take one part of a partition at a time.
@pytest.mark.parametrize(
    ("mode", "delivery"),
    [
        (ExecutionMode.PRESERVE_PARTITION_ORDER, "exactly_once"),
        (ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, "at_least_once"),
    ],
)
def test_a_partition_keeps_its_order_unless_that_is_relaxed(orders: Orders, mode: ExecutionMode, delivery: Any) -> None:
    # More than one task reads and decodes them, where the writer can put them in order again.
    orders.send(*(order(n) for n in range(40_000)))
    manager = KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(connection=orders.manager.source.connection, delivery=delivery),
        dead_letter=orders.manager.dead_letter,
        spark=orders.manager.spark,
    )
    orders.run(orders.asset(scaling=PartitionScaling(execution_mode=mode)), manager=manager)
    assert orders.ids() == list(range(40_000))


@pytest.mark.parametrize("stage", [as_pandas, as_arrow, as_polars, as_records])
def test_rows_made_in_python_keep_their_order_at_least_once(orders: Orders, stage: Callable[..., Any]) -> None:
    """Spark spreads local rows over several tasks, each of which would write its own."""
    orders.send(*(order(n) for n in range(10_000)))
    destination = KafkaDestination(connection=orders.manager.source.connection, delivery="at_least_once")
    manager = orders.manager.model_copy(update={"destination": destination})
    orders.run(orders.asset(stage), manager=manager)
    assert orders.ids() == list(range(10_000))


@pytest.mark.parametrize("mode", list(ExecutionMode))
def test_partitions_of_a_range_run(make_orders: Callable[..., Orders], mode: ExecutionMode) -> None:
    """One after another where the order is preserved; else each stage waits until the other partition's runs too."""
    orders = make_orders(2)
    # Enough for parts of each partition's slice, where the mode allows them.
    orders.send(*({**order(n), "partition": n % 2} for n in range(4000)))
    several = mode is not ExecutionMode.PRESERVE_PARTITION_ORDER
    parts = 2 if mode is ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION else 1
    both, at_work = threading.Barrier(2, timeout=60), threading.Lock()

    # Calls with Spark's DataFrames do not overlap in one process.
    def stage(orders: pd.DataFrame) -> pd.DataFrame:
        if several:
            both.wait()
        else:
            assert at_work.acquire(blocking=False)
            orders.count()
            at_work.release()
        return orders

    asset = orders.asset(
        stage,
        scaling=PartitionScaling(execution_mode=mode),
        partitions_def=dg.StaticPartitionsDefinition(["0", "1"]),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
    assert orders.run(asset, None, tags=tags).success
    assert sorted(orders.ids()) == list(range(4000))
    assert orders.lag() == 0
    stored = orders.manager.source.committed(orders.group, orders.source)
    assert [stored[n].metadata.lanes for n in (0, 1)] == [parts, parts]

"""What a stage does with Dagster's context: it is called in a thread, after Dagster has seen the asset's output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import ExecutionMode, FaultAction, OffsetCommittingIOManager, PartitionScaling
from kpipe_platform.errors import PartitionsFailedError, StageFailedError

from .conftest import Orders, order
from .test_assets_e2e import FolderIOManager, whole_range

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def by_partition(orders: Orders, name: str = "ids") -> dict[str, Any]:
    """A name of the metadata, by partition, of the last materialization of each."""
    records = orders.instance.fetch_materializations(dg.AssetKey("enriched"), limit=100, ascending=True).records
    found = [record.asset_materialization for record in records]
    return {each.partition: each.metadata[name].value for each in found if each is not None and each.partition}


def asset_context(context: dg.AssetExecutionContext, orders: DataFrame) -> DataFrame:
    context.add_output_metadata({"ids": [row["id"] for row in orders.collect()]})
    return orders


def op_context(context: dg.OpExecutionContext, orders: DataFrame) -> DataFrame:
    context.add_output_metadata({"ids": [row["id"] for row in orders.collect()]}, output_name="result")
    return orders


def current(orders: DataFrame) -> DataFrame:
    context = dg.AssetExecutionContext.get()
    assert context.asset_key == dg.AssetKey("enriched")
    context.add_output_metadata({"ids": [row["id"] for row in orders.collect()]})
    return orders


@pytest.mark.parametrize("stage", [asset_context, op_context, current])
def test_each_slice_and_partition_has_its_own(make_orders: Callable[..., Orders], stage: Any) -> None:
    orders = make_orders(2)
    orders.send(*(order(n, partition=n % 2) for n in range(6)))
    bounds = PartitionScaling(max_records=2, execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS)
    asset = orders.asset(stage, scaling=bounds, max_slices=None, backfill_policy=dg.BackfillPolicy.single_run())
    assert orders.run(asset, None, tags=whole_range(2)).success
    assert by_partition(orders) == {"0": [4], "1": [5]}
    orders.send(order(6, partition=0))
    found = orders.metadata(orders.run(asset))
    assert (found["ids"], found["records_written"]) == ([6], 1)


def test_what_a_failed_slice_added_is_not_reported(make_orders: Callable[..., Orders]) -> None:
    def stage(context: dg.AssetExecutionContext, orders: DataFrame) -> DataFrame:
        ids = [row["id"] for row in orders.collect()]
        context.add_output_metadata({"ids": ids})
        if 3 in ids:
            raise ValueError("three")
        return orders

    orders = make_orders(2)
    orders.send(*(order(n, partition=n % 2) for n in range(4)))
    bounds = PartitionScaling(max_records=1)
    how: dict[str, Any] = {"scaling": bounds, "max_slices": None, "backfill_policy": dg.BackfillPolicy.single_run()}
    with pytest.raises(PartitionsFailedError):
        orders.run(orders.asset(stage, on_fault=FaultAction.STOP, **how), None, tags=whole_range(2))
    assert by_partition(orders) == {"0": [2], "1": [1]}


def test_isolation_reports_the_call_whose_rows_were_written(orders: Orders) -> None:
    def stage(context: dg.AssetExecutionContext, orders: DataFrame) -> DataFrame:
        assert dg.AssetExecutionContext.get().asset_key == dg.AssetKey("enriched")
        ids = [row["id"] for row in orders.collect()]
        context.add_output_metadata({"ids": ids, "kpipe/records_read": "not this"})
        if 1 in ids:
            raise ValueError("one")
        return orders

    orders.send(order(0), order(1), order(2))
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert (found["ids"], found["records_read"], found["dead_letters"]) == ([0, 2], 3, 1)


def test_unpartitioned_and_by_another_store(make_orders: Callable[..., Orders], tmp_path: Path) -> None:
    orders = make_orders(2)
    orders.send(order(1, partition=0), order(2, partition=1))
    asset = orders.asset(asset_context, partitioned=False, topic=None, io_manager_key="committing")
    committing = OffsetCommittingIOManager(inner=FolderIOManager(folder=str(tmp_path)))
    assert sorted(orders.metadata(orders.run(asset, None, resources={"committing": committing}))["ids"]) == [1, 2]


def test_what_dagster_cannot_store_fails_before_the_commit(orders: Orders) -> None:
    def stage(context: dg.AssetExecutionContext, orders: DataFrame) -> DataFrame:
        context.add_output_metadata({"bad": object()})
        return orders

    orders.send(order(1))
    with pytest.raises(StageFailedError, match="in the same way without any rows"):
        orders.run(orders.asset(stage))
    assert orders.committed() is None


def test_lanes_report_the_last_of_their_calls(orders: Orders) -> None:
    def stage(context: dg.AssetExecutionContext, orders: DataFrame) -> DataFrame:
        context.add_output_metadata({"called": True})
        return orders

    orders.send(*(order(n) for n in range(2_100)))
    relaxed = PartitionScaling(execution_mode=ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION)
    found = orders.metadata(orders.run(orders.asset(stage, scaling=relaxed)))
    assert (found["transactions_per_slice"], found["called"]) == (2, True)

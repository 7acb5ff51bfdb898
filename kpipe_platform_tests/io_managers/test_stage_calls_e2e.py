"""What a stage may do while it is called: temporary views, errors of any kind."""

from __future__ import annotations

import time
from collections.abc import Callable

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import ExecutionMode, PartitionScaling
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.errors import StageFailedError

from .conftest import Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_temporary_view_by_a_fixed_name_over_partitions_at_once(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(partitions=3)
    orders.send(*(order(10 * partition + n, partition=partition) for partition in range(3) for n in range(5)))

    def stage(orders: DataFrame) -> DataFrame:
        orders.createOrReplaceTempView("fixed_name")
        # Long enough for the other partitions to be there.
        time.sleep(0.5)
        return orders.sparkSession.sql("select * from fixed_name")

    scaling = PartitionScaling(execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, max_concurrent_partitions=3)
    orders.run(
        orders.asset(stage, scaling=scaling, backfill_policy=dg.BackfillPolicy.single_run()),
        None,
        tags={"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "2"},
    )
    assert sorted(orders.ids()) == [10 * partition + n for partition in range(3) for n in range(5)]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "exception", "message"),
    [
        (StageFailedError("mine"), "kpipe_platform.errors.StageFailedError", "mine"),
        (Unspeakable(), "Unspeakable", "whose text cannot be made: RuntimeError"),
    ],
)
def test_an_unusual_error_of_a_stage_is_the_records(
    orders: Orders, error: Exception, exception: str, message: str
) -> None:
    def stage(orders: DataFrame) -> DataFrame:
        if orders.where("id = 2").count():
            raise error
        return orders

    orders.send(*(order(n) for n in range(4)))
    orders.run(orders.asset(stage))
    assert orders.ids() == [0, 1, 3]
    (letter,) = orders.letters()
    fault = decode_envelope(letter.value or b"").fault
    assert fault.exception_type is not None
    assert fault.exception_type.endswith(exception)
    assert message in fault.message

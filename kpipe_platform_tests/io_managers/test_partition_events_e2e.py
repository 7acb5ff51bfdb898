"""What runs tell of their partitions, in the log and as observations: exactly once for each change."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import ExecutionMode, JsonCodec, KafkaTopic, PartitionScaling
from kpipe_platform.errors import KpipeError
from kpipe_platform_tests.metadata import plain_metadata

from .conftest import BAD, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LOGGER = "kpipe_platform.observability.events"
ON = PartitionScaling(emit_partition_execution_events=True)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


def short(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(e["event"], e["partition"], e.get("start"), e.get("end")) for e in events]


def observed(orders: Orders) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Event, Dagster partition and metadata of each observation that Dagster holds, the oldest first."""
    records = orders.instance.fetch_observations(dg.AssetKey("enriched"), limit=100, ascending=True).records
    found = [record.asset_observation for record in records]
    return [
        (str(o.metadata["kpipe/event"].value), o.partition, plain_metadata(o.metadata)) for o in found if o is not None
    ]


def kinds(orders: Orders) -> list[tuple[str, str | None]]:
    return [(event, partition) for event, partition, _ in observed(orders)]


def test_a_run_is_started_and_completed_once_whatever_its_slices(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send(*map(order, range(5)), BAD)
    scaling = PartitionScaling(emit_partition_execution_events=True, max_records=2)
    result = orders.run(orders.asset(scaling=scaling, max_slices=None))
    told = logged(caplog)
    assert short(told) == [("started", 0, 0, 2), ("completed", 0, 0, 6)]
    common = {"topic": orders.source, "group": orders.group, "asset": "enriched", "run_id": result.run_id}
    assert all(common.items() <= event.items() for event in told)
    counts = {"read": 6, "written": 5, "dead_letters": 1, "skipped": 0}
    assert counts.items() <= told[1].items()
    assert kinds(orders) == [("started", "0"), ("completed", "0")]
    metadata = observed(orders)[1][2]
    assert [metadata[key] for key in ("records_read", "records_written", "dead_letters", "records_skipped")] == [
        6,
        5,
        1,
        0,
    ]
    assert (metadata["offset_range"], metadata["run"], metadata["consumer_group"]) == (
        "[0, 6)",
        result.run_id,
        orders.group,
    )
    # They are the run's own, and of no materialization's weight.
    stored = orders.instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION)
    assert len(stored) == 2
    assert orders.metadata(result)["ranges"][0]["end"] == 6


def test_without_the_switch_there_are_no_observations_but_the_log(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send(order(1))
    orders.run(orders.asset())
    assert short(logged(caplog)) == [("started", 0, 0, 1), ("completed", 0, 0, 1)]
    assert observed(orders) == []


def test_a_run_that_finds_nothing_has_nothing_to_tell(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    orders.run(orders.asset(scaling=ON))
    assert logged(caplog) == []
    assert observed(orders) == []


def test_a_stage_that_fails_is_told_with_what_was_committed_before(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send(*map(order, range(4)))

    def failing(orders):  # type: ignore[no-untyped-def]
        if orders.where("id = 2").count():
            msg = "id 2 is not for us"
            raise RuntimeError(msg)
        return orders

    scaling = PartitionScaling(emit_partition_execution_events=True, max_records=2)
    with pytest.raises(RuntimeError, match="id 2"):
        orders.run(orders.asset(failing, scaling=scaling, max_slices=None, isolate=False))
    told = logged(caplog)
    assert short(told) == [("started", 0, 0, 2), ("failed", 0, 2, 4)]
    assert told[1]["read"] == 2
    assert "id 2 is not for us" in told[1]["reason"]
    assert kinds(orders) == [("started", "0"), ("failed", "0")]
    assert "id 2 is not for us" in observed(orders)[1][2]["reason"]
    assert orders.committed() == 2


def test_a_refused_plan_fails_without_a_start(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    asset = orders.asset(scaling=ON, topic=KafkaTopic("no.such.topic", value_codec=JsonCodec()))
    with pytest.raises(KpipeError):
        orders.run(asset)
    assert short(logged(caplog)) == [("failed", 0, None, None)]
    assert kinds(orders) == [("failed", "0")]


def test_each_partition_of_a_range_run_is_told_by_itself_and_one_fails(
    make_orders: Callable[..., Orders], caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_orders(3)
    for number in range(3):
        orders.send(order(number, partition=number))

    def failing(orders):  # type: ignore[no-untyped-def]
        if orders.where("id = 1").count():
            msg = "not this one"
            raise RuntimeError(msg)
        return orders

    scaling = PartitionScaling(
        emit_partition_execution_events=True, execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS
    )
    asset = orders.asset(failing, scaling=scaling, isolate=False, backfill_policy=dg.BackfillPolicy.single_run())
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "2"}
    with pytest.raises(KpipeError):
        orders.run(asset, None, tags=tags)
    expected = {
        ("started", 0, 0, 1),
        ("started", 1, 0, 1),
        ("started", 2, 0, 1),
        ("completed", 0, 0, 1),
        ("failed", 1, 0, 1),
        ("completed", 2, 0, 1),
    }
    told = short(logged(caplog))
    assert len(told) == 6
    assert set(told) == expected
    stored = kinds(orders)
    assert len(stored) == 6
    assert set(stored) == {(event, str(number)) for event, number, _, _ in expected}
    assert all(stored.index(("started", str(n))) < i for i, (e, n) in enumerate(stored) if e != "started")
    assert "not this one" in next(m["reason"] for e, _, m in observed(orders) if e == "failed")


def test_an_unpartitioned_asset_has_one_observation_for_a_change(
    make_orders: Callable[..., Orders], caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_orders(3)
    orders.send(order(0, partition=0), order(2, partition=2))
    orders.run(orders.asset(scaling=ON, partitioned=False), None)
    assert sorted(short(logged(caplog))) == [
        ("completed", 0, 0, 1),
        ("completed", 2, 0, 1),
        ("started", 0, 0, 1),
        ("started", 2, 0, 1),
    ]
    assert kinds(orders) == [("started", None), ("completed", None)]
    records, _ = observed(orders)[1][2]["by_partition"]
    rows = [record.data for record in records]
    assert [(row["partition"], row["start"], row["end"], row["read"]) for row in rows] == [(0, 0, 1, 1), (2, 0, 1, 1)]


def plain(orders: Orders, *, fails: bool = False, retry: dg.RetryPolicy | None = None) -> dg.AssetsDefinition:
    calls = []

    @dg.asset(
        name="enriched",
        ins={"orders": dg.AssetIn(orders.topic_asset.key)},
        partitions_def=orders.topic_asset.partitions_def,
        io_manager_key="kafka_io_manager",
        metadata={
            **KafkaTopic(orders.target, value_codec=JsonCodec()).as_metadata(),
            "kpipe/scaling": ON.model_dump(mode="json"),
        },
        retry_policy=retry,
    )
    def enriched(orders: DataFrame) -> DataFrame:
        calls.append(1)
        if fails and (retry is None or len(calls) == 1):
            msg = "the function fails"
            raise ValueError(msg)
        return orders

    return enriched


def test_a_plain_asset_tells_the_same(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    orders.send(order(1))
    orders.run(plain(orders))
    assert short(logged(caplog)) == [("started", 0, 0, 1), ("completed", 0, 0, 1)]
    assert kinds(orders) == [("started", "0"), ("completed", "0")]
    assert observed(orders)[1][2]["records_written"] == 1


def test_a_plain_asset_whose_function_fails_is_told_when_the_step_is_over(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    orders.send(order(1))
    with pytest.raises(ValueError, match="the function fails"):
        orders.run(plain(orders, fails=True))
    told = logged(caplog)
    assert short(told) == [("started", 0, 0, 1), ("failed", 0, 0, 1)]
    assert "the function fails" in told[1]["reason"]
    assert kinds(orders) == [("started", "0"), ("failed", "0")]


def test_a_plain_asset_that_is_retried_fails_and_begins_anew(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    orders.send(order(1))
    assert orders.run(plain(orders, fails=True, retry=dg.RetryPolicy(max_retries=1))).success
    # That the first attempt is over is known when the second one reads.
    assert [event for event, *_ in short(logged(caplog))] == ["started", "started", "failed", "completed"]
    assert "the function fails" in next(e for e in logged(caplog) if e["event"] == "failed")["reason"]

"""Time to loss on a real broker: by time, by size, lost already, and never."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from kpipe_platform import KafkaIOManager
from kpipe_platform.checks import retention_check
from kpipe_platform.errors import BrokerUnavailableError, ConfigError
from kpipe_platform_tests.io_managers.conftest import Orders, order

from .conftest import numbers, rows

pytestmark = [pytest.mark.broker, pytest.mark.spark]
RunCheck = Callable[..., dg.AssetCheckEvaluation]
Move = Callable[..., None]
HOUR = {"retention.ms": "3600000"}


def now_ms() -> int:
    return int(time.time() * 1000)


def check_of(orders: Orders, least_s: float, *, partitioned: bool = True) -> dg.AssetChecksDefinition:
    options: dict[str, Any] = {"source": orders.topic_asset, "partitioned": partitioned}
    return retention_check(orders.asset(), min_time_to_loss_s=least_s, **options)


def test_by_time(make_orders: Callable[..., Orders], run_check: RunCheck, move: Move) -> None:
    """Of an hour, the oldest record that waits has 600 s left, the one behind it 3,000 s."""
    orders = make_orders(config=HOUR)
    orders.send(order(0, timestamp_ms=now_ms() - 3_000_000), order(1, timestamp_ms=now_ms() - 600_000))
    check = check_of(orders, 900)
    found = run_check(orders, orders.asset(), check)
    assert not found.passed
    assert numbers(found)["time_to_loss_s"] == pytest.approx(600, abs=30)
    assert (numbers(found)["lag"], numbers(found)["retention"]) == (2, "retention.ms=3600000")
    assert "limit 900 s, with a lag of 2 offsets (retention.ms=3600000)" in found.description
    move(orders.group, orders.source, 1)
    found = run_check(orders, orders.asset(), check)
    assert found.passed
    assert numbers(found)["time_to_loss_s"] == pytest.approx(3000, abs=30)


def test_nothing_waits(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(config=HOUR)
    orders.send(order(0, timestamp_ms=now_ms() - 3_599_000))
    asset = orders.asset()
    check = retention_check(asset, min_time_to_loss_s=900)
    for _ in range(2):
        (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
        assert found.passed
        assert (numbers(found)["time_to_loss_s"], numbers(found)["lag"]) == ("never", 0)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"retention.ms": "-1"}, "off: no retention.ms and no retention.bytes"),
        ({"cleanup.policy": "compact", "retention.ms": "3600000"}, "off: cleanup.policy=compact"),
    ],
)
def test_retention_that_is_off(
    make_orders: Callable[..., Orders], run_check: RunCheck, config: dict[str, str], shown: str
) -> None:
    orders = make_orders(config=config)
    orders.send(order(0, timestamp_ms=now_ms() - 3_500_000))
    found = run_check(orders, orders.asset(), check_of(orders, 900))
    assert found.passed
    assert (numbers(found)["time_to_loss_s"], numbers(found)["retention"]) == ("never", shown)


def test_compaction_and_deletion(make_orders: Callable[..., Orders], run_check: RunCheck) -> None:
    orders = make_orders(config={"cleanup.policy": "compact,delete", **HOUR})
    orders.send(order(0, timestamp_ms=now_ms() - 3_000_000))
    found = run_check(orders, orders.asset(), check_of(orders, 900))
    assert not found.passed
    assert numbers(found)["time_to_loss_s"] == pytest.approx(600, abs=30)


def test_by_size(make_orders: Callable[..., Orders], run_check: RunCheck, move: Move) -> None:
    """100 records in 100 s of about 1,000 bytes, kept up to 200,000: as much again fits in about as long."""
    orders = make_orders(config={"retention.ms": "-1", "retention.bytes": "200000"})
    base = now_ms() - 100_000
    orders.send(*({"value": b"x" * 979, "timestamp_ms": base + n * 1000} for n in range(100)))
    found = run_check(orders, orders.asset(), check_of(orders, 200))
    assert not found.passed
    assert numbers(found)["time_to_loss_s"] == pytest.approx(100, rel=0.2)
    assert "about 1004 bytes per offset" in found.description
    move(orders.group, orders.source, 90)
    assert numbers(run_check(orders, orders.asset(), check_of(orders, 50)))["time_to_loss_s"] > 150


def test_more_waits_than_is_kept(make_orders: Callable[..., Orders], run_check: RunCheck) -> None:
    orders = make_orders(config={"retention.ms": "-1", "retention.bytes": "50000"})
    orders.send(*({"value": b"x" * 979} for n in range(100)))
    found = run_check(orders, orders.asset(), check_of(orders, 1))
    assert not found.passed
    assert numbers(found)["time_to_loss_s"] == 0.0


def test_deleted_before_it_was_read_and_this_partition_only(
    make_orders: Callable[..., Orders], run_check: RunCheck, move: Move, delete_records: Callable[[str, int, int], None]
) -> None:
    """DeleteRecords up to 50, group at 10: 40 offsets are lost in partition 1, none elsewhere."""
    orders = make_orders(3, config={"retention.ms": "-1"})
    orders.send(*(order(n, partition=1) for n in range(100)), order(100, partition=0))
    move(orders.group, orders.source, 10, partition=1)
    delete_records(orders.source, 1, 50)
    check = check_of(orders, 1)
    found = {key: run_check(orders, orders.asset(), check, key) for key in "012"}
    assert {key: (e.passed, numbers(e)["offsets_lost"]) for key, e in found.items()} == {
        "0": (True, 0),
        "1": (False, 40),
        "2": (True, 0),
    }
    assert numbers(found["1"])["log_start"] == 50
    assert found["1"].description == (f"{orders.source}/1: 40 offsets [10, 50) were deleted before they were read")
    whole = run_check(orders, orders.asset(), check_of(orders, 1, partitioned=False), None)
    assert {n: (row["passed"], row["offsets_lost"]) for n, row in rows(whole).items()} == {
        "0": (True, 0),
        "1": (False, 40),
        "2": (True, 0),
    }


def test_markers_alone_are_no_loss(make_orders: Callable[..., Orders], run_check: RunCheck) -> None:
    orders = make_orders(config=HOUR)
    orders.send(order(0, timestamp_ms=now_ms() - 3_500_000), transaction="abort")
    found = run_check(orders, orders.asset(), check_of(orders, 900))
    assert found.passed
    assert (numbers(found)["lag"], numbers(found)["time_to_loss_s"]) == (2, "never")


def test_brokers_that_are_away_are_no_pass(orders: Orders, run_check: RunCheck, unreachable: KafkaIOManager) -> None:
    with pytest.raises(BrokerUnavailableError):
        run_check(orders, orders.asset(), check_of(orders, 1), manager=unreachable)


def test_bounds(orders: Orders) -> None:
    with pytest.raises(ConfigError, match="min_time_to_loss_s is 0"):
        check_of(orders, 0)

"""The share of failed records in the last materialization of this partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from kpipe_platform import FaultAction
from kpipe_platform.checks import dead_letter_ratio_check
from kpipe_platform.errors import ConfigError
from kpipe_platform_tests.io_managers.conftest import BAD, Orders, order

from .conftest import numbers, rows

pytestmark = [pytest.mark.broker, pytest.mark.spark]
RunCheck = Callable[..., dg.AssetCheckEvaluation]


def test_at_and_above_the_bound_and_the_last_materialization_only(orders: Orders) -> None:
    asset = orders.asset()
    check = dead_letter_ratio_check(asset, max_dead_letter_ratio=0.25)
    orders.send(*(order(n) for n in range(3)), BAD)
    (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
    assert found.passed
    assert numbers(found)["dead_letter_ratio"] == 0.25
    orders.send(*(order(n) for n in range(3)), BAD, BAD)
    (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
    assert not found.passed
    assert found.description == (
        "partition 0: 2 of 5 records failed (40.00%): 2 dead-lettered, 0 skipped; limit 25.00%"
    )
    assert {
        name: numbers(found)[name] for name in ("records_read", "dead_letters", "records_skipped", "dead_letter_ratio")
    } == {
        "records_read": 5,
        "dead_letters": 2,
        "records_skipped": 0,
        "dead_letter_ratio": 0.4,
    }
    # A slice of nothing has no share, and hides none: it is the last one.
    (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
    assert found.passed
    assert (numbers(found)["records_read"], numbers(found)["dead_letter_ratio"]) == (0, None)


def test_a_check_of_one_partition_does_not_read_another(
    make_orders: Callable[..., Orders], run_check: RunCheck
) -> None:
    """Skipped records count; partition 2 was never materialized."""
    orders = make_orders(3)
    asset = orders.asset(on_fault=FaultAction.SKIP)
    check = dead_letter_ratio_check(asset, max_dead_letter_ratio=0.1)
    orders.send({**BAD, "partition": 0}, order(1, partition=0), order(2, partition=1))
    failed = orders.run(asset, "0", others=[check]).get_asset_check_evaluations()[0]
    passed = orders.run(asset, "1", others=[check]).get_asset_check_evaluations()[0]
    assert [(e.partition, e.passed, numbers(e)["records_skipped"]) for e in (failed, passed)] == [
        ("0", False, 1),
        ("1", True, 0),
    ]
    missing = run_check(orders, asset, check, "2")
    assert (missing.passed, missing.description) == (True, "partition 2: there is no materialization yet")
    whole = dead_letter_ratio_check(asset, max_dead_letter_ratio=0.1, partitioned=False)
    found = run_check(orders, asset, whole, None)
    assert not found.passed
    assert {n: row["passed"] for n, row in rows(found).items()} == {"partition 0": False, "partition 1": True}


def test_an_unpartitioned_asset(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(2)
    asset = orders.asset(partitioned=False)
    check = dead_letter_ratio_check(asset, max_dead_letter_ratio=0.1)
    orders.send({**BAD, "partition": 0}, order(1, partition=1))
    (found,) = orders.run(asset, None, others=[check]).get_asset_check_evaluations()
    assert (found.passed, numbers(found)["dead_letter_ratio"]) == (False, 0.5)
    assert found.description.startswith("enriched: 1 of 2 records failed")


def test_a_materialization_that_was_reported_by_hand_counts_for_nothing(orders: Orders, run_check: RunCheck) -> None:
    asset = orders.asset()
    check = dead_letter_ratio_check(asset, max_dead_letter_ratio=0.1)
    by_hand = dg.AssetMaterialization("enriched", partition="0")
    orders.instance.report_runless_asset_event(by_hand)
    assert "no materialization yet" in (run_check(orders, asset, check).description or "")
    orders.send(BAD, order(1))
    orders.run(asset)
    orders.instance.report_runless_asset_event(by_hand)
    found = run_check(orders, asset, check)
    assert (found.passed, numbers(found)["dead_letter_ratio"]) == (False, 0.5)


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_bounds(orders: Orders, ratio: Any) -> None:
    with pytest.raises(ConfigError, match="max_dead_letter_ratio"):
        dead_letter_ratio_check(orders.asset(), max_dead_letter_ratio=ratio)

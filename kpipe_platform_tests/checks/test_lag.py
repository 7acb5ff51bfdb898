"""Lag: numbers of this partition, ages from the records, and a broker that is away is no pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from kpipe_platform import KafkaIOManager
from kpipe_platform.checks import lag_check
from kpipe_platform.errors import BrokerUnavailableError, ConfigError, TopicNotFoundError
from kpipe_platform.testing.topics import delete_topic
from kpipe_platform_tests.io_managers.conftest import Orders, order

from .conftest import numbers, rows

pytestmark = [pytest.mark.broker, pytest.mark.spark]
RunCheck = Callable[..., dg.AssetCheckEvaluation]
FOREVER = {"retention.ms": "-1"}


def now_ms() -> int:
    return int(time.time() * 1000)


class TestRecords:
    def test_below_at_and_above_the_bound(self, orders: Orders, run_check: RunCheck) -> None:
        asset = orders.asset()
        check = lag_check(asset, max_lag=5, source=orders.topic_asset)
        orders.send(*(order(n) for n in range(5)))
        found = run_check(orders, asset, check)
        assert found.passed
        assert numbers(found) == {
            "partition_count": 1,
            "partitions_failed": 0,
            "partitions_not_known": 0,
            "committed": None,
            "log_end": 5,
            "lag": 5,
            "oldest_offset": None,
            "oldest_age_s": None,
        }
        orders.send(order(5), order(6))
        found = run_check(orders, asset, check)
        assert not found.passed
        assert found.severity is dg.AssetCheckSeverity.ERROR
        assert found.description == f"{orders.source}/0: lag 7 offsets, 2 above the limit of 5"

    def test_with_its_asset_it_sees_what_is_left(self, orders: Orders) -> None:
        asset = orders.asset()
        check = lag_check(asset, max_lag=0, max_age_s=60)
        orders.send(*(order(n) for n in range(3)))
        for _ in range(2):
            (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
            assert found.passed
            assert (numbers(found)["committed"], numbers(found)["lag"]) == (3, 0)
            assert found.description.endswith("no lag")


class TestPartitions:
    def test_a_run_of_a_partition_reports_that_one_only(
        self, make_orders: Callable[..., Orders], run_check: RunCheck
    ) -> None:
        """One of three partitions grows; the others' checks do not see it."""
        orders = make_orders(3)
        asset = orders.asset()
        check = lag_check(asset, max_lag=10, source=orders.topic_asset)
        orders.send(*(order(n, partition=1) for n in range(50)), order(50, partition=2))
        found = {key: run_check(orders, asset, check, key) for key in "012"}
        assert {key: (e.partition, e.passed, numbers(e)["lag"]) for key, e in found.items()} == {
            "0": ("0", True, 0),
            "1": ("1", False, 50),
            "2": ("2", True, 1),
        }

    def test_without_a_partition_all_are_in_a_table(
        self, make_orders: Callable[..., Orders], run_check: RunCheck
    ) -> None:
        orders = make_orders(3)
        asset = orders.asset()
        options: dict[str, Any] = {
            "source": orders.topic_asset,
            "partitioned": False,
            "severity": dg.AssetCheckSeverity.WARN,
        }
        check = lag_check(asset, max_lag=10, **options)
        orders.send(*(order(n, partition=1) for n in range(50)), order(50, partition=2))
        found = run_check(orders, asset, check, None)
        assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
        assert found.description == f"{orders.source}/1: lag 50 offsets, 40 above the limit of 10"
        assert {n: (row["passed"], row["lag"]) for n, row in rows(found).items()} == {
            "0": (True, 0),
            "1": (False, 50),
            "2": (True, 1),
        }

    def test_an_unpartitioned_check_of_a_partitioned_run(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(2)
        asset = orders.asset()
        check = lag_check(asset, max_lag=10, partitioned=False)
        orders.send(*(order(n, partition=1) for n in range(50)), order(50, partition=0))
        (found,) = orders.run(asset, "0", others=[check]).get_asset_check_evaluations()
        assert found.passed
        assert numbers(found)["committed"] == 1

    def test_a_range_run_reports_its_range(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(3)
        asset = orders.asset(backfill_policy=dg.BackfillPolicy.single_run())
        check = lag_check(asset, max_lag=0, partitioned=False)
        orders.send(*(order(n, partition=n % 3) for n in range(6)))
        tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
        (found,) = orders.run(asset, None, others=[check], tags=tags).get_asset_check_evaluations()
        assert found.passed
        assert {n: row["committed"] for n, row in rows(found).items()} == {"0": 2, "1": 2}

    def test_an_unpartitioned_asset(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(2)
        asset = orders.asset(partitioned=False)
        check = lag_check(asset, max_lag=0)
        orders.send(*(order(n, partition=n % 2) for n in range(6)))
        (found,) = orders.run(asset, None, others=[check]).get_asset_check_evaluations()
        assert found.passed
        assert {n: row["committed"] for n, row in rows(found).items()} == {"0": 3, "1": 3}


class TestAge:
    def test_of_the_record_at_the_groups_offset(
        self, make_orders: Callable[..., Orders], run_check: RunCheck, move: Callable[..., None]
    ) -> None:
        orders = make_orders(config=FOREVER)
        asset = orders.asset()
        check = lag_check(asset, max_age_s=600, source=orders.topic_asset)
        orders.send(*(order(n, timestamp_ms=now_ms() - age * 1000) for n, age in enumerate([9000, 3000, 300])))
        found = run_check(orders, asset, check)
        assert not found.passed
        assert numbers(found)["oldest_age_s"] == pytest.approx(9000, abs=30)
        move(orders.group, orders.source, 1)
        found = run_check(orders, asset, check)
        assert not found.passed
        assert (numbers(found)["oldest_offset"], numbers(found)["committed"]) == (1, 1)
        assert numbers(found)["oldest_age_s"] == pytest.approx(3000, abs=30)
        assert "the oldest unread record, at offset 1, is 3,0" in found.description
        move(orders.group, orders.source, 2)
        found = run_check(orders, asset, check)
        assert found.passed
        assert numbers(found)["oldest_age_s"] == pytest.approx(300, abs=30)

    def test_many_partitions_at_once(self, make_orders: Callable[..., Orders], run_check: RunCheck) -> None:
        orders = make_orders(20, config=FOREVER)
        asset = orders.asset()
        options: dict[str, Any] = {"source": orders.topic_asset, "partitioned": False}
        check = lag_check(asset, max_age_s=950, **options)
        base = now_ms()
        orders.send(*(order(n, partition=n, timestamp_ms=base - n * 100_000) for n in range(19)))
        found = run_check(orders, asset, check, None)
        assert numbers(found)["partitions_failed"] == 9
        table = rows(found)
        for n in range(19):
            assert table[str(n)]["oldest_age_s"] == pytest.approx(n * 100, abs=30)
        assert table["19"]["oldest_age_s"] is None

    def test_markers_alone_have_no_age(self, orders: Orders, run_check: RunCheck) -> None:
        """20 aborted records: the lag is 21 offsets, without a record that could be late."""
        orders.send(*(order(n) for n in range(20)), transaction="abort")
        asset = orders.asset()
        check = lag_check(asset, max_age_s=0.001, source=orders.topic_asset)
        found = run_check(orders, asset, check)
        assert found.passed
        assert (numbers(found)["lag"], numbers(found)["oldest_age_s"]) == (21, None)

    def test_a_clock_that_is_ahead(self, orders: Orders, run_check: RunCheck) -> None:
        orders.send(order(1, timestamp_ms=now_ms() + 600_000))
        asset = orders.asset()
        check = lag_check(asset, max_age_s=1, source=orders.topic_asset)
        assert numbers(run_check(orders, asset, check))["oldest_age_s"] == 0.0


class TestRefusals:
    @pytest.mark.parametrize("bounds", [{}, {"max_lag": -1}, {"max_age_s": 0}])
    def test_bounds(self, orders: Orders, bounds: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match="lag_check"):
            lag_check(orders.asset(), **bounds)

    def test_brokers_that_are_away_are_no_pass(
        self, orders: Orders, run_check: RunCheck, unreachable: KafkaIOManager
    ) -> None:
        asset = orders.asset()
        check = lag_check(asset, max_lag=1, source=orders.topic_asset)
        with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
            run_check(orders, asset, check, manager=unreachable)

    def test_a_topic_that_is_gone(self, orders: Orders, run_check: RunCheck) -> None:
        asset = orders.asset()
        check = lag_check(asset, max_lag=1, source=orders.topic_asset)
        delete_topic(orders.manager.source.connection.bootstrap_servers, orders.source)
        with pytest.raises(TopicNotFoundError):
            run_check(orders, asset, check)

    def test_alone_it_finds_the_topic_in_the_last_materialization(self, orders: Orders, run_check: RunCheck) -> None:
        asset = orders.asset()
        check = lag_check(asset, max_lag=0)
        with pytest.raises(ConfigError, match=r"never materialized(.|\n)*source=\.\.\."):
            run_check(orders, asset, check)
        orders.send(order(1))
        orders.run(asset)
        orders.send(order(2))
        assert numbers(run_check(orders, asset, check))["lag"] == 1

    def test_another_io_manager(self, orders: Orders, run_check: RunCheck) -> None:
        asset = orders.asset()
        check = lag_check(asset, max_lag=1, source=orders.topic_asset)
        with pytest.raises(ConfigError, match="needs a KafkaSource or a KafkaIOManager"):
            run_check(orders, asset, check, manager=dg.InMemoryIOManager())

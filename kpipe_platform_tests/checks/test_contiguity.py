"""Contiguity: Dagster's ranges meet, and the group stands at their end; drift is named with both numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from kpipe_platform import KafkaIOManager
from kpipe_platform.checks import offset_contiguity_check
from kpipe_platform.checks.contiguity import Taken, breaks
from kpipe_platform.cli.main import app
from kpipe_platform.errors import BrokerUnavailableError, ConfigError
from kpipe_platform.testing.topics import create_topic, delete_topic
from kpipe_platform_tests.io_managers.conftest import Orders, order

from .conftest import numbers, rows

RunCheck = Callable[..., dg.AssetCheckEvaluation]
Move = Callable[..., None]


@pytest.mark.parametrize(
    ("taken", "told"),
    [
        ([], []),
        ([(0, 5)], []),
        ([(5, 9), (5, 5), (0, 5)], []),
        ([(7, 9), (0, 5)], ["no materialization contains offsets [5, 7): one ended at 5, the next began at 7"]),
        (
            [(3, 9), (0, 5)],
            ["offsets [3, 5) were processed twice: one materialization ended at 5, the next began at"],
        ),
        (
            [(0, 2), (2, 9), (1, 2)],
            ["offsets [0, 2) were processed twice: one materialization ended at 9, the next"],
        ),
    ],
)
def test_breaks(taken: list[tuple[int, int]], told: list[str]) -> None:
    found = breaks([Taken(start, end, "id") for start, end in taken])
    assert len(found) == len(told)
    assert all(a.startswith(b) for a, b in zip(found, told, strict=True))


def test_a_recreated_topic_is_a_break() -> None:
    (found,) = breaks([Taken(0, 3, "new"), Taken(0, 9, "old")])
    assert found == "the topic was recreated between the materializations that end at 9 and 3"


def obey(orders: Orders, evaluation: dg.AssetCheckEvaluation) -> None:
    """Run the very command that the description advises."""
    found = re.search(
        r"kpipe (offsets set \S+ \S+ --partition \d+ --to [^\s;]+(?: --new-group)?)", evaluation.description or ""
    )
    assert found is not None, evaluation.description
    servers = orders.manager.source.connection.bootstrap_servers
    done = CliRunner().invoke(app, [*found[1].split(), "--yes", "--bootstrap-servers", servers])
    assert done.exit_code == 0, done.output


@pytest.mark.broker
@pytest.mark.spark
class TestDrift:
    def test_agreement_a_move_by_another_tool_and_the_way_back(
        self, orders: Orders, run_check: RunCheck, move: Move
    ) -> None:
        asset = orders.asset()
        check = offset_contiguity_check(asset)
        for batch in range(2):
            orders.send(*(order(n) for n in range(10 * batch, 10 * batch + 10)))
            (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
            assert found.passed
        kept = ("materializations", "breaks", "last_end", "committed", "drift")
        assert [numbers(found)[name] for name in kept] == [2, 0, 20, 20, 0]
        for _ in range(10):
            # "Report materialization" in the UI.
            orders.instance.report_runless_asset_event(dg.AssetMaterialization("enriched", partition="0"))
        found = run_check(orders, asset, check)
        assert [numbers(found)[name] for name in kept] == [2, 0, 20, 20, 0]
        move(orders.group, orders.source, 5)
        found = run_check(orders, asset, check)
        assert not found.passed
        assert [numbers(found)[name] for name in kept] == [2, 0, 20, 5, -15]
        assert f"group {orders.group} is at offset 5 of {orders.source}/0" in found.description
        assert "Dagster's last materialization ended at 20 (-15): a tool other than kpipe moved" in found.description
        obey(orders, found)
        assert orders.committed() == 20
        assert run_check(orders, asset, check).passed

    def test_an_operators_move_and_keeping_it(self, orders: Orders, run_check: RunCheck) -> None:
        """`kpipe offsets set` is drift too. Kept, it stays a break for as long as it is among the last."""
        asset = orders.asset()
        check = offset_contiguity_check(asset, last=2)
        orders.send(*(order(n) for n in range(10)))
        orders.run(asset)
        servers = orders.manager.source.connection.bootstrap_servers
        command = ["offsets", "set", orders.group, orders.source, "--to", "4", "--yes", "--bootstrap-servers", servers]
        assert CliRunner().invoke(app, command).exit_code == 0
        found = run_check(orders, asset, check)
        assert not found.passed
        assert "(-6): kpipe-cli, which is not a run of this Dagster instance, moved the group's" in found.description
        assert "or keep the group's offset and materialize the partition, which then begins at 4" in found.description
        (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
        assert not found.passed
        assert [numbers(found)[name] for name in ("breaks", "last_end", "committed", "drift")] == [1, 10, 10, 0]
        assert "offsets [4, 10) were processed twice" in found.description
        (found,) = orders.run(asset, others=[check]).get_asset_check_evaluations()
        assert found.passed

    def test_an_offset_that_is_gone(self, orders: Orders, run_check: RunCheck, admin: AdminClient) -> None:
        asset = orders.asset()
        check = offset_contiguity_check(asset)
        orders.send(order(1), order(2))
        orders.run(asset)
        (future,) = admin.delete_consumer_groups([orders.group]).values()
        future.result(10)
        found = run_check(orders, asset, check)
        assert not found.passed
        assert (numbers(found)["last_end"], numbers(found)["committed"]) == (2, None)
        assert "has no offset" in found.description
        obey(orders, found)
        assert run_check(orders, asset, check).passed

    def test_a_run_that_committed_and_died_before_it_reported(self, orders: Orders, run_check: RunCheck) -> None:
        asset = orders.asset()
        check = offset_contiguity_check(asset)
        orders.send(*(order(n) for n in range(3)))
        orders.run(asset)
        orders.send(*(order(n) for n in range(3, 8)))
        run_id = orders.run(asset).run_id
        # What a run leaves behind that is killed between its commit and its report.
        orders.instance.event_log_storage.delete_events(run_id)
        found = run_check(orders, asset, check)
        assert not found.passed
        assert (numbers(found)["last_end"], numbers(found)["committed"], numbers(found)["drift"]) == (3, 8, 5)
        assert f"run {run_id} committed offsets [3, 8) and ended before it reported them" in found.description

    def test_a_recreated_topic(self, orders: Orders, run_check: RunCheck) -> None:
        asset = orders.asset()
        check = offset_contiguity_check(asset)
        orders.send(order(1), order(2))
        orders.run(asset)
        servers = orders.manager.source.connection.bootstrap_servers
        delete_topic(servers, orders.source)
        create_topic(servers, orders.source)
        found = run_check(orders, asset, check)
        assert not found.passed
        assert "was recreated since Dagster's last materialization ended at 2" in found.description
        obey(orders, found)

    def test_this_partition_only(self, make_orders: Callable[..., Orders], run_check: RunCheck, move: Move) -> None:
        orders = make_orders(3)
        asset = orders.asset()
        check = offset_contiguity_check(asset)
        orders.send(*(order(n, partition=n % 2) for n in range(8)))
        for key in "01":
            orders.run(asset, key)
        move(orders.group, orders.source, 1, partition=1)
        found = {key: run_check(orders, asset, check, key) for key in "012"}
        assert {key: e.passed for key, e in found.items()} == {"0": True, "1": False, "2": True}
        assert found["2"].description.endswith("there is no materialization yet")
        whole = offset_contiguity_check(asset, partitioned=False)
        table = rows(run_check(orders, asset, whole, None))
        assert {n: (row["last_end"], row["committed"]) for n, row in table.items()} == {
            "0": (4, 4),
            "1": (4, 1),
            "2": (None, None),
        }

    def test_an_unpartitioned_asset(self, make_orders: Callable[..., Orders], move: Move, run_check: RunCheck) -> None:
        orders = make_orders(2)
        asset = orders.asset(partitioned=False)
        check = offset_contiguity_check(asset)
        orders.send(*(order(n, partition=n % 2) for n in range(8)))
        (found,) = orders.run(asset, None, others=[check]).get_asset_check_evaluations()
        assert found.passed
        move(orders.group, orders.source, 3, partition=1)
        found = run_check(orders, asset, check, None)
        assert {n: row["drift"] for n, row in rows(found).items()} == {"0": 0, "1": -1}

    def test_brokers_that_are_away_are_no_pass(
        self, orders: Orders, run_check: RunCheck, unreachable: KafkaIOManager
    ) -> None:
        asset = orders.asset()
        check = offset_contiguity_check(asset, source=orders.topic_asset)
        with pytest.raises(BrokerUnavailableError):
            run_check(orders, asset, check, manager=unreachable)

    def test_bounds(self, orders: Orders) -> None:
        with pytest.raises(ConfigError, match="last is 1"):
            offset_contiguity_check(orders.asset(), last=1)

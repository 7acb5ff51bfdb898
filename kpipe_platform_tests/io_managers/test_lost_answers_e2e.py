"""A commit that took place and whose answer nobody got: the slice is reported all the same, and taken once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform import JsonCodec, KafkaDestination, KafkaRecord, KafkaTopic, OffsetCommittingIOManager
from kpipe_platform.errors import BrokerUnavailableError, CommitUnknownError
from kpipe_platform.kafka.transactions.base import CommitStep, OffsetTransaction
from kpipe_platform_tests.lost_answers import lose_commit_answers

from .conftest import BAD, Orders, order
from .killing import writers_at
from .test_assets_e2e import FolderIOManager, plain
from .test_lanes_e2e import RELAXED, manager_with

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[CommitStep]]:
    """Commits of this process get no answer; those of Spark's workers are ``writers_at``'s."""

    return lambda: lose_commit_answers(monkeypatch)


def plain_asset(orders: Orders) -> dg.AssetsDefinition:
    def enriched(orders: DataFrame) -> DataFrame:
        return orders.select("id")

    topic = KafkaTopic(orders.target, value_codec=JsonCodec()).as_metadata()
    return plain(orders, enriched, metadata={**topic, "kpipe/on_fault": "dead_letter"})


def keep_records(orders: list[KafkaRecord]) -> list[KafkaRecord]:
    return orders


@pytest.mark.parametrize("how", ["one pass", "sorted", "records", "lanes", "plain"])
def test_of_a_writer(orders: Orders, spark: SparkSession, tmp_path: Path, how: str) -> None:
    count = 4_000 if how == "lanes" else 20
    orders.send(*(order(n) for n in range(count)), BAD)
    if how == "plain":
        asset = plain_asset(orders)
    elif how == "records":
        asset = orders.asset(keep_records)
    elif how == "sorted":
        asset = orders.asset(lambda orders: orders.sort("id"))
    else:
        asset = orders.asset(**({"scaling": RELAXED} if how == "lanes" else {}))
    with writers_at("lose_answer", spark, tmp_path) as reached:
        found = orders.metadata(orders.run(asset))
    assert reached.exists()
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count + 1, count, 1)
    assert [(r["start"], r["end"]) for r in found["ranges"]] == [(0, count + 1)]
    assert orders.metadata(orders.run(asset))["records_read"] == 0
    assert sorted(orders.ids()) == list(range(count))


@pytest.mark.parametrize("how", ["at least once", "another store", "nothing to read"])
def test_of_the_driver(orders: Orders, lose_answers: Callable[[], list[CommitStep]], tmp_path: Path, how: str) -> None:
    manager, inner = orders.manager, FolderIOManager(folder=str(tmp_path))
    resources: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if how == "at least once":
        destination = KafkaDestination(connection=orders.manager.source.connection, delivery="at_least_once")
        manager = manager_with(orders, destination=destination)
    elif how == "another store":
        resources["committing"] = OffsetCommittingIOManager(inner=inner)
        options = {"topic": None, "io_manager_key": "committing"}
    count = 0 if how == "nothing to read" else 20
    orders.send(*(order(n) for n in range(count)))
    asset = orders.asset(**options)
    lost = lose_answers()
    found = orders.metadata(orders.run(asset, manager=manager, resources=resources))
    assert len(lost) == 1
    assert found["records_read"] == count
    assert [(r["start"], r["end"]) for r in found["ranges"]] == [(0, count)]
    assert orders.committed() == count
    ids = [row["id"] for row in inner.rows()] if how == "another store" else orders.ids()
    assert sorted(ids) == list(range(count))


def test_a_commit_that_did_not_take_place_is_no_success(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    request = OffsetTransaction.request

    def unsent(self: OffsetTransaction, step: CommitStep, call: Callable[[], Any]) -> None:
        if step is CommitStep.COMMIT:
            raise BrokerUnavailableError(f"no answer to: {step.value}")
        request(self, step, call)

    with monkeypatch.context() as patched:
        patched.setattr(OffsetTransaction, "request", unsent)
        with pytest.raises(CommitUnknownError):
            orders.run(orders.asset())
    assert orders.committed() is None
    assert orders.metadata(orders.run(orders.asset()))["records_read"] == 0
    assert orders.committed() == 0

"""Records that a stage fails on, on a real broker and real Spark: each is found, and everything else is there once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    FaultAction,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    OffsetCommittingIOManager,
    current_slice,
)
from kpipe_platform.dead_letters import Envelope, decode_envelope
from kpipe_platform.errors import DeadLetterLimitError, EngineUnavailableError, StageFailedError, TransientError
from kpipe_platform.testing.broker.embedded import EmbeddedBroker

from .conftest import BAD, DELIVERIES, Orders, manager_at, order
from .killing import kill_at

pytestmark = [pytest.mark.broker, pytest.mark.spark]

POISON = {"note": "poison"}


def numbered(count: int, *poison: int) -> list[dict[str, Any]]:
    return [order(n, value=POISON if n in poison else {}) for n in range(count)]


def by_udf(orders: DataFrame) -> DataFrame:
    @F.udf("string")
    def checked(note):  # type: ignore[no-untyped-def]  # Spark reads hints as an Arrow UDF's
        if note == "poison":
            raise ValueError("no such note: poison")
        return note

    return orders.withColumn("note", checked("note"))


def by_cast(orders: DataFrame) -> DataFrame:
    """Fails in Spark's own code."""
    return orders.withColumn("amount", F.expr("cast(if(note = 'poison', note, '1') as double)"))


def by_raise(orders: DataFrame) -> DataFrame:
    return orders.withColumn("note", F.expr("if(note = 'poison', raise_error(concat('poison ', id)), note)"))


def by_batch(orders: DataFrame) -> DataFrame:
    """A vectorised UDF that breaks on one row."""

    @F.pandas_udf("string")  # type: ignore[call-overload]
    def checked(notes: pd.Series) -> pd.Series:
        if (notes == "poison").any():
            raise KeyError("poison")
        return notes

    return orders.withColumn("note", checked("note"))


def envelopes(orders: Orders) -> list[Envelope]:
    return [decode_envelope(letter.value or b"") for letter in orders.letters()]


@pytest.mark.parametrize(
    ("stage", "exception", "message", "where"),
    [
        (by_udf, "ValueError", "no such note: poison", "test_isolation_e2e.py"),
        (by_cast, "NumberFormatException", "The value 'poison' of the type", "cast(if(note"),
        (by_raise, "SparkRuntimeException", "poison 7", None),
        (by_batch, "KeyError", "'poison'", "test_isolation_e2e.py"),
    ],
)
def test_one_poison_record_gets_its_own_exception(
    orders: Orders, stage: Any, exception: str, message: str, where: str | None
) -> None:
    orders.send(*numbered(20, 7))
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (20, 19, 1)
    assert orders.ids() == [n for n in range(20) if n != 7]
    (letter,) = envelopes(orders)
    assert (letter.original.offset, letter.original.key) == (7, b"k7")
    assert letter.original.value == order(7, value=POISON)["value"]
    assert (letter.fault.component.value, letter.fault.exception_type) == ("stage", exception)
    assert letter.fault.message.startswith(message)
    assert where is None or where in (letter.fault.stacktrace or "")
    assert "An exception was thrown from the Python worker" not in (letter.fault.stacktrace or "")
    assert [s.name for s in letter.segments] == ["plan", "stage", "run", "write"]
    assert orders.lag() == 0


@pytest.mark.parametrize("poison", [(0,), (5,), tuple(range(6))], ids=["first", "last", "all"])
def test_first_last_and_all(orders: Orders, poison: tuple[int, ...]) -> None:
    orders.send(*numbered(6, *poison))
    found = orders.metadata(orders.run(orders.asset(by_raise)))
    assert (found["records_read"], found["dead_letters"]) == (6, len(poison))
    assert orders.ids() == [n for n in range(6) if n not in poison]
    assert sorted(e.original.offset or 0 for e in envelopes(orders)) == list(poison)
    assert orders.committed() == 6


def test_one_of_a_thousand_and_its_cost_is_reported(orders: Orders) -> None:
    orders.send(*numbered(1000, 700), BAD)
    found = orders.metadata(orders.run(orders.asset(by_raise)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (1001, 999, 2)
    assert orders.ids() == [n for n in range(1000) if n != 700]
    cost = found["isolation"].records[0].data
    assert cost["records"] == 1
    assert cost["stage_calls"] <= 16
    assert cost["seconds"] > 0
    assert "poison 700" in found["dead_letter_reasons"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_of_a_hundred_thousand(orders: Orders) -> None:
    orders.send(*numbered(100_000, 77_777))
    found = orders.metadata(orders.run(orders.asset(by_raise)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (100_000, 99_999, 1)
    assert found["isolation"].records[0].data["stage_calls"] <= 24
    assert orders.ids() == [n for n in range(100_000) if n != 77_777]


@pytest.mark.slow
def test_twenty_scattered_ones(orders: Orders) -> None:
    poison = tuple(range(13, 400, 20))
    assert len(poison) == 20
    orders.send(*numbered(400, *poison))
    found = orders.metadata(orders.run(orders.asset(by_raise)))
    assert (found["records_written"], found["dead_letters"]) == (380, 20)
    cost = found["isolation"].records[0].data
    assert cost["records"] == 20
    # Any search needs log2(400 choose 20) = 112 at least; which parts are tried depends on the timing of threads.
    assert cost["stage_calls"] < 170
    assert orders.ids() == [n for n in range(400) if n not in poison]
    assert [e.original.offset for e in envelopes(orders)] == list(poison)


def test_a_stage_that_fails_on_records_together_fails_whole(orders: Orders) -> None:
    """No record fails alone, so none is dead-lettered and nothing is written."""

    def unique(orders: pd.DataFrame) -> pd.DataFrame:
        if orders["amount"].duplicated().any():
            raise ValueError("two orders with the same amount")
        return orders

    orders.send(*(order(n, value={"amount": 1.0}) if n in (2, 4) else order(n) for n in range(6)))
    with pytest.raises(StageFailedError, match="even without the 0 record"):
        orders.run(orders.asset(unique))
    assert orders.committed() is None
    assert orders.outputs(isolation="read_uncommitted") == []
    assert orders.letters() == []


def by_raise_late(orders: DataFrame) -> DataFrame:
    """Without ``_kafka`` and with so much output that the writer has had some of it when the last record fails."""
    note = "if(note = 'poison', raise_error(concat('poison ', id)), repeat('x', 200000))"
    return orders.withColumn("note", F.expr(note)).drop("_kafka")


def test_a_stage_that_fails_late_commits_nothing_of_what_came_before(orders: Orders) -> None:
    orders.send(*numbered(120, 119))
    with pytest.raises(StageFailedError, match="poison 119"):
        orders.run(orders.asset(by_raise_late, isolate=False))
    assert orders.committed() is None
    assert orders.ids() == []
    found = orders.metadata(orders.run(orders.asset(by_raise_late)))
    assert (found["records_written"], found["dead_letters"]) == (119, 1)
    assert orders.ids() == list(range(119))


def test_skip_needs_no_dead_letter_destination(orders: Orders) -> None:
    orders.send(*numbered(6, 2))
    manager = KafkaIOManager(
        source=orders.manager.source, destination=orders.manager.destination, spark=orders.manager.spark
    )
    found = orders.metadata(orders.run(orders.asset(by_raise, on_fault=FaultAction.SKIP), manager=manager))
    assert (found["records_written"], found["records_skipped"]) == (5, 1)
    assert orders.ids() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("how", [{"on_fault": FaultAction.STOP}, {"on_fault": FaultAction.RETHROW}, {"isolate": False}])
def test_stop_rethrow_and_isolate_false_fail_whole(orders: Orders, how: dict[str, Any]) -> None:
    orders.send(*numbered(6, 2))
    with pytest.raises(StageFailedError, match="poison 2"):
        orders.run(orders.asset(by_raise, **how))
    assert orders.committed() is None
    assert orders.outputs(isolation="read_uncommitted") == []


def test_a_mistake_in_the_stage_is_not_isolated(orders: Orders) -> None:
    calls = []

    def stage(orders: pd.DataFrame) -> pd.DataFrame:
        calls.append(len(orders))
        orders["amount"] = orders["amuont"]
        return orders

    orders.send(*numbered(6))
    with pytest.raises(StageFailedError, match="without any rows"):
        orders.run(orders.asset(stage))
    assert calls == [6, 0]
    assert orders.committed() is None


@pytest.mark.parametrize("step", ["read_sources", "call_stage", "deliver", "find_failing"])
def test_spark_can_be_lost_in_any_step(orders: Orders, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **__: Any) -> None:
        msg = "Answer from Java side is empty"
        raise Py4JNetworkError(msg)

    def failing(orders: DataFrame) -> DataFrame:
        return orders.select(F.raise_error(F.lit("always")).alias("id"))

    orders.send(order(1))
    monkeypatch.setattr(f"kpipe_platform.slices.process.{step}", lost)
    with pytest.raises(EngineUnavailableError, match="no longer runs while processing orders"):
        orders.run(orders.asset(failing if step == "find_failing" else None))
    assert orders.committed() is None


def test_a_stage_on_pandas_is_isolated_too(orders: Orders) -> None:
    def stage(orders: pd.DataFrame) -> pd.DataFrame:
        if (orders["note"] == "poison").any():
            raise ValueError("poison among the notes")
        return orders

    orders.send(*numbered(9, 4))
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert (found["records_written"], found["dead_letters"]) == (8, 1)
    (letter,) = envelopes(orders)
    assert letter.fault.exception_type == "ValueError"
    assert "test_isolation_e2e.py" in (letter.fault.stacktrace or "")


def test_poison_in_one_partition_of_a_range_run(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(partitions=3)
    for partition in range(3):
        poisoned = [POISON if (partition, n) == (1, 3) else {} for n in range(5)]
        orders.send(*(order(10 * partition + n, value=v, partition=partition) for n, v in enumerate(poisoned)))
    result = orders.run(
        orders.asset(by_raise, backfill_policy=dg.BackfillPolicy.single_run()),
        None,
        tags={"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "2"},
    )
    found = {e.materialization.partition: e.materialization.metadata for e in result.get_asset_materialization_events()}
    assert {key: value["kpipe/dead_letters"].value for key, value in found.items()} == {"0": 0, "1": 1, "2": 0}
    assert {key: "kpipe/isolation" in value for key, value in found.items()} == {"0": False, "1": True, "2": False}
    assert sorted(orders.ids()) == [0, 1, 2, 3, 4, 10, 11, 12, 14, 20, 21, 22, 23, 24]
    assert orders.lag() == 0


def test_unpartitioned(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(partitions=3)
    for partition in range(3):
        orders.send(*({**r, "partition": partition} for r in numbered(4, *([2] if partition == 1 else []))))
    found = orders.metadata(orders.run(orders.asset(by_raise, partitioned=False), None))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (12, 11, 1)
    (letter,) = envelopes(orders)
    assert (letter.original.partition, letter.original.offset) == (1, 2)
    assert orders.lag() == 0
    # The next slice is one of all partitions again.
    orders.send(order(9, partition=2))
    assert orders.metadata(orders.run(orders.asset(by_raise, partitioned=False), None))["records_written"] == 1


def test_at_least_once(orders: Orders) -> None:
    orders.send(*numbered(8, 3))
    manager = orders.manager.model_copy(
        update={"destination": KafkaDestination(connection=orders.manager.source.connection, delivery="at_least_once")}
    )
    found = orders.metadata(orders.run(orders.asset(by_raise), manager=manager))
    assert found["dead_letters"] == 1
    assert set(orders.ids()) == {0, 1, 2, 4, 5, 6, 7}
    assert orders.lag() == 0


stored: list[tuple[str, list[int]]] = []


class Memory(dg.IOManager):
    """Keeps what was stored last, as a store that overwrites a partition does."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        rows = sorted(row["id"] for row in obj.collect())
        stored.append((str(current_slice()), rows))

    def load_input(self, context: dg.InputContext) -> Any:
        raise NotImplementedError


def test_another_store_gets_the_slice_once_without_the_poison(orders: Orders) -> None:
    stored.clear()
    orders.send(*numbered(8, 3))
    asset = orders.asset(by_raise, topic=None, io_manager_key="store")
    found = orders.metadata(orders.run(asset, resources={"store": OffsetCommittingIOManager(inner=Memory())}))
    assert [rows for _, rows in stored] == [[0, 1, 2, 4, 5, 6, 7]]
    assert (found["records_read"], found["dead_letters"]) == (8, 1)
    assert [e.original.offset for e in envelopes(orders)] == [3]
    assert orders.committed() == 8


def test_another_store_and_a_partition_without_records(make_orders: Callable[..., Orders]) -> None:
    """A new group: the empty partition's start is stored with the offsets of the other one, once."""
    stored.clear()
    orders = make_orders(partitions=2)
    orders.send(*({**r, "partition": 0} for r in numbered(6, 2)))
    asset = orders.asset(by_raise, topic=None, io_manager_key="store", partitioned=False)
    found = orders.metadata(orders.run(asset, None, resources={"store": OffsetCommittingIOManager(inner=Memory())}))
    assert [rows for _, rows in stored] == [[0, 1, 3, 4, 5]]
    assert (found["records_read"], found["dead_letters"]) == (6, 1)
    assert (orders.committed(0), orders.committed(1)) == (6, 0)


def test_sixty_percent_bad_with_a_limit_of_ten_writes_nothing(orders: Orders) -> None:
    orders.send(*numbered(100, *(n for n in range(100) if n % 5 < 3)))
    with pytest.raises(DeadLetterLimitError, match="poison") as caught:
        orders.run(orders.asset(by_raise, max_dead_letter_ratio=0.1))
    assert "the limit is 10.0%" in str(caught.value)
    assert orders.committed() is None
    assert orders.outputs(isolation="read_uncommitted") == []


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_sixty_percent_that_do_not_decode(orders: Orders, delivery: Any) -> None:
    orders.send(*(order(n) if n % 5 >= 3 else BAD for n in range(100)))
    connection = orders.manager.source.connection
    manager = orders.manager.model_copy(
        update={
            "destination": KafkaDestination(connection=connection, delivery=delivery),
            "dead_letter": KafkaDeadLetterDestination(
                connection=connection, create_topic=True, max_dead_letter_ratio=0.1
            ),
        }
    )
    with pytest.raises(DeadLetterLimitError, match=r"60 of 100 records"):
        orders.run(orders.asset(), manager=manager)
    assert orders.committed() is None
    assert orders.outputs() == []
    assert orders.letters() == []
    # Below the limit it goes on.
    found = orders.metadata(orders.run(orders.asset(max_dead_letter_ratio=0.7), manager=manager))
    assert (found["records_written"], found["dead_letters"]) == (40, 60)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_after_the_search_and_resumed(orders: Orders, kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The slice is written in one transaction, so a run that is killed before its commit leaves nothing."""
    orders.send(*numbered(8, 5))
    kill_at("hang_before_commit", orders, kafka_broker, tmp_path)
    assert orders.outputs(settled=False) == []
    orders.run(orders.asset(by_raise))
    assert orders.ids() == [0, 1, 2, 3, 4, 6, 7]
    assert [e.original.offset for e in envelopes(orders)] == [5]
    assert orders.lag() == 0


@pytest.mark.slow
def test_a_broker_that_goes_away_during_the_search(orders: Orders, tmp_path: Path) -> None:
    """Nothing is dead-lettered, nothing is written, and offsets stay."""
    from kpipe_platform.testing.records import consume, produce

    with EmbeddedBroker(data_dir=tmp_path / "broker", keep_data=True) as broker:
        servers = broker.bootstrap_servers
        manager = manager_at(servers, orders, request_timeout_s=3)
        produce(servers, orders.source, numbered(8, 5))
        calls = []

        def stage(orders: DataFrame) -> DataFrame:
            calls.append(1)
            # After the whole slice, and no rows at all.
            if len(calls) == 4:
                broker.stop_broker(0)
            return by_raise(orders)

        began = time.monotonic()
        with pytest.raises(TransientError):
            orders.run(orders.asset(lambda orders: stage(orders)), manager=manager)
        assert time.monotonic() - began < 90
        broker.start_broker(0)
        assert consume(servers, f"{orders.source}.dlq") == []
        assert consume(servers, orders.target, isolation="read_uncommitted") == []
        found = orders.metadata(orders.run(orders.asset(by_raise), manager=manager))
        assert (found["records_read"], found["dead_letters"]) == (8, 1)
        assert [r.json()["id"] for r in consume(servers, orders.target)] == [0, 1, 2, 3, 4, 6, 7]

"""Slices whose rows parallel tasks make: one task then writes them in order, sorted only if the stage shuffled them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import Rule, expect_all, map_records
from kpipe_platform.spark.sink import job
from kpipe_platform.spark.sink.rows import WriterRows

from .conftest import BAD, Orders, incompressible, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 600
EVERY = 100
Ids = list[int]


@pytest.fixture(autouse=True)
def several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read slices of this size as large ones are read."""
    monkeypatch.setattr("kpipe_platform.spark.source.reader._OFFSETS_A_PART", EVERY)
    monkeypatch.setattr("kpipe_platform.spark.source.rows._SMALL", 0)


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each pass of a writer, whether its rows are sorted."""
    seen: list[bool] = []
    run = job.run_pass

    def watched(rows: WriterRows, spec: Any) -> Any:
        seen.append(not rows.in_order)
        return run(rows, spec)

    monkeypatch.setattr(job, "run_pass", watched)
    return seen


def sent(orders: Orders, **changes: Any) -> int:
    """Send orders and, after every so many, one that does not decode."""
    records: list[dict[str, Any]] = []
    for n in range(COUNT):
        records.append({**order(n), **changes})
        if n % EVERY == EVERY - 1:
            records.append(BAD)
    orders.send(*records)
    return len(records)


def udf(orders: DataFrame) -> DataFrame:
    upper = F.udf(lambda note: note.upper(), "string")
    return orders.withColumn("note", upper("note"))


def udf_filter(orders: DataFrame) -> DataFrame:
    return orders.where(F.udf(lambda n: n % 2 == 0, "boolean")("id"))


def pandas_udf(orders: DataFrame) -> DataFrame:
    def doubled(amount: pd.Series) -> pd.Series:
        return amount * 2

    return orders.withColumn("amount", F.pandas_udf(doubled, "double")("amount"))


def joined(orders: DataFrame) -> DataFrame:
    names = orders.sparkSession.createDataFrame([(n, f"name {n}") for n in range(3)], "third INT, name STRING")
    return orders.withColumn("third", (F.col("id") % 3).cast("int")).join(F.broadcast(names), "third")


def exploded(orders: DataFrame) -> DataFrame:
    return orders.withColumn("line", F.explode(F.array(F.lit(1), F.lit(2))))


def shuffled(orders: DataFrame) -> DataFrame:
    return orders.repartition(3, "id")


def backwards(orders: DataFrame) -> DataFrame:
    return orders.orderBy(F.desc("id"))


def without_source(orders: DataFrame) -> DataFrame:
    return orders.select(F.udf(lambda n: n + 1, "bigint")("id").alias("id")).orderBy(F.desc("id"))


EACH = list(range(COUNT))
STAGES: list[Any] = [
    pytest.param(udf, EACH, [False], id="udf"),
    pytest.param(udf_filter, EACH[::2], [False], id="filter by a udf"),
    pytest.param(pandas_udf, EACH, [False], id="pandas udf"),
    pytest.param(joined, EACH, [False], id="broadcast join"),
    pytest.param(exploded, [n for n in EACH for _ in range(2)], [False], id="several outputs a record"),
    pytest.param(shuffled, EACH, [False, True], id="shuffled"),
    pytest.param(backwards, EACH, [False, True], id="sorted by the stage, with its source"),
    pytest.param(
        without_source, [n + 1 for n in reversed(EACH)], [False], id="sorted by the stage, without its source"
    ),
]


@pytest.mark.parametrize(("stage", "ids", "passes"), STAGES)
def test_outputs_are_in_order_and_sorted_only_after_a_shuffle(
    orders: Orders, sorts: list[bool], stage: Callable[[DataFrame], DataFrame], ids: Ids, passes: list[bool]
) -> None:
    count = sent(orders)
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert orders.ids() == ids
    bad = COUNT // EVERY
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count, len(ids), bad)
    assert [r.json()["original"]["offset"] for r in orders.letters()] == [n * (EVERY + 1) + EVERY for n in range(bad)]
    assert (orders.committed(), orders.lag()) == (count, 0)
    assert sorts == passes


def test_headers_stay(orders: Orders, sorts: list[bool]) -> None:
    sent(orders, headers=[("tenant", b"t1")])
    orders.run(orders.asset(udf))
    assert {record.header("tenant") for record in orders.outputs()} == {b"t1"}
    assert [record.header("kpipe.source") for record in orders.outputs()][:2] == [
        f"{orders.source}/0/{n}".encode() for n in range(2)
    ]
    assert sorts == [False]


def test_what_the_stage_sets_aside_is_not_written(orders: Orders, sorts: list[bool]) -> None:
    count = sent(orders)

    def risky(row: Any) -> dict[str, Any]:
        if row["id"] % 7 == 0:
            msg = "a seventh"
            raise ValueError(msg)
        return {"id": row["id"]}

    def stage(orders: DataFrame) -> DataFrame:
        checked = expect_all(orders, [Rule("small", "id < 500", "dead_letter")])
        return map_records(checked, risky, schema="id BIGINT")

    found = orders.metadata(orders.run(orders.asset(stage)))
    kept = [n for n in range(500) if n % 7]
    assert orders.ids() == kept
    dead = COUNT - len(kept) + COUNT // EVERY
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count, len(kept), dead)
    assert sorts == [False]


def test_a_topic_without_a_fault_has_no_search_for_one(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.send(*(order(n) for n in range(COUNT)))
    monkeypatch.setattr(job, "fault_rows", lambda *_: pytest.fail("no record fails to decode"))
    found = orders.metadata(orders.run(orders.asset(udf)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (COUNT, COUNT, 0)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_record_that_the_topic_refuses_is_dead_lettered(make_orders: Callable[..., Orders], partitions: int) -> None:
    """The outputs are computed once for all passes: a random value does not change between them."""
    orders = make_orders(partitions, target={"config": {"max.message.bytes": "2000"}})
    orders.send(*({**order(n), "partition": n % partitions} for n in range(COUNT)))

    large = incompressible(3_000)

    def stage(orders: DataFrame) -> DataFrame:
        noise = F.udf(lambda n: large if n == 7 else "small", "string")
        return orders.withColumn("note", noise("id")).withColumn("amount", F.rand())

    found = orders.metadata(orders.run(orders.asset(stage, partitioned=False), None))
    assert (found["records_written"], found["dead_letters"]) == (COUNT - 1, 1)
    assert sorted(orders.ids()) == [n for n in range(COUNT) if n != 7]

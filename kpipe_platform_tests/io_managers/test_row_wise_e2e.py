"""Stages that only compute and filter columns: a slice is written in a single pass, with no sort."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import FaultAction, KafkaDestination, KafkaIOManager, RawCodec
from kpipe_platform.errors import DeadLetterLimitError, RecordFaultError, StageFailedError
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.policies.actions import FaultPolicies
from kpipe_platform.spark.sink.job import write_rows
from kpipe_platform.spark.sink.rows import WriterRows
from kpipe_platform.spark.sink.spec import OutputTopic, WriterSpec
from kpipe_platform.testing.plugin import Consume

from .conftest import BAD, CACHED, ENDS, Orders, incompressible, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MakeOrders = Callable[..., Orders]
RowsRead = Callable[[], int]
EVERY = 400


def sent(orders: Orders, partitions: int = 1) -> int:
    """Send orders and, after every so many, one that does not decode; returns how many are sent to each partition."""
    records: list[dict[str, Any]] = []
    for partition in range(partitions):
        for n in range(CACHED // partitions):
            records.append({**order(n), "partition": partition})
            if n % EVERY == EVERY - 1:
                records.append({**BAD, "partition": partition})
    orders.send(*records)
    return len(records) // partitions


def doubled(orders: DataFrame) -> DataFrame:
    return orders.select("id", (F.col("amount") * 2).alias("amount"), "note")


def even(orders: DataFrame) -> DataFrame:
    return orders.where("id % 2 = 0").withColumn("note", F.upper("note"))


def test_outputs_and_dead_letters_in_one_pass(orders: Orders, rows_read: RowsRead) -> None:
    count = sent(orders)
    found = orders.metadata(orders.run(orders.asset(doubled)))
    bad = CACHED // EVERY
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count, CACHED, bad)
    wanted = [{"id": n, "amount": n * 3.0, "note": f"n{n}"} for n in range(CACHED)]
    assert [record.json() for record in orders.outputs()] == wanted
    letters = orders.letters()
    assert [r.json()["original"]["offset"] for r in letters] == [n * (EVERY + 1) + EVERY for n in range(bad)]
    # What one task reads is read once, and not cached.
    assert rows_read() == count + ENDS
    assert (orders.committed(), orders.lag()) == (count, 0)


def test_what_a_filter_takes_out_is_read_and_not_written(make_orders: MakeOrders, rows_read: RowsRead) -> None:
    orders = make_orders(3)
    count = sent(orders, 3)
    found = orders.metadata(orders.run(orders.asset(even, partitioned=False), None))
    assert (found["records_read"], found["records_written"]) == (3 * count, CACHED // 2)
    stored = orders.manager.source.committed(orders.group, orders.source)
    for partition in range(3):
        counts = stored[partition].metadata.counts
        bad = CACHED // 3 // EVERY
        assert (counts.read, counts.written, counts.dead_lettered) == (count, CACHED // 3 // 2, bad)
        source = b"%s/%d/" % (orders.source.encode(), partition)
        mine = [r for r in orders.outputs() if dict(r.headers)["kpipe.source"].startswith(source)]
        assert [r.json()["id"] for r in mine] == list(range(0, CACHED // 3, 2))
        assert mine[1].json()["note"] == "N2"
    # Several tasks read them once, and what is written is cached.
    assert 3 * count < rows_read() < 3 * count + 100


@pytest.mark.parametrize("count", [1, 100])
def test_few_rows_are_read_once_and_not_cached(orders: Orders, rows_read: RowsRead, count: int) -> None:
    orders.send(*(order(n) for n in range(count)), BAD)
    found = orders.metadata(orders.run(orders.asset(even)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count + 1, (count + 1) // 2, 1)
    assert orders.ids() == list(range(0, count, 2))
    assert len(orders.letters()) == 1
    assert rows_read() == count + 1 + ENDS
    assert orders.committed() == count + 1


def test_headers_that_only_some_records_have(make_orders: MakeOrders) -> None:
    orders = make_orders(2)
    count = sent(orders, 2)
    given: list[list[tuple[str, bytes | None]]] = [[], [("tenant", b"t1")], [("none", None)]]
    orders.send(*(order(CACHED + n, headers=headers, partition=0) for n, headers in enumerate(given)))
    asset = orders.asset(lambda orders: orders.withColumn("amount", F.col("amount") * 2), partitioned=False)
    orders.run(asset, None)
    outputs = {record.header("kpipe.source"): record for record in orders.outputs()}
    assert len(outputs) == CACHED + len(given)
    assert all(record.json()["amount"] == record.json()["id"] * 3.0 for record in outputs.values())
    for offset, headers in enumerate(given, start=count):
        added = [
            ("correlation-id", f"{orders.source}-0-{offset}".encode()),
            ("kpipe.source", f"{orders.source}/0/{offset}".encode()),
        ]
        record = outputs[added[1][1]]
        found = [header for header in record.headers or () if header[0] not in ("kpipe.instance", "kpipe.worker")]
        assert found == [*headers, *added]
    assert [orders.committed(n) for n in (0, 1)] == [count + len(given), count]


def test_a_record_that_stops_the_run_stops_it_before_anything_is_seen(orders: Orders) -> None:
    sent(orders)
    with pytest.raises(RecordFaultError, match="offset 400"):
        orders.run(orders.asset(doubled, on_fault=FaultAction.STOP))
    assert (orders.outputs(), orders.committed()) == ([], None)


def test_a_limit_counts_what_is_filtered_out_as_read(make_orders: MakeOrders) -> None:
    orders = make_orders(2)
    count = 2 * sent(orders, 2)
    bad = 2 * (CACHED // 2 // EVERY)
    with pytest.raises(DeadLetterLimitError):
        orders.run(orders.asset(even, partitioned=False, max_dead_letter_ratio=bad / count * 0.9), None)
    assert (orders.outputs(), orders.committed()) == ([], None)
    asset = orders.asset(even, partitioned=False, max_dead_letter_ratio=bad / count * 1.1)
    found = orders.metadata(orders.run(asset, None))
    assert (found["records_read"], found["dead_letters"]) == (count, bad)


def test_at_least_once(make_orders: MakeOrders) -> None:
    orders = make_orders(2)
    count = sent(orders, 2)
    connection = orders.manager.source.connection
    manager = KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(connection=connection, delivery="at_least_once"),
        dead_letter=orders.manager.dead_letter,
        spark=orders.manager.spark,
    )
    found = orders.metadata(orders.run(orders.asset(doubled, partitioned=False), None, manager=manager))
    assert (found["records_read"], found["records_written"]) == (2 * count, CACHED)
    assert sorted(orders.ids()) == sorted([*range(CACHED // 2)] * 2)
    assert len(orders.letters()) == 2 * (CACHED // 2 // EVERY)


# One task makes the rows for each pass, or several make them once.
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_record_that_the_topic_refuses_is_dead_lettered(make_orders: MakeOrders, partitions: int) -> None:
    orders = make_orders(partitions, target={"config": {"max.message.bytes": "2000"}})
    count = partitions * sent(orders, partitions)
    refused = {**order(CACHED, value={"note": incompressible(3_000)}), "partition": partitions - 1}
    orders.send(refused, {**order(CACHED + 1), "partition": partitions - 1})
    found = orders.metadata(orders.run(orders.asset(doubled, partitioned=False), None))
    bad = partitions * (CACHED // partitions // EVERY)
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count + 2, CACHED + 1, bad + 1)
    ids = sorted([*range(CACHED // partitions)] * partitions)
    assert sorted(orders.ids()) == [*ids, CACHED + 1]


def test_a_record_that_the_stage_fails_on_is_isolated(orders: Orders) -> None:
    """The rows are read over and over then, and are cached for that."""
    count = sent(orders)
    orders.send(order(0, value={"note": "no number"}), order(CACHED, value={"note": "7"}))

    def cast(orders: DataFrame) -> DataFrame:
        return orders.select("id", F.regexp_replace("note", "^n(?=[0-9])", "").cast("int").alias("number"))

    found = orders.metadata(orders.run(orders.asset(cast)))
    bad = CACHED // EVERY
    assert (found["records_read"], found["records_written"]) == (count + 2, CACHED + 1)
    assert found["dead_letters"] == bad + 1
    assert [r.json() for r in orders.outputs()][-1] == {"id": CACHED, "number": 7}


def test_a_stage_that_fails_and_is_not_isolated_commits_nothing(orders: Orders) -> None:
    sent(orders)
    orders.send(order(0, value={"note": "no number"}))
    asset = orders.asset(lambda orders: orders.select(F.col("note").cast("int").alias("n")), isolate=False)
    with pytest.raises(StageFailedError):
        orders.run(asset)
    assert (orders.outputs(), orders.committed()) == ([], None)


def test_rows_that_a_stage_had_computed_already_are_not_read_again(orders: Orders, rows_read: RowsRead) -> None:
    count = sent(orders)

    def looked_at(orders: DataFrame) -> DataFrame:
        assert orders.count() == CACHED
        return doubled(orders)

    found = orders.metadata(orders.run(orders.asset(looked_at)))
    assert (found["records_read"], found["records_written"]) == (count, CACHED)
    assert count <= rows_read() < count + 100
    assert [record.json()["id"] for record in orders.outputs()] == list(range(CACHED))


def test_rows_in_another_order_than_theirs_are_sorted(
    orders: Orders, spark: SparkSession, consume: Consume, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark says nothing about the order in which one task gets the partitions of others: the writer looks."""
    caplog.set_level(logging.INFO, "kpipe_platform.spark.sink.job")
    orders.send(*(order(n) for n in range(100)))
    none = F.lit(None).cast("binary")
    value = F.col("id").cast("string").cast("binary")
    rows = spark.range(100).select(
        none.alias("key"), value.alias("value"), none.alias("note"), F.col("id").alias("ord")
    )
    backwards = rows.repartitionByRange(4, F.desc("ord"))
    settings = orders.manager.source.connection.settings
    planned = PlannedRange(OffsetRange(orders.source, 0, 0, 100), "id", 0, 100, None)
    spec = WriterSpec(
        settings=settings,
        source_settings=settings,
        slice=Slice(orders.group, "run", "abc", (planned,)),
        mode="transactional",
        outputs=(OutputTopic(orders.target, TopicLimits()),),
        dead_letters=(None,),
        policies=FaultPolicies(FaultAction.STOP),
        codecs=((RawCodec(), RawCodec()),),
        isolation="read_committed",
    )
    outcome = write_rows(WriterRows(backwards, per_record=True, in_order=True), spec)
    assert (outcome.status, outcome.total.read, outcome.total.written) == ("committed", 100, 100)
    assert [record.getMessage() for record in caplog.records if "sorting them" in record.getMessage()]
    assert [json.loads(record.value or b"") for record in consume(orders.target)] == list(range(100))

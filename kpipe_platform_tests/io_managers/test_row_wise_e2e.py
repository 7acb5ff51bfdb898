"""Stages that only compute and filter columns: a slice is decoded and staged in one pass, with no sort."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import FaultAction, KafkaDestination, KafkaIOManager, RawCodec
from kpipe_platform.errors import DeadLetterLimitError, RecordFaultError, StageFailedError
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.slices import PlannedRange, Slice
from kpipe_platform.kafka.topics import TopicLimits
from kpipe_platform.policies.components import FaultPolicies
from kpipe_platform.spark import reader, row_wise, writer, writer_rows
from kpipe_platform.spark.cached import RowCache
from kpipe_platform.spark.writer import write_rows
from kpipe_platform.spark.writer_rows import WriterRows
from kpipe_platform.spark.writer_spec import WriterSpec
from kpipe_platform.testing.plugin import Consume

from .conftest import BAD, CACHED, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

MakeOrders = Callable[..., Orders]
EVERY = 400


@pytest.fixture(params=[1_000, 100_000], ids=["several_tasks", "one_task"], autouse=True)
def offsets_a_part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many offsets a parallel part of a slice has: less than the slices here have, or more."""
    monkeypatch.setattr(reader, "_OFFSETS_A_PART", request.param)
    return int(request.param)


several_tasks = pytest.mark.parametrize("offsets_a_part", [1_000], indirect=True)
one_task = pytest.mark.parametrize("offsets_a_part", [100_000], indirect=True)


@dataclass
class Seen:
    """How slices were written: caches that were asked for, and how many outputs were taken as row by row."""

    caches: list[RowCache]
    row_wise: int = 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen([])
    keep, made = RowCache.keep, row_wise.row_wise

    def kept(cache: RowCache) -> None:
        found.caches.append(cache)
        keep(cache)

    def looked(*args: Any) -> DataFrame | None:
        frame = made(*args)
        found.row_wise += frame is not None
        return frame

    monkeypatch.setattr(RowCache, "keep", kept)
    monkeypatch.setattr(writer_rows, "row_wise", looked)
    return found


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[WriterRows]:
    """The rows of every pass over a slice."""
    found: list[WriterRows] = []
    run_pass = writer.run_pass

    def noted(rows: WriterRows, spec: WriterSpec) -> Any:
        found.append(rows)
        return run_pass(rows, spec)

    monkeypatch.setattr(writer, "run_pass", noted)
    return found


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


def leaves(frame: DataFrame) -> list[str]:
    """What a frame reads."""
    found = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [found.apply(number).nodeName() for number in range(found.size())]


def doubled(orders: DataFrame) -> DataFrame:
    return orders.select("id", (F.col("amount") * 2).alias("amount"), "note")


def even(orders: DataFrame) -> DataFrame:
    return orders.where("id % 2 = 0").withColumn("note", F.upper("note"))


def test_outputs_and_dead_letters_in_one_pass(orders: Orders, seen: Seen) -> None:
    count = sent(orders)
    found = orders.metadata(orders.run(orders.asset(doubled)))
    bad = CACHED // EVERY
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count, CACHED, bad)
    wanted = [{"id": n, "amount": n * 3.0, "note": f"n{n}"} for n in range(CACHED)]
    assert [record.json() for record in orders.outputs()] == wanted
    letters = orders.letters()
    assert [r.json()["original"]["offset"] for r in letters] == [n * (EVERY + 1) + EVERY for n in range(bad)]
    # One cache for what is written, none that was filled for the rows read; none is left.
    assert seen.row_wise == 1
    assert not any(cache.is_kept for cache in seen.caches)
    assert (orders.committed(), orders.lag()) == (count, 0)


def test_what_a_filter_takes_out_is_read_and_not_written(make_orders: MakeOrders, seen: Seen) -> None:
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
    assert seen.row_wise == 1


@one_task
@pytest.mark.parametrize("count", [1, 100, CACHED])
def test_rows_of_one_task_are_read_once_and_not_cached(
    orders: Orders, passes: list[WriterRows], seen: Seen, count: int
) -> None:
    orders.send(*(order(n) for n in range(count)), BAD)
    found = orders.metadata(orders.run(orders.asset(even)))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count + 1, (count + 1) // 2, 1)
    assert orders.ids() == list(range(0, count, 2))
    assert len(orders.letters()) == 1
    (rows,) = passes
    assert (rows.one_task, rows.per_record) == (True, True)
    assert leaves(rows.frame) == ["DataSourceV2Relation"]
    assert not any(cache.is_filled for cache in seen.caches)
    assert orders.committed() == count + 1


@several_tasks
@pytest.mark.parametrize("given", [None, ("tenant", b"t1"), ("none", None)])
def test_headers_are_handed_to_the_writer_where_a_record_has_some(
    orders: Orders, passes: list[WriterRows], given: tuple[str, bytes | None] | None
) -> None:
    count = sent(orders)
    orders.send(order(CACHED, headers=[] if given is None else [given]))
    orders.run(orders.asset(lambda orders: orders.withColumn("amount", F.col("amount") * 2)))
    assert [("headers" in rows.extra) for rows in passes] == [given is not None]
    outputs = orders.outputs()
    assert [record.json()["amount"] for record in outputs] == [n * 3.0 for n in range(CACHED + 1)]
    source, place = f"{orders.source}-0-{count}", f"{orders.source}/0/{count}"
    added = [("correlation-id", source.encode()), ("kpipe.source", place.encode())]
    found = [header for header in outputs[-1].headers or () if header[0] not in ("kpipe.instance", "kpipe.worker")]
    assert found == [*([] if given is None else [given]), *added]
    assert [dict(r.headers)["kpipe.source"] for r in outputs[:2]] == [
        b"%s/0/%d" % (orders.source.encode(), n) for n in (0, 1)
    ]
    assert orders.committed() == count + 1


def test_a_record_that_stops_the_run_stops_it_before_anything_is_seen(orders: Orders, seen: Seen) -> None:
    sent(orders)
    with pytest.raises(RecordFaultError, match="offset 400"):
        orders.run(orders.asset(doubled, on_fault=FaultAction.STOP))
    assert (orders.outputs(), orders.committed(), seen.row_wise) == ([], None, 1)


def test_a_limit_counts_what_is_filtered_out_as_read(orders: Orders, seen: Seen) -> None:
    count = sent(orders)
    share = CACHED / EVERY / count
    with pytest.raises(DeadLetterLimitError):
        orders.run(orders.asset(even, max_dead_letter_ratio=share * 0.9))
    assert (orders.outputs(), orders.committed()) == ([], None)
    found = orders.metadata(orders.run(orders.asset(even, max_dead_letter_ratio=share * 1.1)))
    assert (found["records_read"], found["dead_letters"], seen.row_wise) == (count, CACHED // EVERY, 2)


def test_at_least_once(make_orders: MakeOrders, seen: Seen) -> None:
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
    assert seen.row_wise == 1


def test_a_record_that_the_topic_refuses_is_dead_lettered(make_orders: MakeOrders, seen: Seen) -> None:
    orders = make_orders(target={"config": {"max.message.bytes": "2000"}})
    count = sent(orders)
    orders.send(order(CACHED, value={"note": "x" * 3_000}), order(CACHED + 1))
    found = orders.metadata(orders.run(orders.asset(doubled)))
    bad = CACHED // EVERY
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count + 2, CACHED + 1, bad + 1)
    assert orders.ids() == [*range(CACHED), CACHED + 1]
    assert seen.row_wise == 1


def test_a_record_that_the_stage_fails_on_is_isolated(orders: Orders, seen: Seen) -> None:
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
    assert seen.row_wise == 1
    assert not any(cache.is_kept for cache in seen.caches)


def test_a_stage_that_fails_and_is_not_isolated_commits_nothing(orders: Orders) -> None:
    sent(orders)
    orders.send(order(0, value={"note": "no number"}))
    asset = orders.asset(lambda orders: orders.select(F.col("note").cast("int").alias("n")), isolate=False)
    with pytest.raises(StageFailedError):
        orders.run(asset)
    assert (orders.outputs(), orders.committed()) == ([], None)


def test_rows_that_a_stage_had_computed_already_are_not_computed_again(orders: Orders, seen: Seen) -> None:
    count = sent(orders)

    def looked_at(orders: DataFrame) -> DataFrame:
        assert orders.count() == CACHED
        return doubled(orders)

    found = orders.metadata(orders.run(orders.asset(looked_at)))
    assert (found["records_read"], found["records_written"], seen.row_wise) == (count, CACHED, 0)
    assert [record.json()["id"] for record in orders.outputs()] == list(range(CACHED))


@one_task
def test_rows_in_another_order_than_theirs_are_sorted(
    orders: Orders, spark: SparkSession, consume: Consume, passes: list[WriterRows]
) -> None:
    """Spark says nothing about the order in which one task gets the partitions of others: the writer looks."""
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
        topic=orders.target,
        limits=TopicLimits(),
        dead_letters=(None,),
        policies=FaultPolicies(FaultAction.STOP),
        codecs=((RawCodec(), RawCodec()),),
        isolation="read_committed",
    )
    outcome = write_rows(WriterRows(backwards, per_record=True, in_order=True), spec)
    assert (outcome.status, outcome.total.read, outcome.total.written) == ("committed", 100, 100)
    assert [rows.in_order for rows in passes] == [True, False]
    assert [json.loads(record.value or b"") for record in consume(orders.target)] == list(range(100))

"""Record timestamps that Spark, the destination or librdkafka cannot take: a fault of that record alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    ExecutionMode,
    FaultAction,
    JsonCodec,
    KafkaDeadLetterDestination,
    KafkaIOManager,
    KafkaTopic,
    OffsetCommittingIOManager,
    PartitionScaling,
    RawCodec,
    dead_letter_asset,
    kafka_topic_asset,
    table_input,
)
from kpipe_platform.dead_letters.read.reader import read_dead_letter
from kpipe_platform.errors import DestinationRejectedError, RecordFaultError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.testing.messages import ConsumedRecord

from .conftest import CACHED, DELIVERIES, Orders, order
from .test_destinations_e2e import with_destination
from .unchanged import as_pandas, as_records, as_spark

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ANY = {"message.timestamp.after.max.ms": str(2**63 - 1), "message.timestamp.before.max.ms": str(2**63 - 1)}
# Nanoseconds of 2026 taken for milliseconds, and the first one that Spark cannot count.
FAR, FIRST = 1_767_225_600_000_000_000, (2**63 - 1) // 1000 + 1
LAST = FIRST - 1


@pytest.fixture
def any_times(make_orders: Callable[..., Orders]) -> Orders:
    return make_orders(config=ANY, target={"config": ANY})


def with_a_shuffle(orders: DataFrame) -> DataFrame:
    return orders.orderBy("id")


def timestamps_of(letters: list[ConsumedRecord]) -> set[tuple[int, int]]:
    envelopes = [letter.json() for letter in letters]
    assert {(e["fault"]["component"], e["fault"]["kind"]) for e in envelopes} == {("source", "timestamp")}
    return {(e["original"]["offset"], e["original"]["timestamp_ms"]) for e in envelopes}


class TestBeyondSpark:
    @pytest.mark.parametrize("delivery", DELIVERIES)
    @pytest.mark.parametrize("stage", [as_spark, as_pandas, as_records, with_a_shuffle])
    def test_the_record_alone_is_dead_lettered(
        self, any_times: Orders, stage: Callable[..., Any], delivery: str
    ) -> None:
        orders = any_times
        orders.send(order(0), order(1, timestamp=FAR), order(2), order(3, timestamp=FIRST), order(4))
        manager = with_destination(orders.manager, delivery=delivery)
        found = orders.metadata(orders.run(orders.asset(stage), manager=manager))
        assert (found["records_read"], found["records_written"], found["dead_letters"]) == (5, 3, 2)
        assert sorted(orders.ids()) == [0, 2, 4]
        assert timestamps_of(orders.letters()) == {(1, FAR), (3, FIRST)}
        assert orders.committed() == 5

    def test_of_a_slice_that_is_cached(self, any_times: Orders) -> None:
        orders = any_times
        orders.send(*(order(n) for n in range(CACHED)), order(CACHED, timestamp=FAR))
        found = orders.metadata(orders.run(orders.asset(with_a_shuffle)))
        assert (found["records_written"], found["dead_letters"]) == (CACHED, 1)
        assert orders.ids() == list(range(CACHED))

    def test_of_a_slice_in_lanes(self, any_times: Orders) -> None:
        orders = any_times
        relaxed = PartitionScaling(
            execution_mode=ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION, max_in_flight_per_partition=2
        )
        orders.send(*(order(n) for n in range(2_000)), order(2_000, timestamp=FAR))
        found = orders.metadata(orders.run(orders.asset(scaling=relaxed, isolate=False)))
        assert (found["records_written"], found["dead_letters"]) == (2_000, 1)
        assert sorted(orders.ids()) == list(range(2_000))

    def test_of_a_raw_copy(self, any_times: Orders) -> None:
        orders = any_times
        source = kafka_topic_asset(orders.source, value_codec=RawCodec(), partitions=1, name="orders")
        orders.topic_asset = source
        orders.send(order(0), order(1, timestamp=FAR), order(2), order(3, timestamp=-FAR), order(4, timestamp=-1))
        orders.run(orders.asset(topic=KafkaTopic(orders.target, value_codec=RawCodec())))
        assert orders.ids() == [0, 2, 4]
        assert timestamps_of(orders.letters()) == {(1, FAR), (3, -FAR)}

    @pytest.mark.parametrize("stage", [as_spark, as_records])
    def test_before_1970(self, any_times: Orders, stage: Callable[..., Any]) -> None:
        orders = any_times
        orders.send(order(0), order(1, timestamp=-1), order(2, timestamp=-5), order(3, timestamp=-FAR))
        topic = KafkaTopic(orders.target, value_codec=JsonCodec(), timestamp_column="_kafka.timestamp")
        orders.run(orders.asset(stage, topic=topic))
        assert orders.ids() == [0]
        faults = {letter.json()["original"]["offset"]: letter.json()["fault"] for letter in orders.letters()}
        assert {offset: fault["component"] for offset, fault in faults.items()} == {
            1: "destination",
            2: "destination",
            3: "source",
        }

    def test_skip_and_stop(self, any_times: Orders) -> None:
        orders = any_times
        orders.send(order(0), order(1, timestamp=FAR), order(2))
        with pytest.raises(RecordFaultError, match=rf"offset 1: its timestamp {FAR} ms"):
            orders.run(orders.asset(on_fault=FaultAction.STOP))
        assert orders.committed() is None
        assert orders.outputs(settled=False) == []
        found = orders.metadata(orders.run(orders.asset(on_fault=FaultAction.SKIP)))
        assert (found["records_written"], found["records_skipped"]) == (2, 1)
        assert orders.committed() == 3

    def test_a_stage_that_overflows_itself_is_isolated_all_the_same(self, any_times: Orders) -> None:
        def stage(orders: DataFrame) -> DataFrame:
            return orders.withColumn("at", F.timestamp_millis(F.col("id")))

        orders = any_times
        orders.send(order(0), order(1, timestamp=FAR), order(FAR), order(3))
        orders.run(orders.asset(stage))
        assert orders.ids() == [0, 3]
        faults = {letter.json()["original"]["offset"]: letter.json()["fault"] for letter in orders.letters()}
        assert {offset: fault["component"] for offset, fault in faults.items()} == {1: "source", 2: "stage"}

    def test_where_another_store_takes_the_output(self, any_times: Orders) -> None:
        stored: list[Any] = []

        class Store(dg.IOManager):
            def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
                stored.extend(row["id"] for row in obj.collect())

            def load_input(self, context: dg.InputContext) -> Any:
                raise NotImplementedError

        orders = any_times
        orders.send(order(0), order(1, timestamp=FAR), order(2))
        asset = orders.asset(topic=None, io_manager_key="store")
        orders.run(asset, resources={"store": OffsetCommittingIOManager(inner=Store())})
        assert sorted(stored) == [0, 2]
        assert timestamps_of(orders.letters()) == {(1, FAR)}

    @pytest.mark.parametrize("stage", [as_spark, as_pandas])
    def test_in_a_plain_asset(self, any_times: Orders, stage: Callable[..., Any]) -> None:
        orders = any_times
        asset = dg.asset(
            name="enriched",
            ins={"orders": dg.AssetIn(key=orders.topic_asset.key)},
            partitions_def=orders.topic_asset.partitions_def,
            io_manager_key="kafka_io_manager",
            metadata={**KafkaTopic(orders.target).as_metadata(), "kpipe/on_fault": "dead_letter"},
        )(stage)
        orders.send(order(0), order(1, timestamp=FAR), order(2))
        orders.run(asset)
        assert sorted(orders.ids()) == [0, 2]
        assert timestamps_of(orders.letters()) == {(1, FAR)}

    def test_in_a_table(self, any_times: Orders) -> None:
        seen: list[Any] = []

        @dg.asset(ins={"orders": table_input()})
        def enriched(orders: DataFrame) -> None:
            seen.append(sorted(row["id"] for row in orders.collect()))

        orders = any_times
        orders.send(order(0), order(1, timestamp=FAR))
        with pytest.raises(RecordFaultError, match="offset 1: its timestamp"):
            orders.run(enriched, None)
        orders.send(order(1))
        orders.run(enriched, None)
        assert seen == [[0, 1]]

    def test_in_the_table_of_dead_letters(self, any_times: Orders, make_orders: Callable[..., Orders]) -> None:
        orders, letters = make_orders(), any_times
        seen: list[Any] = []

        @dg.asset
        def reasons(orders_dead_letters: DataFrame) -> None:
            seen.extend(row["dlq_timestamp"] for row in orders_dead_letters.collect())

        asset = dead_letter_asset(orders.topic_asset, topic=letters.source)
        letters.send({"value": b"x", "timestamp": FAR, "headers": [("__connect.errors.topic", b"orders")]})
        orders.run(asset, None, others=[reasons])
        assert seen == [None]

    def test_the_last_one_that_spark_can_count(self, any_times: Orders) -> None:
        orders = any_times
        orders.send(order(0, timestamp=LAST), order(1))
        topic = KafkaTopic(orders.target, value_codec=JsonCodec(), timestamp_column="_kafka.timestamp")
        orders.run(orders.asset(topic=topic))
        assert orders.outputs()[0].timestamp_ms == LAST


class TestZero:
    """librdkafka takes 0 for "now"."""

    @pytest.mark.parametrize("delivery", DELIVERIES)
    @pytest.mark.parametrize("zero", [0, -7])
    def test_an_output_is_dead_lettered(self, any_times: Orders, delivery: str, zero: int) -> None:
        def stage(orders: DataFrame) -> DataFrame:
            return orders.withColumn("at", F.when(F.col("id") == 1, zero).otherwise(1_767_225_600_000))

        orders = any_times
        orders.send(order(0), order(1), order(2))
        topic = KafkaTopic(orders.target, value_codec=JsonCodec(), timestamp_column="at")
        manager = with_destination(orders.manager, delivery=delivery)
        with pytest.raises(DestinationRejectedError, match=f"timestamp {zero} ms"):
            orders.run(orders.asset(stage, topic=topic, on_fault=FaultAction.STOP), manager=manager)
        orders.run(orders.asset(stage, topic=topic), manager=manager)
        written = orders.outputs()
        assert {r.json()["id"] for r in written} == {0, 2}
        assert {r.timestamp_ms for r in written} == {1_767_225_600_000}
        [letter] = orders.letters()
        assert letter.json()["fault"]["kind"] == "timestamp"

    def test_of_a_record(self, any_times: Orders) -> None:
        def stage(orders: list[KafkaRecord]) -> list[KafkaRecord]:
            return [KafkaRecord(key=record.key, value=record.value, timestamp_ms=0) for record in orders]

        orders = any_times
        orders.send(order(0))
        orders.run(orders.asset(stage))
        assert orders.outputs() == []
        [letter] = orders.letters()
        assert letter.json()["original"]["timestamp_ms"] == 0

    def test_where_the_broker_sets_the_time_any_goes(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(target={"config": {"message.timestamp.type": "LogAppendTime"}})
        orders.send(order(0))
        topic = KafkaTopic(orders.target, value_codec=JsonCodec(), timestamp_column="amount_ms")
        orders.run(orders.asset(lambda orders: orders.withColumn("amount_ms", F.lit(0)), topic=topic))
        assert orders.ids() == [0]


def test_a_dead_letter_in_raw_form_keeps_a_timestamp_that_its_topic_does_not_take(any_times: Orders) -> None:
    """A new topic takes no record of more than an hour from now."""
    orders = any_times
    connection = orders.manager.source.connection
    manager = KafkaIOManager(
        source=orders.manager.source,
        destination=orders.manager.destination,
        dead_letter=KafkaDeadLetterDestination(connection=connection, form="raw", create_topic=True),
        spark=orders.manager.spark,
    )
    orders.send(order(0), order(1, timestamp=FAR), order(2))
    orders.run(orders.asset(), manager=manager)
    assert orders.ids() == [0, 2]
    [letter] = orders.letters()
    assert json.loads(letter.header("kpipe.origin") or b"")["timestamp_ms"] == FAR
    record = KafkaRecord(
        letter.topic,
        letter.partition,
        letter.offset,
        letter.timestamp_ms,
        "create_time",
        letter.key,
        letter.value,
        letter.headers,
    )
    assert read_dead_letter(record).original.timestamp_ms == FAR

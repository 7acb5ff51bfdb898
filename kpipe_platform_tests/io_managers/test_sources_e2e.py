"""What a topic's log can hold, and what a plan refuses: real broker, real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from pyspark.sql import DataFrame

from kpipe_platform import JsonCodec, KafkaIOManager, KafkaSource, KafkaTopic, kafka_topic_asset
from kpipe_platform.errors import (
    ForeignMemberError,
    LostRangeError,
    NoStartOffsetError,
    OffsetsVanishedError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.topics import create_topic, delete_topic
from kpipe_platform_tests.processes import wait_until

from .conftest import ORDER, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def admin(kafka_broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def eager_cleaner(admin: AdminClient) -> Iterator[None]:
    """The broker's log cleaner looks several times a second for what it can compact, not every 15 s."""
    (broker,) = admin.list_topics(timeout=30).brokers

    def alter(how: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", "200", incremental_operation=how)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker), incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    alter(AlterConfigOpType.SET)
    yield
    alter(AlterConfigOpType.DELETE)


def with_source(manager: KafkaIOManager, **changes: Any) -> KafkaIOManager:
    source = KafkaSource(
        **{"connection": manager.source.connection, "group_prefix": manager.source.group_prefix, **changes}
    )
    return KafkaIOManager(
        source=source, destination=manager.destination, dead_letter=manager.dead_letter, spark=manager.spark
    )


class TestLog:
    def test_aborted_records_and_markers(self, orders: Orders) -> None:
        """100 committed and 20 aborted: 100 rows, and nothing left although the span is 122."""
        orders.send(*(order(n) for n in range(100)), transaction="commit")
        orders.send(*(order(n) for n in range(1000, 1020)), transaction="abort")
        found = orders.metadata(orders.run(orders.asset()))
        assert found["records_read"] == 100
        assert orders.ids() == list(range(100))
        assert orders.committed() == 122
        assert orders.lag() == 0
        again = orders.metadata(orders.run(orders.asset()))
        assert again["records_read"] == 0

    def test_a_slice_of_nothing_but_markers(self, orders: Orders) -> None:
        orders.send(*(order(n) for n in range(20)), transaction="abort")
        found = orders.metadata(orders.run(orders.asset()))
        assert (found["records_read"], found["records_written"]) == (0, 0)
        assert orders.committed() == 21
        assert orders.lag() == 0

    def test_an_open_transaction_stops_plan_and_read(self, orders: Orders, kafka_broker: EmbeddedBroker) -> None:
        orders.send(*(order(n) for n in range(10)))
        open_ = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": orders.source})
        open_.init_transactions(10)
        open_.begin_transaction()
        open_.produce(orders.source, order(10)["value"])
        open_.flush()
        orders.send(order(11))
        found = orders.metadata(orders.run(orders.asset()))
        assert (found["records_read"], found["lag"]) == (10, 0)
        assert orders.committed() == 10
        open_.commit_transaction(10)
        assert orders.metadata(orders.run(orders.asset()))["records_read"] == 2
        assert orders.ids() == list(range(12))

    @pytest.mark.usefixtures("eager_cleaner")
    def test_compacted_gaps_are_no_loss(self, make_orders: Callable[..., Orders], kafka_broker: EmbeddedBroker) -> None:
        orders = make_orders(
            config={
                "cleanup.policy": "compact",
                "segment.ms": "100",
                "min.cleanable.dirty.ratio": "0.01",
                "max.compaction.lag.ms": "200",
                "delete.retention.ms": "100",
            }
        )
        for number in range(30):
            orders.send({"key": "same", "value": order(number)["value"]}, order(1000 + number))

        def gap() -> bool:
            # A segment is only closed when a record arrives, and only closed segments are compacted.
            orders.send({"key": "closer", "value": order(5000)["value"]})
            return len(orders.consume(orders.source)) < 45

        wait_until(gap, "compaction", 90)
        records = orders.consume(orders.source)
        found = orders.metadata(orders.run(orders.asset()))
        # The cleaner may run once more between the two looks at the log, never the other way round.
        assert found["records_read"] <= len(records)
        assert {r.json()["id"] for r in orders.outputs()} >= {1000 + n for n in range(30)}
        assert orders.lag() == 0

    def test_a_tail_of_markers_after_a_bounded_slice(self, orders: Orders) -> None:
        orders.send(order(1), transaction="commit")
        orders.send(order(2), transaction="commit")
        from kpipe_platform import PartitionScaling

        asset = orders.asset(scaling=PartitionScaling(max_records=2), max_slices=None)
        assert orders.metadata(orders.run(asset))["records_read"] == 2
        assert orders.ids() == [1, 2]
        assert orders.committed() == 4


class TestRefusals:
    def committed_ten_then_deleted_to_fifty(self, orders: Orders, admin: AdminClient) -> None:
        from kpipe_platform import PartitionScaling

        orders.send(*(order(n) for n in range(100)))
        orders.run(orders.asset(scaling=PartitionScaling(max_records=10)))
        assert orders.committed() == 10
        for future in admin.delete_records([TopicPartition(orders.source, 0, 50)]).values():
            future.result(10)

    def test_a_lost_range_is_named(self, orders: Orders, admin: AdminClient) -> None:
        self.committed_ten_then_deleted_to_fifty(orders, admin)
        with pytest.raises(LostRangeError, match=r"offsets \[10, 50\)") as caught:
            orders.run(orders.asset())
        assert (caught.value.lost.start, caught.value.lost.end) == (10, 50)
        assert orders.committed() == 10

    def test_a_lost_range_is_skipped_and_recorded_where_that_is_wanted(
        self, orders: Orders, admin: AdminClient
    ) -> None:
        self.committed_ten_then_deleted_to_fifty(orders, admin)
        manager = with_source(orders.manager, on_lost_offsets="skip")
        found = orders.metadata(orders.run(orders.asset(), manager=manager))
        assert found["records_read"] == 50
        assert f"{orders.source}/0 [10, 50)" in found["lost_ranges"]
        assert orders.ids() == [*range(10), *range(50, 100)]

    def test_a_recreated_topic(self, orders: Orders, kafka_broker: EmbeddedBroker) -> None:
        orders.send(*(order(n) for n in range(10)))
        orders.run(orders.asset())
        delete_topic(kafka_broker.bootstrap_servers, orders.source)
        create_topic(kafka_broker.bootstrap_servers, orders.source)
        orders.send(*(order(n) for n in range(100, 120)))
        with pytest.raises(TopicRecreatedError, match="deleted and recreated"):
            orders.run(orders.asset())
        assert orders.ids() == list(range(10))

    @pytest.mark.parametrize("more", [0, 3])
    def test_an_offset_that_vanished(self, orders: Orders, admin: AdminClient, more: int) -> None:
        orders.send(*(order(n) for n in range(10)))
        orders.run(orders.asset())
        # "Report materialization" in the UI: says nothing of offsets, and is Dagster's last.
        orders.instance.report_runless_asset_event(dg.AssetMaterialization("enriched", partition="0"))
        admin.delete_consumer_groups([orders.group])[orders.group].result(10)
        orders.send(*(order(n) for n in range(10, 10 + more)))
        result = orders.run(orders.asset())
        found = orders.metadata(result)
        assert found["resumed_ranges"] == f"- {orders.source}/0 [10, {10 + more})"
        said = [entry.user_message for entry in orders.instance.all_logs(result.run_id)]
        assert any(f"last materialization ended: {orders.source}/0 at 10" in text for text in said)
        assert (found["records_read"], orders.committed()) == (more, 10 + more)
        assert "resumed_ranges" not in orders.metadata(orders.run(orders.asset()))
        assert orders.ids() == list(range(10 + more))

    def test_an_offset_that_vanished_from_a_plain_asset(self, orders: Orders, admin: AdminClient) -> None:
        @dg.asset(
            name="enriched",
            ins={"orders": dg.AssetIn(orders.topic_asset.key)},
            partitions_def=orders.topic_asset.partitions_def,
            io_manager_key="kafka_io_manager",
            metadata=KafkaTopic(orders.target, value_codec=JsonCodec()).as_metadata(),
        )
        def plain(orders: DataFrame) -> DataFrame:
            return orders.select("id")

        orders.send(order(0))
        orders.run(plain)
        admin.delete_consumer_groups([orders.group])[orders.group].result(10)
        orders.send(order(1))
        assert orders.metadata(orders.run(plain))["resumed_ranges"] == f"- {orders.source}/0 [1, 2)"
        assert orders.ids() == [0, 1]

    def test_an_offset_that_vanished_from_a_group_of_another_name(self, orders: Orders) -> None:
        orders.send(*(order(n) for n in range(10)))
        orders.run(orders.asset())
        with pytest.raises(OffsetsVanishedError, match=f"ended at offset 10 of group {orders.group}"):
            orders.run(orders.asset(), manager=with_source(orders.manager, group_prefix="renamed"))
        assert orders.ids() == list(range(10))

    def test_a_foreign_member(self, orders: Orders, kafka_broker: EmbeddedBroker) -> None:
        orders.send(order(1))
        rival = Consumer(
            {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": orders.group, "client.id": "rival"}
        )
        rival.subscribe([orders.source])
        try:
            wait_until(lambda: rival.poll(0.1) is None and bool(rival.assignment()), "the rival's assignment", 30)
            with pytest.raises(ForeignMemberError, match="rival"):
                orders.run(orders.asset())
        finally:
            rival.close()
        assert orders.outputs() == []

    def test_missing_topics_and_partitions(
        self, make_orders: Callable[..., Orders], kafka_broker: EmbeddedBroker
    ) -> None:
        orders = make_orders(2)
        delete_topic(kafka_broker.bootstrap_servers, orders.source)
        with pytest.raises(TopicNotFoundError, match=f"{orders.source}.*does not exist"):
            orders.run(orders.asset(on_fault=None))
        create_topic(kafka_broker.bootstrap_servers, orders.source, partitions=1)
        with pytest.raises(TopicNotFoundError, match="has no partition 1"):
            orders.run(orders.asset(), "1")
        delete_topic(kafka_broker.bootstrap_servers, orders.target)
        with pytest.raises(TopicNotFoundError, match="kpipe topics create"):
            orders.run(orders.asset())


class TestStart:
    @pytest.fixture
    def filled(self, orders: Orders) -> Iterator[Orders]:
        orders.send(*(order(n, timestamp=1_700_000_000_000 + n * 1000) for n in range(10)))
        return orders  # type: ignore[return-value]

    def test_error(self, filled: Orders) -> None:
        with pytest.raises(NoStartOffsetError, match="--to earliest"):
            filled.run(filled.asset(), manager=with_source(filled.manager, start="error"))

    def test_latest_stores_where_it_began_so_that_nothing_in_between_is_lost(self, filled: Orders) -> None:
        manager = with_source(filled.manager, start="latest")
        assert filled.metadata(filled.run(filled.asset(), manager=manager))["records_read"] == 0
        assert filled.committed() == 10
        filled.send(order(10))
        assert filled.metadata(filled.run(filled.asset(), manager=manager))["records_read"] == 1
        assert filled.ids() == [10]

    @pytest.mark.parametrize("start", ["latest", "2100-01-01"])
    @pytest.mark.parametrize("partitioned", [True, False])
    def test_a_partition_that_is_added_later_loses_nothing(
        self, make_orders: Callable[..., Orders], admin: AdminClient, start: str, partitioned: bool
    ) -> None:
        """One that was there when the group began still begins where the start policy says."""
        orders = make_orders(2)
        orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec(ORDER), partitions=3, name="orders")
        manager = with_source(orders.manager, start=start)
        asset = orders.asset(partitioned=partitioned)
        orders.send(*({**order(n), "partition": n % 2} for n in range(4)))

        def run(*keys: str) -> int:
            found = [orders.run(asset, key, manager=manager) for key in (keys if partitioned else [None])]
            return sum(orders.metadata(each)["records_read"] for each in found)

        assert run("0") == 0
        admin.create_partitions([NewPartitions(orders.source, 3)])[orders.source].result(10)
        wait_until(lambda: len(manager.source.partition_numbers(orders.source)) == 3, "the new partition")
        orders.send(*({**order(n), "partition": 2} for n in range(4, 9)))
        if partitioned:
            assert run("1") == 0
        orders.send({**order(9), "partition": 0})
        assert run("0", "2") == 6
        assert sorted(orders.ids()) == [4, 5, 6, 7, 8, 9]
        group = manager.source.committed(orders.group, orders.source)
        assert [each and each.metadata and each.metadata.partitions for each in group.values()] == [
            2,
            3 if partitioned else 2,
            3,
        ]

    def test_a_time(self, filled: Orders) -> None:
        manager = with_source(filled.manager, start="2023-11-14T22:13:24+00:00")  # 1,700,000,004 s
        filled.run(filled.asset(), manager=manager)
        assert filled.ids() == [4, 5, 6, 7, 8, 9]

    def test_an_operator_who_rewinds_the_group_is_followed(self, filled: Orders, admin: AdminClient) -> None:
        filled.run(filled.asset())
        moved = ConsumerGroupTopicPartitions(filled.group, [TopicPartition(filled.source, 0, 7)])
        admin.alter_consumer_group_offsets([moved])[filled.group].result(10)
        assert filled.metadata(filled.run(filled.asset()))["records_read"] == 3
        assert filled.ids() == [*range(10), 7, 8, 9]

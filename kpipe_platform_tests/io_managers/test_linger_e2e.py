"""A run that follows the stream: it waits for records, and takes them as they come, each once and in order."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kpipe_platform import ExecutionMode, KafkaIOManager, KafkaSource, PartitionScaling
from kpipe_platform.errors import (
    ConfigError,
    LostRangeError,
    OffsetConflictError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.slices.plan import planner
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.topics import create_topic, delete_topic
from kpipe_platform_tests.processes import wait_until

from .conftest import Orders, order

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@contextmanager
def running(orders: Orders, asset: Any, partition: str | None = "0", **how: Any) -> Iterator[Future[Any]]:
    """A materialization in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(orders.run, asset, partition, **how)


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


@contextmanager
def reading(broker: EmbeddedBroker, topic: str) -> Iterator[list[tuple[int, float]]]:
    """Ids of the outputs, in their order, with the moment when a reader of committed records sees each."""
    seen: list[tuple[int, float]] = []
    over = threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])

    def read() -> None:
        while not over.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                seen.append((json.loads(message.value() or b"{}")["id"], time.time()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(30)
        consumer.close()


def test_a_stream_is_followed_exactly_once_and_in_order(orders: Orders, kafka_broker: EmbeddedBroker) -> None:
    # The first slice of a session compiles; that is not what is measured here.
    orders.send(order(0))
    orders.run(orders.asset())
    rounds, records = 4, 40
    sent: dict[int, float] = {}
    with (
        reading(kafka_broker, orders.target) as seen,
        running(orders, orders.asset(max_slices=None, linger_s=4)) as run,
    ):
        # A record of each round comes while the run waits, and the others while it takes that one or waits again.
        for number in range(1, records + 1):
            sent[number] = time.time()
            orders.send(order(number))
            if number % (records // rounds) == 0:
                wait_until(lambda number=number: len(seen) > number, "the outputs")  # type: ignore[misc]
        found = orders.metadata(run.result(120))
    assert [number for number, _ in seen] == list(range(records + 1))
    assert orders.ids() == list(range(records + 1))
    assert (found["records_read"], found["records_written"], found["lag"]) == (records, records, 0)
    assert found["slice_count"] >= rounds
    assert [(r["start"], r["end"]) for r in found["ranges"]] == [(1, records + 1)]
    assert orders.committed() == records + 1
    waited = [at - sent[number] for number, at in seen if number in sent]
    logger.info("produce to readable: p50 %.3f s, in %s slices", percentile(waited, 50), found["slice_count"])
    # The metadata's figure is that of the first and last record of each slice.
    assert 0 < found["latency_p50_ms"] <= found["latency_p95_ms"] < 1000 * (max(waited) + 5)


def test_nothing_is_asked_of_spark_or_of_the_group_while_nothing_is_new(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Slice] = []
    asked = 0
    planned = planner.SlicePlanner.next
    looked = planner.SlicePlanner.has_new

    def plan(self: planner.SlicePlanner, clients: Any) -> Slice:
        plans.append(planned(self, clients))
        return plans[-1]

    def has_new(self: planner.SlicePlanner, *how: Any) -> bool:
        nonlocal asked
        asked += 1
        return looked(self, *how)

    monkeypatch.setattr(planner.SlicePlanner, "next", plan)
    monkeypatch.setattr(planner.SlicePlanner, "has_new", has_new)
    orders.send(order(1))
    began = time.monotonic()
    found = orders.metadata(orders.run(orders.asset(max_slices=None, linger_s=2)))
    assert time.monotonic() - began >= 2
    assert len(plans) == 1
    assert 10 < asked < 100
    assert (found["records_read"], "slice_count" in found, "latency_p50_ms" in found) == (1, False, False)


@pytest.mark.parametrize(
    ("limits", "taken"), [({"max_slices": 2}, 2), ({"max_slices": None, "max_duration_s": 3}, None)]
)
def test_the_other_bounds_end_the_wait_too(orders: Orders, limits: dict[str, Any], taken: int | None) -> None:
    orders.send(order(0))
    asset = orders.asset(linger_s=600, **limits)
    with running(orders, asset) as run:
        wait_until(lambda: orders.committed() == 1, "the first slice")
        orders.send(order(1))
        found = orders.metadata(run.result(60))
    if taken is not None:
        assert (found["records_read"], found["slice_count"]) == (2, taken)
    orders.run(orders.asset())
    assert orders.ids() == [0, 1]


def test_a_run_that_finds_nothing_waits_for_the_first_record(orders: Orders) -> None:
    with running(orders, orders.asset(max_slices=3, linger_s=600), partition="0") as run:
        for number in range(3):
            wait_until(lambda number=number: orders.committed() == number, "the slice before")  # type: ignore[misc]
            orders.send(order(number))
        found = orders.metadata(run.result(60))
    assert (found["records_read"], found["ranges"][0]["end"]) == (3, 3)
    assert found["latency_p50_ms"] > 0
    assert orders.ids() == [0, 1, 2]


@pytest.mark.parametrize("mode", [ExecutionMode.PRESERVE_PARTITION_ORDER, ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS])
def test_each_partition_of_a_range_run_waits_by_itself(make_orders: Callable[..., Orders], mode: ExecutionMode) -> None:
    orders = make_orders(2, target={"partitions": 1})
    scaling = PartitionScaling(execution_mode=mode)
    asset = orders.asset(max_slices=2, linger_s=600, scaling=scaling)
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
    with running(orders, asset, partition=None, tags=tags) as run:
        wait_until(lambda: orders.committed(0) == orders.committed(1) == 0, "both wait")
        # The partition that is taken second is not held up by the first one's wait.
        for number, partition in enumerate([1, 0, 1, 0]):
            orders.send(order(number, partition=partition))
            place = partition
            wait_until(lambda place=place, end=number // 2 + 1: orders.committed(place) == end, "it is taken")  # type: ignore[misc]
        result = run.result(60)
    assert result.success
    found = {
        e.materialization.partition: e.materialization.metadata["kpipe/records_read"].value
        for e in result.get_asset_materialization_events()
    }
    assert found == {"0": 2, "1": 2}
    assert sorted(orders.ids()) == [0, 1, 2, 3]


def test_an_asset_without_partitions_follows_all_of_them(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(3)
    asset = orders.asset(partitioned=False, max_slices=None, linger_s=4)
    with running(orders, asset, partition=None) as run:
        wait_until(lambda: orders.committed(2) == 0, "the wait")
        for number in range(3):
            orders.send(order(number, partition=number))
        found = orders.metadata(run.result(60))
    assert (found["records_read"], orders.lag()) == (3, 0)
    assert sorted(orders.ids()) == [0, 1, 2]


class TestRefusals:
    """What a short plan does not look at is noticed all the same."""

    @pytest.fixture(autouse=True)
    def _short_plans_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(planner, "ASK_ALL_EVERY_S", 600)

    def test_a_topic_created_anew_during_the_wait(self, orders: Orders, kafka_broker: EmbeddedBroker) -> None:
        orders.send(order(0), order(1))
        with running(orders, orders.asset(max_slices=None, linger_s=60)) as run:
            wait_until(lambda: orders.committed() == 2, "the first slice")
            delete_topic(kafka_broker.bootstrap_servers, orders.source)
            create_topic(kafka_broker.bootstrap_servers, orders.source)
            # The brokers delete the group's offset with the topic, and Dagster holds nothing before the run ends; but
            # the run itself knows what it has committed.
            with pytest.raises((TopicRecreatedError, TopicNotFoundError)):
                run.result(60)

    def test_a_range_lost_between_two_slices(
        self, orders: Orders, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orders.send(*map(order, range(4)))
        _between(monkeypatch, lambda: _delete_records(kafka_broker, orders.source, 3))
        with pytest.raises(LostRangeError, match=r"\[2, 3\)"):
            orders.run(orders.asset(max_slices=None, linger_s=5, scaling=PartitionScaling(max_records=2)))
        assert orders.committed() == 2
        assert orders.ids() == [0, 1]

    def test_an_open_transaction_before_the_offset_is_waited_for_in_peace(
        self, orders: Orders, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end of committed records stands before the offset; looking at that again and again plans nothing."""
        orders.send(order(0))
        servers = {"bootstrap.servers": kafka_broker.bootstrap_servers}
        writer = Producer({**servers, "transactional.id": f"writer-of-{orders.source}"})
        writer.init_transactions(10)
        writer.begin_transaction()
        writer.produce(orders.source, b"open", partition=0)
        writer.flush(10)
        admin = AdminClient(servers)
        wanted = ConsumerGroupTopicPartitions(orders.group, [TopicPartition(orders.source, 0, 2)])
        [moved] = admin.alter_consumer_group_offsets([wanted]).values()
        moved.result(10)
        plans: list[Slice] = []
        ask_all = planner.SlicePlanner._ask_all

        def counted(self: planner.SlicePlanner, clients: Any) -> Slice:
            plans.append(ask_all(self, clients))
            return plans[-1]

        monkeypatch.setattr(planner.SlicePlanner, "_ask_all", counted)
        found = orders.metadata(orders.run(orders.asset(max_slices=None, linger_s=1.5)))
        writer.abort_transaction(10)
        assert (found["records_read"], orders.committed(), orders.ids()) == (0, 2, [])
        assert len(plans) == 1

    @pytest.mark.parametrize("left", [0, 1])
    def test_a_loss_that_a_later_slice_finds_is_reported(
        self, orders: Orders, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, left: int
    ) -> None:
        """Also where the loss leaves nothing to read."""
        orders.send(*map(order, range(5)))
        _between(monkeypatch, lambda: _delete_records(kafka_broker, orders.source, 5 - left))
        of = orders.manager
        source = KafkaSource(
            connection=of.source.connection, group_prefix=of.source.group_prefix, on_lost_offsets="skip"
        )
        manager = KafkaIOManager(source=source, destination=of.destination, dead_letter=of.dead_letter, spark=of.spark)
        asset = orders.asset(max_slices=None, scaling=PartitionScaling(max_records=2))
        found = orders.metadata(orders.run(asset, manager=manager))
        assert f"{orders.source}/0 [2, {5 - left})" in found["lost_ranges"]
        assert (found["records_read"], found["ranges"][0]["end"], orders.committed()) == (2 + left, 5, 5)

    def test_an_offset_moved_between_two_slices_is_the_compares(
        self, orders: Orders, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orders.send(*map(order, range(4)))

        def other_run() -> None:
            orders.run(orders.asset(max_slices=1, scaling=PartitionScaling(max_records=1)))

        _between(monkeypatch, other_run)
        with pytest.raises(OffsetConflictError, match=r"was at offset 2 .* and is now at 3"):
            orders.run(orders.asset(max_slices=None, scaling=PartitionScaling(max_records=2)))
        assert orders.committed() == 3
        assert orders.ids() == [0, 1, 2]

    def test_a_topic_created_anew_between_two_slices_is_named_as_such(
        self, orders: Orders, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orders.send(*map(order, range(4)))

        def anew() -> None:
            delete_topic(kafka_broker.bootstrap_servers, orders.source)
            create_topic(kafka_broker.bootstrap_servers, orders.source)
            # So many that the old offset lies in the new log.
            orders.send(*map(order, range(10)))

        _between(monkeypatch, anew)
        # The compare finds that the group's offset went with the topic, and a long plan says why.
        with pytest.raises(TopicRecreatedError):
            orders.run(orders.asset(max_slices=None, scaling=PartitionScaling(max_records=2)))
        assert orders.ids() == [0, 1]


def _between(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen after the first slice, before the second is planned."""
    committed = planner.SlicePlanner._committed

    def then(self: planner.SlicePlanner, slice_: Slice) -> None:
        committed(self, slice_)
        monkeypatch.setattr(planner.SlicePlanner, "_committed", committed)
        happens()

    monkeypatch.setattr(planner.SlicePlanner, "_committed", then)


def _delete_records(broker: EmbeddedBroker, topic: str, before: int) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(30)


@pytest.mark.parametrize("arguments", [{"linger_s": 5}, {"linger_s": 0, "max_slices": None}])
def test_arguments(orders: Orders, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="linger_s"):
        orders.asset(**arguments)

"""A topic as an observable asset: data versions, rates, time to loss, and what declarative automation makes of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from dagster._core.definitions.observe import observe

from kpipe_platform import JsonCodec, KafkaConnection, KafkaIOManager, KafkaSource, kafka_topic_asset
from kpipe_platform.assets.observation import GroupStanding, soonest
from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.kafka.admin.retention import TimeToLoss
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.read import reader
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.topics import create_topic, delete_topic
from kpipe_platform_tests.checks.conftest import move_group
from kpipe_platform_tests.io_managers.conftest import ORDER, Orders, order
from kpipe_platform_tests.metadata import plain_metadata

pytestmark = [pytest.mark.broker, pytest.mark.spark]
HOUR = {"retention.ms": "3600000"}
KEY = dg.AssetKey("orders")


@pytest.fixture
def admin(kafka_broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def move(admin: AdminClient) -> Callable[..., None]:
    return partial(move_group, admin)


def topic_of(orders: Orders, **how: Any) -> Any:
    return kafka_topic_asset(orders.source, value_codec=JsonCodec(ORDER), name="orders", **how)


def look(
    orders: Orders, topic: Any, partition: str | None = None, *, manager: KafkaIOManager | None = None
) -> dict[str, dg.AssetObservation]:
    """Observe the topic; the observations by partition."""
    result = observe(
        [topic],
        resources={"kafka_io_manager": manager or orders.manager},
        instance=orders.instance,
        partition_key=partition,
    )
    found = [e.asset_observation_data.asset_observation for e in result.get_asset_observation_events()]
    return {str(observation.partition): observation for observation in found}


def values(observation: dg.AssetObservation) -> dict[str, Any]:
    return plain_metadata(observation.metadata)


def standing(observation: dg.AssetObservation) -> dict[str, dict[str, Any]]:
    table: Any = observation.metadata["kpipe/consumer_groups"].value
    return {str(record.data["group"]): dict(record.data) for record in table.records}


def now_ms() -> int:
    return int(time.time() * 1000)


class TestNumbers:
    def test_versions_watermarks_and_rates(self, make_orders: Callable[..., Orders]) -> None:
        """One of three partitions grows by 40; the rate is that over the seconds in between."""
        orders = make_orders(3, config=HOUR)
        topic = topic_of(orders)
        orders.send(*(order(n, partition=n % 3) for n in range(9)))
        first = look(orders, topic)
        assert {p: o.tags["dagster/data_version"] for p, o in first.items()} == {"0": "3", "1": "3", "2": "3"}
        assert {p: values(o)["offsets_per_s"] for p, o in first.items()} == {"0": None, "1": None, "2": None}
        kept = ("log_start", "log_end", "offset_count", "timestamp_type", "retention")
        assert [values(first["1"])[name] for name in kept] == [0, 3, 3, "create_time", "retention.ms=3600000"]
        assert "time_to_loss_s" not in values(first["1"])
        orders.send(*(order(n, partition=1) for n in range(40)))
        second = look(orders, topic)
        assert {p: o.tags["dagster/data_version"] for p, o in second.items()} == {"0": "3", "1": "43", "2": "3"}
        found = values(second["1"])
        assert found["offsets_per_s"] == pytest.approx(40 / found["since_s"], rel=0.01)
        assert {values(second[p])["offsets_per_s"] for p in "02"} == {0.0}

    def test_deleted_records_and_timestamps_of_the_broker(
        self, make_orders: Callable[..., Orders], admin: AdminClient
    ) -> None:
        orders = make_orders(config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})
        orders.send(*(order(n) for n in range(10)))
        for future in admin.delete_records([TopicPartition(orders.source, 0, 4)]).values():
            future.result(10)
        found = values(look(orders, topic_of(orders))["0"])
        assert [found[name] for name in ("log_start", "log_end", "offset_count")] == [4, 10, 6]
        assert found["timestamp_type"] == "log_append_time"
        assert found["retention"] == "off: no retention.ms and no retention.bytes"

    def test_a_recreated_topic_has_no_rate(self, orders: Orders) -> None:
        topic = topic_of(orders)
        orders.send(order(1))
        look(orders, topic)
        servers = orders.manager.source.connection.bootstrap_servers
        delete_topic(servers, orders.source)
        create_topic(servers, orders.source)
        orders.send(order(1), order(2))
        assert values(look(orders, topic)["0"])["offsets_per_s"] is None
        orders.send(order(3))
        assert values(look(orders, topic)["0"])["offsets_per_s"] > 0

    def test_a_run_of_a_partition_observes_that_one_only(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(3)
        topic = topic_of(orders, partitions=3)
        orders.send(order(1, partition=1))
        assert {p: o.tags["dagster/data_version"] for p, o in look(orders, topic, "1").items()} == {"1": "1"}

    def test_a_broker_that_is_away_fails_the_observation(self, orders: Orders) -> None:
        away = KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_s=1)
        manager = KafkaIOManager(source=KafkaSource(connection=away), spark=orders.manager.spark)
        with pytest.raises(BrokerUnavailableError):
            look(orders, topic_of(orders), manager=manager)


class TestTimeToLoss:
    def test_of_readers_and_groups(
        self, make_orders: Callable[..., Orders], move: Callable[..., None], admin: AdminClient
    ) -> None:
        orders = make_orders(2, config=HOUR)
        ages = (3000, 1200, 60)
        orders.send(*(order(n, partition=0, timestamp_ms=now_ms() - age * 1000) for n, age in enumerate(ages)))
        other = f"{orders.group}-other"
        topic = topic_of(orders, readers=["enriched", dg.AssetKey(["never", "ran"])], groups=[other])
        move(orders.group, orders.source, 1)
        move(other, orders.source, 3)
        found = look(orders, topic)
        groups = standing(found["0"])
        assert groups[orders.group]["committed"] == 1
        assert groups[orders.group]["lag"] == 2
        assert groups[orders.group]["time_to_loss_s"] == pytest.approx(2400, abs=30)
        assert groups[orders.group]["why"] == "retention.ms=3600000"
        assert (groups[other]["lag"], groups[other]["time_to_loss_s"]) == (0, "never")
        unused = groups[f"{orders.manager.source.group_prefix}.never.ran"]
        assert (unused["committed"], unused["time_to_loss_s"]) == (None, None)
        assert unused["why"] == "the group stores no offset"
        assert values(found["0"])["time_to_loss_s"] == pytest.approx(2400, abs=30)
        # Nobody stores an offset there.
        assert values(found["1"])["time_to_loss_s"] is None
        for future in admin.delete_records([TopicPartition(orders.source, 0, 2)]).values():
            future.result(10)
        late = look(orders, topic)["0"]
        assert values(late)["time_to_loss_s"] == 0.0
        assert standing(late)[orders.group]["why"] == "offsets [1, 2) were deleted before they were read"

    def test_never_is_a_text_for_json(self, make_orders: Callable[..., Orders], move: Callable[..., None]) -> None:
        orders = make_orders(config={"cleanup.policy": "compact"})
        orders.send({**order(1)}, {**order(2)})
        move(orders.group, orders.source, 1)
        found = look(orders, topic_of(orders, readers=["enriched"]))["0"]
        assert values(found)["time_to_loss_s"] == "never"
        assert standing(found)[orders.group]["why"] == "retention is off: cleanup.policy=compact"

    @pytest.mark.parametrize(
        ("seconds", "least"),
        [([], None), ([5.0, 3.0], 3.0), ([5.0, None], None), ([0.0, None], 0.0), ([float("inf"), 7.0], 7.0)],
    )
    def test_the_soonest_of_several(self, seconds: Sequence[float | None], least: float | None) -> None:
        found = soonest([GroupStanding("g", 1, 1, TimeToLoss(s, "")) for s in seconds])
        assert (None if found is None else found.seconds) == least


class TestCalls:
    def test_as_many_for_one_partition_as_for_forty(
        self, make_orders: Callable[..., Orders], move: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[int] = []
        counted: list[Counter[str]] = []
        admin, consumer = Clients.admin, Clients.consumer

        class Counting:
            def __init__(self, client: Any) -> None:
                self._client = client

            def __getattr__(self, name: str) -> Any:
                counted[-1][name] += 1
                return getattr(self._client, name)

        def make_consumer(config: dict[str, Any]) -> Consumer:
            made[-1] += 1
            return Consumer(config)

        monkeypatch.setattr(Clients, "admin", lambda self: Counting(admin(self)))
        monkeypatch.setattr(Clients, "consumer", lambda self, *how: Counting(consumer(self, *how)))
        monkeypatch.setattr(reader, "Consumer", make_consumer)
        for partitions in (1, 40):
            orders = make_orders(partitions, config=HOUR)
            orders.send(*(order(n, partition=n) for n in range(partitions)))
            for number in range(partitions):
                move(orders.group, orders.source, 0, partition=number)
            counted.append(Counter())
            made.append(0)
            found = look(orders, topic_of(orders, readers=["enriched"]))
            assert len(found) == partitions
            assert all(values(o)["time_to_loss_s"] > 3500 for o in found.values())
        assert (
            counted[0]
            == counted[1]
            == {
                "describe_topics": 1,
                "describe_configs": 1,
                "committed": 1,
                "list_offsets": 2,
            }
        )
        assert made == [1, 1]


class TestAutomation:
    """The real evaluation, over what real observations left in the instance."""

    def test_eager_asks_for_the_partition_that_moved(
        self, make_orders: Callable[..., Orders], admin: AdminClient
    ) -> None:
        orders = make_orders(3)
        topic = orders.topic_asset = topic_of(orders)
        asset = orders.asset(automation_condition=dg.AutomationCondition.eager(), max_slices=None)
        defs = dg.Definitions(assets=[topic, asset], resources={"kafka_io_manager": orders.manager})
        cursor = None

        def asked() -> set[str | None]:
            nonlocal cursor
            result = dg.evaluate_automation_conditions(defs=defs, instance=orders.instance, cursor=cursor)
            cursor = result.cursor
            return set(result.get_requested_partitions(asset.key))

        def run(*partitions: str) -> None:
            for key in partitions:
                orders.run(asset, key)

        orders.send(*(order(n, partition=n) for n in range(3)))
        look(orders, topic)
        # What is missing at the first evaluation is not asked for: Dagster backfills nothing by itself.
        assert asked() == set()
        orders.send(order(0, partition=0))
        look(orders, topic)
        assert asked() == {"0"}
        run("0", "1", "2")
        assert asked() == set()
        # Observed, and nothing moved: the data versions are the same.
        look(orders, topic)
        assert asked() == set()
        # One of three moves: that one.
        orders.send(order(3, partition=1))
        look(orders, topic)
        assert asked() == {"1"}
        look(orders, topic)
        assert asked() == set()
        run("1")
        assert asked() == set()
        assert orders.lag() == 0
        # Not seen is not asked for.
        orders.send(order(4, partition=2))
        assert asked() == set()
        look(orders, topic)
        assert asked() == {"2"}
        run("2")
        # The topic grows: the new partition is registered by the observation, and asked for.
        (future,) = admin.create_partitions([NewPartitions(orders.source, 4)]).values()
        future.result(10)
        orders.send(order(5, partition=3))
        look(orders, topic)
        assert orders.instance.get_dynamic_partitions(f"kafka.{orders.source}") == ["0", "1", "2", "3"]
        assert asked() == {"3"}
        run("3")
        assert asked() == set()
        assert sorted(orders.ids()) == [0, *range(6)]

"""The snapshot of an asset's partitions against a real broker."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from kpipe_platform import KafkaConnection, KafkaSource, partition_states
from kpipe_platform.errors import TopicNotFoundError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
from kpipe_platform.partitions.pauses import pause
from kpipe_platform.partitions.state import PartitionState
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory
from kpipe_platform_tests.io_managers.killing import wait_until

pytestmark = pytest.mark.broker

KEY = dg.AssetKey(["shop", "orders"])
# The shortest that brokers take by default: a member hears of another one within a quarter of it, seconds.
SESSION_S = 6.0


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def source(kafka_broker: EmbeddedBroker) -> KafkaSource:
    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    return KafkaSource(connection=connection, group_prefix=f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def admin(kafka_broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})


@pytest.fixture
def store(admin: AdminClient, source: KafkaSource) -> Callable[[str, int, int], None]:
    def stored(topic: str, partition: int, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(source.group(KEY), [TopicPartition(topic, partition, offset)])

        def done() -> bool:
            (future,) = admin.alter_consumer_group_offsets([wanted]).values()
            return all(tp.error is None for tp in future.result(10).topic_partitions)

        wait_until(done, "the offset is stored")

    return stored


def run_of(instance: dg.DagsterInstance, key: dg.AssetKey = KEY, **how: Any) -> str:
    @dg.asset(key=key)
    def made() -> None: ...

    job = dg.Definitions([made]).resolve_implicit_global_asset_job_def()
    return instance.create_run_for_job(job, asset_selection={key}, **how).run_id


def test_every_partition_is_told_as_it_is(
    instance: dg.DagsterInstance,
    source: KafkaSource,
    admin: AdminClient,
    store: Callable[..., None],
    kafka_topic: TopicFactory,
    produce: Produce,
) -> None:
    topic = kafka_topic("orders", partitions=5)
    now_s = 1_700_000_000.0
    at = [int(now_s * 1000) - age_s * 1000 for age_s in (300, 200, 100)]
    for partition in (0, 1, 2, 3):
        produce(topic, [{"value": b"x", "partition": partition, "timestamp_ms": ms} for ms in at])
    store(topic, 0, 1)
    store(topic, 1, 3)
    store(topic, 3, 0)
    for future in admin.delete_records([TopicPartition(topic, 3, 2)]).values():
        future.result(10)
    pause(instance, KEY, 2, "broken producer", clock=lambda: 5.0)
    tags = {"dagster/partition": "0"}
    by_hand = run_of(instance, status=dg.DagsterRunStatus.STARTED, tags=tags)
    # Its asset is another one: only its tags say that it takes this group's partition.
    asked = run_of(
        instance,
        dg.AssetKey("other"),
        status=dg.DagsterRunStatus.STARTING,
        tags={"kpipe/group": source.group(KEY), "kpipe/ranges": f'{{"{topic}":{{"1":[0,3]}}}}'},
    )
    run_of(instance, status=dg.DagsterRunStatus.FAILURE, tags=tags)

    found = partition_states(instance, source, KEY, topic, clock=lambda: now_s)

    def state(partition: int, **more: Any) -> PartitionState:
        common: dict[str, Any] = {
            "assigned": None,
            "owner": None,
            "draining": False,
            "pause": None,
            "in_flight": (),
            "highest_completed": None,
            "committed": None,
            "log_start": 0,
            "end": 3,
        }
        return PartitionState(topic, partition, **(common | more))

    assert found == [
        state(0, in_flight=(by_hand,), highest_completed=0, committed=1, lag=2, oldest_unprocessed_age_s=200.0),
        state(1, in_flight=(asked,), highest_completed=2, committed=3, lag=0, oldest_unprocessed_age_s=None),
        state(2, pause=found[2].pause, lag=3, oldest_unprocessed_age_s=300.0),
        state(3, committed=0, log_start=2, lag=3, oldest_unprocessed_age_s=100.0),
        state(4, end=0, lag=0, oldest_unprocessed_age_s=None),
    ]
    assert [s.paused for s in found] == [False, False, True, False, False]
    assert found[2].pause is not None
    assert (found[2].pause.since_ms, found[2].pause.reason) == (5000, "broken producer")
    assert [s.lost for s in found] == [0, 0, 0, 2, 0]


def test_a_run_over_all_partitions_is_in_flight_in_each(
    instance: dg.DagsterInstance, source: KafkaSource, kafka_topic: TopicFactory
) -> None:
    topic = kafka_topic("orders", partitions=2)

    @dg.asset(key=KEY)
    def whole() -> None: ...

    run = run_of(instance, status=dg.DagsterRunStatus.STARTED)
    for asset in (KEY, "shop/orders", whole):
        key = dg.AssetKey.from_user_string(asset) if isinstance(asset, str) else asset
        assert [s.in_flight for s in partition_states(instance, source, key, topic)] == [(run,), (run,)]


def test_owners_are_told_and_nothing_is_joined(
    instance: dg.DagsterInstance,
    source: KafkaSource,
    kafka_broker: EmbeddedBroker,
    kafka_topic: TopicFactory,
    admin: AdminClient,
) -> None:
    topic = kafka_topic("orders", partitions=2)
    group = source.group(KEY)
    assert [s.assigned for s in partition_states(instance, source, KEY, topic)] == [None, None]
    settings = source.connection.settings
    how: dict[str, Any] = {"session_timeout_s": SESSION_S}
    with ConsumerGroupOwnership(settings, group, [topic], instance_id="blue", **how) as blue:
        wait_until(lambda: len(blue.owned() or ()) == 2, "blue has both")
        found = partition_states(instance, source, KEY, topic)
        assert [(s.assigned, s.owner, s.draining) for s in found] == [(True, "blue", None)] * 2
        own = partition_states(instance, source, KEY, topic, ownership=blue)
        assert [(s.assigned, s.draining) for s in own] == [(True, False)] * 2
        described = admin.describe_consumer_groups([f"{group}.owners"])[f"{group}.owners"].result(10)
        assert len(described.members) == 1
        with ConsumerGroupOwnership(settings, group, [topic], instance_id="green", **how) as green:
            wait_until(lambda: len(green.owned() or ()) == 1, "green has one")
            mine = partition_states(instance, source, KEY, topic, ownership=green)
            assert sorted(bool(s.assigned) for s in mine) == [False, True]
            owners = {s.owner for s in partition_states(instance, source, KEY, topic)}
            assert owners == {"blue", "green"}


def test_a_draining_partition_is_told(
    instance: dg.DagsterInstance, source: KafkaSource, kafka_topic: TopicFactory
) -> None:
    topic = kafka_topic("orders", partitions=2)
    settings, group = source.connection.settings, source.group(KEY)
    at_work = [True]
    blue = ConsumerGroupOwnership(
        settings,
        group,
        [topic],
        session_timeout_s=SESSION_S,
        in_flight=lambda given: given if at_work[0] else frozenset(),
    )
    with blue:
        wait_until(lambda: len(blue.owned() or ()) == 2, "blue has both")
        with ConsumerGroupOwnership(settings, group, [topic], session_timeout_s=SESSION_S):
            wait_until(lambda: bool(blue.state().draining), "blue drains one")
            found = partition_states(instance, source, KEY, topic, ownership=blue)
            assert sorted((s.assigned, s.draining) for s in found) == [(False, True), (True, False)]
            at_work[0] = False


def test_the_number_of_calls_does_not_grow_with_the_partitions(
    instance: dg.DagsterInstance,
    source: KafkaSource,
    kafka_topic: TopicFactory,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    admin, consumer = Clients.admin, Clients.consumer

    class Counting:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            calls[name] += name not in ("close", "consume")
            return getattr(self._inner, name)

    monkeypatch.setattr(Clients, "admin", lambda self: Counting(admin(self)))
    monkeypatch.setattr(Clients, "consumer", lambda self, *how: Counting(consumer(self, *how)))
    monkeypatch.setattr("kpipe_platform.kafka.read.reader.Consumer", lambda settings: Counting(Consumer(settings)))
    found = []
    for partitions in (2, 40):
        topic = kafka_topic("orders", partitions=partitions)
        produce(topic, [{"value": b"x", "partition": number} for number in range(partitions)], deadline_s=60)
        calls.clear()
        began = time.monotonic()
        states = partition_states(instance, source, KEY, topic)
        assert time.monotonic() - began < 20
        assert [s.lag for s in states] == [1] * partitions
        assert all(s.oldest_unprocessed_age_s is not None for s in states)
        # Partitions that are done are taken from the reader batch by batch: no question to the brokers.
        found.append({name: count for name, count in calls.items() if count and name != "incremental_unassign"})
    assert found[0] == found[1]
    assert found[0] == {
        "describe_topics": 1,
        "list_offsets": 2,
        "describe_consumer_groups": 1,
        "committed": 1,
        "assign": 1,
    }


def test_a_topic_that_is_missing_is_told(instance: dg.DagsterInstance, source: KafkaSource) -> None:
    with pytest.raises(TopicNotFoundError):
        partition_states(instance, source, KEY, "no.such.topic")

"""Ticks against a real broker, whose runs are not started."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import NewPartitions
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG, GRPC_INFO_TAG

from kpipe_platform import (
    JsonCodec,
    KafkaConnection,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    PartitionScaling,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.errors import ConfigError, FencedError
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.partitions.lost import release
from kpipe_platform.partitions.pauses import Pause, pause, paused, resume
from kpipe_platform.partitions.runs import requested_ranges
from kpipe_platform.resources.scaling import ExecutionMode
from kpipe_platform.sensors import kafka_offset_sensor, kafka_partition_sensor
from kpipe_platform_tests.sensors.conftest import ASSET, SCHEMA, Sensing

pytestmark = pytest.mark.broker

SEVERAL = PartitionScaling(execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, max_concurrent_partitions=1_000)
RANGES = {"scaling": SEVERAL, "backfill_policy": dg.BackfillPolicy.single_run()}


def test_only_partitions_with_enough_records_are_asked_for(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(4, asset_options={"scaling": SEVERAL}, options={"min_records": 3, "max_wait_s": 60})
    sensing.send(1, 2, partition=1)
    sensing.send(1, 2, 3, partition=2)

    made = sensing.tick()

    [request] = made.run_requests or []
    assert request.partition_key == "2"
    assert request.asset_selection == [ASSET]
    assert request.run_key == f"{sensing.group}:{sensing.source}/2[0-3]#1"
    assert request.tags["kpipe/group"] == sensing.group
    assert json.loads(request.tags["kpipe/ranges"]) == {sensing.source: {"2": [0, 3]}}
    assert request.tags["dagster/partition"] == "2"
    # Nothing was started, so the same is asked for again; the one that waits is due a minute after it was seen.
    sensing.now_s += 59
    assert sensing.asked() == ["2"]
    sensing.now_s += 1
    assert sensing.asked() == ["1", "2"]


@pytest.mark.parametrize("committed", [None, 1])
def test_a_log_start_that_moves_is_no_progress(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager, committed: int | None
) -> None:
    """Neither of a new group, nor of one that may skip what retention takes: backoff and attempts go on."""
    source = KafkaSource(
        connection=manager.source.connection, group_prefix=manager.source.group_prefix, on_lost_offsets="skip"
    )
    skipping = KafkaIOManager(source=source, spark=manager.spark, destination=manager.destination)
    sensing = make_sensing(1, manager=skipping, options={"max_attempts": 3, "retry_delay_s": 30})
    sensing.send(*range(20))
    if committed is not None:
        sensing.set_offset(committed)

    for attempt, wait_s in enumerate((0, 30, 60)):
        if wait_s:
            sensing.after_last_run(wait_s - 1)
            sensing.delete_before(2 + 4 * attempt)
            assert sensing.asked() == []
            assert sensing.remembered.summary["backing_off"] == 1
            sensing.after_last_run(wait_s)
        sensing.delete_before(4 + 4 * attempt)
        [request] = sensing.tick().run_requests or []
        run = sensing.queue(dg.DagsterRunStatus.STARTED, tags=dict(request.tags), asset_selection=frozenset([ASSET]))
        sensing.end(run)

    for deleted in (14, 15):
        sensing.after_last_run(100_000)
        sensing.delete_before(deleted)
        assert sensing.asked() == []
        assert sensing.remembered.summary["exhausted"] == 1
        assert sensing.remembered.reported == {0: f"exhausted@{committed or 0}"}
    # An operator's move is one.
    sensing.set_offset(16)
    assert sensing.asked() == ["0"]


def test_a_wait_for_more_records_goes_on_when_the_log_start_moves(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1, options={"min_records": 5, "max_wait_s": 60})
    sensing.send(1, 2, 3)
    assert sensing.asked() == []
    sensing.now_s += 50
    sensing.delete_before(1)
    assert sensing.asked() == []
    sensing.now_s += 11
    assert sensing.asked() == ["0"]


def test_a_run_over_many_partitions_has_tags_that_can_be_indexed(make_sensing: Callable[..., Sensing]) -> None:
    """PostgreSQL makes no run with a tag of more than some 2,600 bytes."""
    sensing = make_sensing(150, asset_options=RANGES, options={"partitions_per_run": 150})
    sensing.produce(sensing.source, [{"value": b'{"id": 1}', "partition": n} for n in range(150)])
    [request] = sensing.tick().run_requests or []
    assert max(len(f"{name}{value}".encode()) for name, value in request.tags.items()) < 2_600
    assert set(requested_ranges(request.tags)) == {(sensing.source, number) for number in range(150)}


def test_a_wiped_or_broken_cursor_changes_nothing_but_the_wait(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL}, options={"min_records": 2, "max_wait_s": 60})
    sensing.send(1, partition=0)
    sensing.send(1, 2, partition=1)
    assert sensing.asked() == ["1"]
    for cursor in (None, "", "{", "[]", '{"kpipe": 9}', '{"kpipe": 1, "seen": 3}', "null"):
        sensing.cursor = cursor
        assert sensing.asked() == ["1"]
    # The wait begins again.
    sensing.now_s += 59
    assert sensing.asked() == ["1"]
    sensing.now_s += 2
    assert sensing.asked() == ["0", "1"]


def test_nothing_new_is_a_skip_with_the_numbers(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(2)
    made = sensing.tick()
    assert not made.run_requests
    assert made.skip_message == f"group {sensing.group}: partitions 2, waiting offsets 0, runs 0, idle 2"
    assert sensing.remembered.summary == {
        "at": round(sensing.now_s),
        "partitions": 2,
        "waiting_offsets": 0,
        "runs": 0,
        "idle": 2,
    }


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Counts what is asked of the brokers: every call of a client."""
    calls: dict[str, int] = {}
    admin, consumer = Clients.admin, Clients.consumer

    class Counting:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            if name != "close":
                calls[name] = calls.get(name, 0) + 1
            return getattr(self._inner, name)

    with monkeypatch.context() as patch:
        patch.setattr(Clients, "admin", lambda self: Counting(admin(self)))
        patch.setattr(Clients, "consumer", lambda self, *how: Counting(consumer(self, *how)))
        yield calls


@pytest.mark.parametrize("count", [10, 100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_the_number_of_calls_does_not_grow_with_the_partitions(
    make_sensing: Callable[..., Sensing], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    sensing = make_sensing(count, asset_options=RANGES, options={"partitions_per_run": max(count // 2, 10)})
    sensing.produce(
        sensing.source, [{"value": b'{"id": 1}', "partition": number} for number in range(count)], deadline_s=120
    )
    with counted(monkeypatch) as calls:
        began = time.monotonic()
        made = sensing.tick()
        took = time.monotonic() - began

    # Log start and end are two requests of one kind.
    assert calls == {"describe_topics": 1, "offsets_for_times": 2, "committed": 1}
    requests = made.run_requests or []
    assert sum(len(requested_ranges(request.tags)) for request in requests) == count
    assert len({request.run_key for request in requests}) == len(requests) == (1 if count == 10 else 2)
    assert all(len(str(request.run_key)) < 250 for request in requests)
    assert took < 10


def test_a_run_over_neighbors_names_them_as_a_range(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(5, asset_options=RANGES, options={"partitions_per_run": 10})
    for number in (0, 1, 2, 4):
        sensing.send(1, partition=number)

    first, second = sensing.tick().run_requests or []

    assert first.partition_key is None
    assert first.tags[ASSET_PARTITION_RANGE_START_TAG] == "0"
    assert first.tags[ASSET_PARTITION_RANGE_END_TAG] == "2"
    assert (first.tags["kpipe/partitions"], second.tags["kpipe/partitions"]) == ("0-2", "4")
    assert second.partition_key == "4"


def test_partitions_per_run_needs_an_asset_that_takes_ranges(make_sensing: Callable[..., Sensing]) -> None:
    with pytest.raises(ConfigError, match=r"several partitions in one run\n.*single_run"):
        make_sensing(2, options={"partitions_per_run": 2})


# ------------------------------------------------------------------------------------------- in flight

QUEUED = dg.DagsterRunStatus.QUEUED


@pytest.mark.parametrize(
    "status",
    [
        QUEUED,
        dg.DagsterRunStatus.NOT_STARTED,
        dg.DagsterRunStatus.STARTING,
        dg.DagsterRunStatus.STARTED,
        dg.DagsterRunStatus.CANCELING,
    ],
)
def test_a_partition_in_flight_is_not_asked_for(
    make_sensing: Callable[..., Sensing], status: dg.DagsterRunStatus
) -> None:
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(1, partition=0)
    sensing.send(1, partition=1)
    request = (sensing.tick().run_requests or [])[0]
    sensing.queue(status, tags=dict(request.tags), asset_selection=frozenset([ASSET]))

    assert sensing.asked() == ["1"]
    assert sensing.remembered.summary["in_flight"] == 1


def test_a_run_whose_process_is_gone_is_told_with_its_remedy_and_not_replaced(
    make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(1, partition=1)
    server = json.dumps({"host": "127.0.0.1", "port": free_port()})
    tags = {"dagster/partition": "1", GRPC_INFO_TAG: server}
    run = sensing.queue(dg.DagsterRunStatus.STARTED, tags=tags, asset_selection=frozenset([ASSET]))
    sensing.instance.report_engine_event("alive", sensing.instance.get_run_by_id(run))
    assert "lost" not in str(sensing.tick().skip_message)

    sensing.now_s += 600
    made = sensing.tick()
    assert not made.run_requests
    assert f"run {run} has logged nothing for 10 min" in str(made.skip_message)
    assert f"kpipe partitions release {run[:8]}" in str(made.skip_message)
    sensing.tick()
    assert len(told(caplog, "does not respond")) == 1
    # It holds its own partition only.
    sensing.send(1, partition=0)
    assert sensing.asked() == ["0"]
    release(sensing.instance, run)
    assert sorted(sensing.asked()) == ["0", "1"]


@pytest.mark.parametrize(
    ("tags", "selected", "left"),
    [
        ({"dagster/partition": "1"}, True, ["0", "2", "3"]),
        ({ASSET_PARTITION_RANGE_START_TAG: "1", ASSET_PARTITION_RANGE_END_TAG: "2"}, True, ["0", "3"]),
        # A job that was started whole names no assets; what it plans was recorded when it was made.
        ({"dagster/partition": "1"}, False, ["0", "2", "3"]),
        ({ASSET_PARTITION_RANGE_START_TAG: "1", ASSET_PARTITION_RANGE_END_TAG: "2"}, False, ["0", "3"]),
        # It may take any of them.
        ({}, True, []),
    ],
)
def test_runs_that_were_started_by_hand_are_found(
    make_sensing: Callable[..., Sensing], tags: dict[str, str], selected: bool, left: list[str]
) -> None:
    sensing = make_sensing(4, asset_options=RANGES)
    for number in range(4):
        sensing.send(1, partition=number)
    how = {"asset_selection": frozenset([ASSET])} if selected else {}
    run = sensing.queue(QUEUED, tags=tags, **how)

    assert sensing.asked() == left
    sensing.end(run, dg.DagsterEventType.PIPELINE_CANCELED)
    assert sensing.asked() == ["0", "1", "2", "3"]


def test_runs_of_other_assets_are_none_of_its_business(make_sensing: Callable[..., Sensing]) -> None:
    @dg.asset
    def other() -> None: ...

    sensing = make_sensing(1, others=[other])
    sensing.send(1)
    sensing.queue(QUEUED, tags={"dagster/partition": "0"}, asset_selection=frozenset([other.key]))
    alone = dg.Definitions([other]).resolve_implicit_global_asset_job_def()
    sensing.instance.create_run_for_job(alone, status=dg.DagsterRunStatus.STARTED)

    assert sensing.asked() == ["0"]


@pytest.mark.parametrize(
    "mode", [ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION]
)
def test_as_many_partitions_at_once_as_the_scaling_says(
    make_sensing: Callable[..., Sensing], mode: ExecutionMode
) -> None:
    two = PartitionScaling(execution_mode=mode, max_concurrent_partitions=2)
    sensing = make_sensing(4, asset_options={"scaling": two})
    for number in range(4):
        sensing.send(1, partition=number)
    requests = sensing.tick().run_requests or []
    assert [request.partition_key for request in requests] == ["0", "1"]
    runs = [sensing.queue(QUEUED, tags=dict(r.tags), asset_selection=frozenset([ASSET])) for r in requests]
    assert sensing.asked() == []
    sensing.end(runs[0], dg.DagsterEventType.PIPELINE_CANCELED)
    assert sensing.asked() == ["2"]


def test_one_partition_after_another_where_their_order_is_preserved(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(3)
    for number in range(3):
        sensing.send(1, partition=number)
    [request] = sensing.tick().run_requests or []
    run = sensing.queue(QUEUED, tags=dict(request.tags), asset_selection=frozenset([ASSET]))
    assert sensing.asked() == []
    sensing.end(run, dg.DagsterEventType.PIPELINE_CANCELED)
    assert sensing.asked() == ["1"]


def test_an_unpartitioned_asset_is_asked_for_whole(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(3, asset_options={"partitioned": False})
    assert sensing.asked() == []
    sensing.send(1, 2, partition=1)
    [request] = sensing.tick().run_requests or []
    assert request.partition_key is None
    assert request.tags["kpipe/partitions"] == "all"
    assert json.loads(request.tags["kpipe/ranges"])[sensing.source] == {"0": [0, 0], "1": [0, 2], "2": [0, 0]}
    sensing.queue(QUEUED, asset_selection=frozenset([ASSET]))
    assert sensing.asked() == []


# --------------------------------------------------------------------------- operators, owners, downstream


def test_a_paused_partition_is_left_alone(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(1, partition=0)
    sensing.send(1, partition=1)
    pause(sensing.instance, sensing.asset.key, 0)
    assert sensing.asked() == ["1"]
    resume(sensing.instance, sensing.asset.key, 0)
    assert sensing.asked() == ["0", "1"]


def test_a_pause_that_version_0_1_stored_for_the_group_still_holds(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(1, partition=0)
    sensing.send(1, partition=1)
    name = f"kpipe/paused/{sensing.group}/{sensing.source}"
    sensing.instance.daemon_cursor_storage.set_cursor_values({f"{name}/0": '{"since_ms": 1000, "reason": "then"}'})
    sensing.instance.add_dynamic_partitions(name, ["0"])
    assert sensing.asked() == ["1"]
    assert paused(sensing.instance, sensing.asset.key) == {0: Pause(1000, "then")}
    assert resume(sensing.instance, sensing.asset.key, 0)
    assert sensing.asked() == ["0", "1"]


def test_one_paused_partition_pauses_an_asset_without_partitions(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(2, asset_options={"partitioned": False})
    sensing.send(1, partition=0)
    pause(sensing.instance, sensing.asset.key, 1)
    assert sensing.asked() == []
    resume(sensing.instance, sensing.asset.key, 1)
    assert sensing.asked() == ["all"]


def test_only_owned_partitions_are_asked_for(make_sensing: Callable[..., Sensing]) -> None:
    owned: list[frozenset[tuple[str, int]] | None] = [None]
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL}, options={"ownership": lambda: owned[0]})
    sensing.send(1, partition=0)
    sensing.send(1, partition=1)
    made = sensing.tick()
    assert not made.run_requests
    assert "not known yet" in str(made.skip_message)
    owned[0] = frozenset([(sensing.source, 1)])
    assert sensing.asked() == ["1"]

    class Member:
        def owned(self) -> frozenset[tuple[str, int]]:
            return frozenset([(sensing.source, 0)])

    sensing.sensor = sensing.make_sensor(ownership=Member())
    assert sensing.asked() == ["0"]

    def refused() -> frozenset[tuple[str, int]]:
        msg = "another process joined under this name"
        raise FencedError(msg)

    sensing.sensor = sensing.make_sensor(ownership=refused)
    assert sensing.tick().skip_message == "another process joined under this name"


def test_a_downstream_asset_that_is_behind_holds_it_back(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager
) -> None:
    sensing = make_sensing(1)
    middle = kafka_topic_asset(sensing.target, value_codec=JsonCodec(SCHEMA), name="middle", partitions=1)

    @kafka_asset(source=middle, topic=KafkaTopic("nowhere"))
    def last(middle):  # type: ignore[no-untyped-def]
        return middle

    sensing.others = [middle, last]
    sensing.sensor = sensing.make_sensor(backpressure=(last, 2))
    sensing.send(1)
    sensing.produce(sensing.target, [b'{"id": 1}', b'{"id": 2}'])
    assert sensing.asked() == ["0"]
    sensing.produce(sensing.target, [b'{"id": 3}'])
    made = sensing.tick()
    assert not made.run_requests
    assert "backpressure: the lag of last is 3 offsets, limit 2" in str(made.skip_message)
    assert sensing.remembered.summary["downstream_lag"] == 3
    down = replace(sensing, others=[])
    down.asset = last
    with Clients(manager.source.connection.settings) as clients:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        group = f"{manager.source.group_prefix}.last"
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(sensing.target, 0, 1)])
        clients.admin().alter_consumer_group_offsets([wanted])[group].result()
    assert sensing.asked() == ["0"]


def test_backpressure_of_an_unknown_asset_fails_the_tick(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1, options={"backpressure": ("nobody", 5)})
    with pytest.raises(ConfigError, match="nobody"):
        sensing.tick()


# --------------------------------------------------------------------------------- the group and the topic


@pytest.mark.parametrize("start", ["latest", "earliest", "2999-01-01"])
def test_a_new_group_over_old_records(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager, start: str
) -> None:
    source = KafkaSource(connection=manager.source.connection, group_prefix=manager.source.group_prefix, start=start)
    whole = KafkaIOManager(source=source, spark=manager.spark, destination=manager.destination)
    sensing = make_sensing(2, manager=whole, asset_options={"scaling": SEVERAL}, options={"min_records": 2})
    sensing.send(1, 2)
    # From the latest on, a run stores the start of each partition; what comes before it has run would else be lost.
    assert sensing.asked() == {"latest": ["0", "1"], "earliest": ["0"], "2999-01-01": []}[start]
    sensing.set_offset(2, partition=0)
    sensing.set_offset(0, partition=1)
    assert sensing.asked() == []
    sensing.send(3, 4)
    assert sensing.asked() == ["0"]


def test_a_lost_range_is_told_with_its_fix_and_logged_once(
    make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import TopicPartition

    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(*range(5))
    sensing.send(1, partition=1)
    sensing.set_offset(1)
    with Clients(sensing.manager.source.connection.settings) as clients:
        cut = TopicPartition(sensing.source, 0, 3)
        clients.admin().delete_records([cut])[cut].result()

    assert sensing.asked() == ["1"]
    assert len(told(caplog, "were deleted, by retention")) == 1
    sensing.set_offset(1, partition=1)
    made = sensing.tick()
    assert re.search(r"offsets \[1, 3\).*\n  How to fix: skip them once", str(made.skip_message))
    assert sensing.remembered.summary["blocked"] == 1
    assert len(told(caplog, "were deleted, by retention")) == 1
    # The operator acts; the next loss is another one.
    sensing.set_offset(3)
    assert sensing.asked() == ["0"]
    assert sensing.remembered.reported == {}


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Errors of the module's logger that hold a text."""
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR and text in r.getMessage()]


def test_a_shrunk_topic_is_told(make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture) -> None:
    sensing = make_sensing(2, asset_options=RANGES, options={"partitions_per_run": 5})
    # As if the topic had had three once, the last of them registered first.
    name = f"kafka.{sensing.source}"
    for key in ("0", "1"):
        sensing.instance.delete_dynamic_partition(name, key)
    sensing.instance.add_dynamic_partitions(name, ["0", "2", "1"])
    for number in range(2):
        sensing.send(1, partition=number)

    # A range from 0 to 1 would take 2 as well: in Dagster's order it is between them.
    assert sensing.asked() == ["0", "1"]
    [message] = told(caplog, "Dagster has partition 2, but topic")
    assert f"delete_dynamic_partition('{name}', '2')" in message
    assert sensing.remembered.summary["gone"] == 1
    sensing.tick()
    assert len(told(caplog, "Dagster has partition 2")) == 1


def test_fixed_partitions_that_leave_some_out_are_told(
    make_sensing: Callable[..., Sensing], caplog: pytest.LogCaptureFixture
) -> None:
    sensing = make_sensing(3, fixed=2, asset_options={"scaling": SEVERAL})
    sensing.send(1, partition=2)
    made = sensing.tick()
    assert not made.run_requests
    assert not made.dynamic_partitions_requests
    assert "/2 has no Dagster partition" in str(made.skip_message)
    assert len(told(caplog, "/2 has no Dagster partition")) == 1


def grow_topic(connection: KafkaConnection, topic: str, count: int) -> None:
    with Clients(connection.settings) as clients:
        clients.admin().create_partitions([NewPartitions(topic, count)])[topic].result()
    end = time.monotonic() + 30
    while len(KafkaSource(connection=connection).partition_numbers(topic)) < count:
        assert time.monotonic() < end
        time.sleep(0.05)


def grow(sensing: Sensing, count: int) -> None:
    grow_topic(sensing.manager.source.connection, sensing.source, count)


def test_new_partitions_are_registered_and_asked_for_from_their_start(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(3, asset_options={"scaling": SEVERAL})
    sensing.send(1, partition=2)
    assert sensing.asked() == ["2"]
    grow(sensing, 6)
    sensing.send(1, 2, partition=5)

    made = sensing.tick()

    [request] = made.dynamic_partitions_requests or []
    assert list(request.partition_keys) == ["3", "4", "5"]
    runs = {r.partition_key: json.loads(r.tags["kpipe/ranges"]) for r in made.run_requests or []}
    assert set(runs) == {"2", "5"}
    assert runs["5"] == {sensing.source: {"5": [0, 2]}}
    assert sensing.remembered.summary["new"] == 3
    again = sensing.tick()
    assert not again.dynamic_partitions_requests
    assert len(again.run_requests or []) == 2


def test_the_partition_sensor_registers_and_asks_for_nothing(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)
    sensing.sensor = kafka_partition_sensor(sensing.topic_asset)
    assert sensing.sensor.name == "orders_partitions"
    sensing.send(1)
    assert not sensing.tick().dynamic_partitions_requests
    grow(sensing, 3)
    made = sensing.tick()
    assert not made.run_requests
    assert sensing.instance.get_dynamic_partitions(f"kafka.{sensing.source}") == ["0", "1", "2"]
    assert made.skip_message == f"topic {sensing.source}: partitions 3, new 2"
    sensing.instance.add_dynamic_partitions(f"kafka.{sensing.source}", ["3"])
    assert "Dagster has partition 3" in str(sensing.tick().skip_message)


def test_the_partition_sensor_wants_a_topic_that_it_can_follow() -> None:
    with pytest.raises(ConfigError, match="has no dynamic partitions"):
        kafka_partition_sensor(kafka_topic_asset("orders", value_codec=JsonCodec(SCHEMA), partitions=2))


# ------------------------------------------------------------------------------------- brokers that are away


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connections.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            # Closing alone does not wake a thread that waits in accept().
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


def elsewhere(manager: KafkaIOManager, port: int) -> KafkaIOManager:
    connection = KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}")
    return KafkaIOManager(source=KafkaSource(connection=connection), spark=manager.spark)


@pytest.mark.parametrize("listens", [True, False], ids=["never answers", "refuses"])
@pytest.mark.parametrize("kind", ["offsets", "partitions"])
def test_brokers_that_are_away_give_a_skip_with_the_reason_in_time(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager, listens: bool, kind: str
) -> None:
    sensing = make_sensing(1)
    sensing.cursor = "what was"
    make: Any = (
        sensing.make_sensor if kind == "offsets" else lambda **how: kafka_partition_sensor(sensing.topic_asset, **how)
    )
    sensing.sensor = make(deadline_s=2.0)
    with black_hole() as port:
        sensing.manager = elsewhere(manager, port)
        if listens:
            began, made = time.monotonic(), sensing.tick()
            took = time.monotonic() - began
    if not listens:
        began, made = time.monotonic(), sensing.tick()
        took = time.monotonic() - began
    assert took < 4
    assert not made.run_requests
    assert f"127.0.0.1:{port}" in str(made.skip_message)
    assert "check that the brokers are running" in str(made.skip_message)
    assert sensing.cursor == "what was"


def test_a_client_that_is_stuck_does_not_hold_the_tick(
    make_sensing: Callable[..., Sensing], monkeypatch: pytest.MonkeyPatch
) -> None:
    sensing = make_sensing(1, options={"deadline_s": 0.5})
    sensing.send(1)
    stuck, done = threading.Event(), threading.Event()
    admin = Clients.admin

    def hang(self: Clients) -> Any:
        stuck.wait(60)
        done.set()
        return admin(self)

    with monkeypatch.context() as patch:
        patch.setattr(Clients, "admin", hang)
        began = time.monotonic()
        assert "no answer within the tick's deadline of 0.5 s" in str(sensing.tick().skip_message)
        # The next tick leaves no second thread behind.
        assert "has not returned yet" in str(sensing.tick().skip_message)
        assert time.monotonic() - began < 5
        stuck.set()
        assert done.wait(30)
    end = time.monotonic() + 30
    sensing.sensor = sensing.make_sensor()
    while sensing.asked() != ["0"]:
        assert time.monotonic() < end


def test_a_topic_that_is_missing_is_a_skip(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)
    sensing = replace(sensing, source=f"{sensing.source}-none")
    made = sensing.tick()
    assert "does not exist" in str(made.skip_message)


# ---------------------------------------------------------------------------------------------- definitions


def test_a_plain_asset_over_a_topic_asset_is_a_target(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)

    @dg.asset(
        io_manager_key="kafka_io_manager",
        partitions_def=sensing.topic_asset.partitions_def,
        metadata=KafkaTopic(sensing.target).as_metadata(),
    )
    def plain(orders, table):  # type: ignore[no-untyped-def]
        return orders

    @dg.asset
    def table() -> None: ...

    sensing.others = [plain, table]
    sensing.sensor = kafka_offset_sensor(plain)
    sensing.send(1)
    [request] = sensing.tick().run_requests or []
    assert request.asset_selection == [plain.key]
    assert request.tags["kpipe/group"].endswith(".plain")


def test_an_asset_that_reads_no_topic_is_refused(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)

    @dg.asset
    def table() -> None: ...

    sensing.others = [table]
    sensing.sensor = kafka_offset_sensor(table)
    with pytest.raises(ConfigError, match="does not read slices of a Kafka topic"):
        sensing.tick()


def test_the_resource_must_be_a_kafka_io_manager(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)
    sensing.manager = dg.FilesystemIOManager()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="needs a KafkaSource or a KafkaIOManager"):
        sensing.tick()


@pytest.mark.parametrize("wrong", [{"deadline_s": 0}, {"min_records": 0}, {"backpressure": ("x", -1)}], ids=str)
def test_arguments_that_make_no_sense_are_refused(make_sensing: Callable[..., Sensing], wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_sensing(1, options=wrong)

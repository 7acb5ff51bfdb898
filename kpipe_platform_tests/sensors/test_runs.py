"""Ticks whose runs are started: what fails, what an operator does in between, and what ends by itself."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_START_TAG
from pyspark.sql import SparkSession

from kpipe_platform import KafkaIOManager, KafkaSource, PartitionScaling
from kpipe_platform.resources.scaling import ExecutionMode

from .conftest import ASSET, Sensing

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SEVERAL = PartitionScaling(execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS)


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """The runs take the session of the whole test run."""


class Switch:
    """A stage that fails while it is told to, before any work."""

    def __init__(self) -> None:
        self.broken = True

    def __call__(self, orders):  # type: ignore[no-untyped-def]
        if self.broken:
            msg = "not yet mended"
            raise RuntimeError(msg)
        return orders


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def failing(make_sensing: Callable[..., Sensing], switch: Switch) -> Sensing:
    """A sensor over records that the stage fails on, three attempts a range."""

    def stage(orders):  # type: ignore[no-untyped-def]
        return switch(orders)

    return make_sensing(
        1, stage=stage, asset_options={"isolate": False}, options={"max_attempts": 3, "retry_delay_s": 30}
    )


def test_records_are_taken_as_they_come(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(1, 2, partition=1)
    assert sensing.work() == [("1", True)]
    assert (sensing.committed(0), sensing.committed(1)) == (None, 2)
    assert sensing.work() == []
    sensing.send(3, partition=0)
    sensing.send(3, partition=1)
    assert sensing.work() == [("0", True), ("1", True)]
    assert sensing.work() == []


def test_a_failed_range_is_asked_for_again_and_succeeds_once_mended(failing: Sensing, switch: Switch) -> None:
    """A used run key must not block the range for ever."""
    failing.send(1, 2)
    assert failing.work() == [("0", False)]
    assert failing.work() == []
    assert failing.remembered.summary["backing_off"] == 1
    failing.after_last_run(30)
    switch.broken = False
    [request] = failing.tick().run_requests or []
    assert str(request.run_key).endswith("[0-2]#2")
    assert failing.start(request)
    assert failing.committed() == 2
    assert failing.work() == []


def test_the_wait_doubles_and_then_it_is_reported_once(
    failing: Sensing, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    failing.send(1)
    keys = []
    for wait_s in (0, 30, 60):
        if wait_s:
            failing.after_last_run(wait_s - 1)
            assert failing.asked() == []
            failing.after_last_run(wait_s)
            # More records do not make it another range.
            failing.send(2)
        requests = failing.tick().run_requests or []
        keys += [request.run_key for request in requests]
        assert [failing.start(request) for request in requests] == [False]
    assert len(set(keys)) == 3

    failing.after_last_run(100_000)
    made = failing.tick()
    assert not made.run_requests
    assert f"3 runs of group {failing.group} failed at {failing.source}/0 [0, 3)" in str(made.skip_message)
    assert "How to fix: correct the error that the last run reports" in str(made.skip_message)
    failing.send(3)
    assert failing.asked() == []
    # The loss of the cursor costs a second report and no further run.
    errors = [r for r in caplog.records if r.levelno == logging.ERROR and "requests no more runs" in r.getMessage()]
    assert len([r for r in errors if r.name.startswith("kpipe_platform")]) == 1
    failing.cursor = None
    assert failing.asked() == []

    # An operator mends it and runs it by hand.
    switch.broken = False
    assert failing.run_by_hand()
    assert failing.committed() == 4
    assert failing.remembered.summary["exhausted"] == 1
    assert failing.asked() == []
    assert failing.remembered.reported == {}
    failing.send(4)
    assert failing.work() == [("0", True)]


def test_a_moved_offset_clears_the_failures(failing: Sensing, switch: Switch) -> None:
    failing.send(1, 2, 3)
    for _ in range(3):
        assert failing.work() == [("0", False)]
        failing.after_last_run(1_000)
    assert failing.asked() == []
    failing.set_offset(1)
    assert failing.asked() == ["0"]


def test_a_run_that_was_terminated_counts_as_failed(failing: Sensing) -> None:
    failing.send(1)
    [request] = failing.tick().run_requests or []
    run = failing.queue(dg.DagsterRunStatus.STARTED, tags=dict(request.tags), asset_selection=frozenset([ASSET]))
    failing.end(run, dg.DagsterEventType.PIPELINE_CANCELED)
    assert failing.asked() == []
    failing.after_last_run(30)
    assert failing.asked() == ["0"]


def test_a_group_that_was_set_back_is_asked_for_again(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)
    sensing.send(1, 2, 3)
    assert sensing.work() == [("0", True)]
    keys = set()
    for _ in range(3):
        sensing.set_offset(0)
        [request] = sensing.tick().run_requests or []
        keys.add(request.run_key)
        assert sensing.start(request)
        assert sensing.committed() == 3
        assert sensing.work() == []
    # Each is a run key of its own: Dagster starts nothing for one that it knows.
    assert {str(key).rpartition("#")[2] for key in keys} == {"2", "3", "4"}


def test_failures_before_a_success_are_of_the_past(failing: Sensing, switch: Switch) -> None:
    failing.send(1)
    for _ in range(2):
        assert failing.work() == [("0", False)]
        failing.after_last_run(1_000)
    switch.broken = False
    assert failing.work() == [("0", True)]
    failing.set_offset(0)
    switch.broken = True
    assert failing.work() == [("0", False)]
    failing.after_last_run(1_000)
    failing.tick()
    assert failing.remembered.summary["requested"] == 1


def test_a_run_by_hand_leaves_nothing_to_ask_for(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)
    sensing.send(1, 2)
    assert sensing.asked() == ["0"]
    assert sensing.run_by_hand()
    assert sensing.asked() == []
    sensing.cursor = None
    assert sensing.asked() == []


def test_a_tail_of_transaction_markers_is_taken_once(make_sensing: Callable[..., Sensing]) -> None:
    """A run stores the planned end: what nobody can read past the offset does not trigger for ever."""
    sensing = make_sensing(1)
    sensing.send(1, 2, transaction="commit")
    sensing.send(3, 4, 5, transaction="abort")
    assert sensing.work() == [("0", True)]
    # Two records, three aborted ones, and two markers.
    assert sensing.committed() == 7
    assert sensing.work() == []
    sensing.send(6, transaction="abort")
    assert sensing.work() == [("0", True)]
    assert sensing.committed() == 9
    for _ in range(3):
        assert sensing.asked() == []


def test_a_new_group_from_the_latest_stores_its_start_once(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager
) -> None:
    source = KafkaSource(connection=manager.source.connection, group_prefix=manager.source.group_prefix, start="latest")
    latest = KafkaIOManager(source=source, spark=manager.spark, destination=manager.destination)
    sensing = make_sensing(1, manager=latest)
    sensing.send(1, 2)
    assert sensing.work() == [("0", True)]
    assert sensing.committed() == 2
    assert sensing.work() == []
    sensing.send(3)
    assert sensing.work() == [("0", True)]
    assert sensing.committed() == 3


def test_one_run_over_several_partitions_of_which_one_fails(make_sensing: Callable[..., Sensing]) -> None:
    def stage(orders):  # type: ignore[no-untyped-def]
        if orders.filter("id = 13").count():
            msg = "thirteen"
            raise RuntimeError(msg)
        return orders

    sensing = make_sensing(
        3,
        stage=stage,
        asset_options={"isolate": False, "scaling": SEVERAL, "backfill_policy": dg.BackfillPolicy.single_run()},
        options={"partitions_per_run": 10, "max_attempts": 2},
    )
    sensing.send(1, partition=0)
    sensing.send(13, partition=1)
    sensing.send(2, partition=2)

    assert sensing.work() == [("0-2", False)]

    assert [sensing.committed(number) for number in range(3)] == [1, None, 1]
    # The others go on at once; the one that failed waits, and is then asked for by itself.
    sensing.send(3, partition=0)
    assert sensing.work() == [("0", True)]
    sensing.after_last_run(30)
    [request] = sensing.tick().run_requests or []
    assert ASSET_PARTITION_RANGE_START_TAG not in request.tags
    assert json.loads(request.tags["kpipe/ranges"]) == {sensing.source: {"1": [0, 1]}}
    assert not sensing.start(request)
    sensing.after_last_run(1_000)
    assert sensing.asked() == []
    assert sensing.remembered.summary["exhausted"] == 1


def test_where_offsets_vanished_a_run_goes_on_from_what_dagster_holds(make_sensing: Callable[..., Sensing]) -> None:
    from kpipe_platform.kafka.client.clients import Clients

    sensing = make_sensing(2, asset_options={"scaling": SEVERAL})
    sensing.send(1, 2)
    assert sensing.work() == [("0", True)]
    with Clients(sensing.manager.source.connection.settings) as clients:
        clients.admin().delete_consumer_groups([sensing.group])[sensing.group].result()
    # "Report materialization" in the UI: says nothing of offsets, and is Dagster's last.
    sensing.instance.report_runless_asset_event(dg.AssetMaterialization("enriched", partition="0"))
    sensing.send(3, partition=1)
    # Partition 0 has nothing new: the run stores its offset again.
    requests = sensing.tick().run_requests or []
    assert sensing.remembered.summary["waiting_offsets"] == 1
    assert sorted((request.partition_key, sensing.start(request)) for request in requests) == [("0", True), ("1", True)]
    assert (sensing.committed(0), sensing.committed(1)) == (2, 1)
    assert sensing.work() == []


def test_offsets_of_a_group_of_another_name_are_told_instead_of_asked_for(make_sensing: Callable[..., Sensing]) -> None:
    sensing = make_sensing(1)
    sensing.send(1, 2)
    assert sensing.work() == [("0", True)]
    before = sensing.manager
    source = KafkaSource(connection=before.source.connection, group_prefix=f"{before.source.group_prefix}.new")
    sensing.manager = KafkaIOManager(source=source, destination=before.destination, spark=before.spark)
    assert "ended at offset 2 of group" in str(sensing.tick().skip_message)
    assert sensing.remembered.reported == {0: "OffsetsVanishedError"}


def test_an_open_transaction_of_a_killed_run_does_not_hold_the_tick(
    make_sensing: Callable[..., Sensing], manager: KafkaIOManager
) -> None:
    """The next run aborts it, so the tick must ask for one."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    sensing = make_sensing(1)
    sensing.send(1, 2)
    settings: dict[str, Any] = manager.source.connection.settings.for_librdkafka()
    unit = f"{sensing.group}.{sensing.source}.0"
    producer = Producer({**settings, "transactional.id": unit})
    consumer = Consumer({**settings, "group.id": sensing.group})
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets = [TopicPartition(sensing.source, 0, 1)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
    consumer.close()

    assert sensing.work() == [("0", True)]

    assert sensing.committed() == 2
    assert sensing.work() == []
    producer.purge()

"""Dagster's queue with 100 partitions and two workers: the real daemons, iterated by hand, and the settings of kpipe.

The runs have no process: the test ends each and moves the group's offset, as a run would. Runs with processes are in
test_dagster_dev.py.
"""

from __future__ import annotations

import collections
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.sensor import execute_sensor_iteration
from dagster_graphql.test.utils import execute_dagster_graphql

from kpipe_platform import KafkaConnection, register_kafka_partitions
from kpipe_platform.cli.dev import dagster_yaml
from kpipe_platform.kafka.clients import Clients
from kpipe_platform.partitions.coordinator import SLOT
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

from .conftest import record

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
WORKERS = 2
GROUP = "queue.enriched"
LAUNCHER = """\
run_launcher:
  module: kpipe_platform_tests.sensors.counting_launcher
  class: CountingLauncher
code_servers:
  wait_for_local_processes_on_shutdown: true
"""

DEFINITIONS = """
import os
import dagster as dg
from kpipe_platform import (
    ExecutionMode, JsonCodec, KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource, KafkaTopic,
    PartitionScaling, SparkEngine, kafka_asset, kafka_offset_sensor, kafka_topic_asset,
)

connection = KafkaConnection(bootstrap_servers=os.environ["QUEUE_BROKERS"])
orders = kafka_topic_asset(os.environ["QUEUE_SOURCE"], value=JsonCodec("id BIGINT NOT NULL"), name="orders")
scaling = PartitionScaling(
    execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS,
    max_concurrent_partitions=int(os.environ["QUEUE_AT_ONCE"]),
)

@kafka_asset(source=orders, topic=KafkaTopic("enriched", value=JsonCodec()), scaling=scaling)
def enriched(orders):
    return orders

@kafka_asset(source=orders, topic=KafkaTopic("copied", value=JsonCodec()), scaling=scaling)
def copied(orders):
    return orders

defs = dg.Definitions(
    assets=[orders, enriched, copied],
    sensors=[kafka_offset_sensor(
        enriched, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING
    )],
    resources={"kafka_io_manager": KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix="queue"),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(),
    )},
)
"""
LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message stack }
  }
}
"""
BACKFILL = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message stack }
  }
}
"""
Status = dg.DagsterRunStatus


class Queue:
    """The daemons of an instance with two workers, over one topic."""

    def __init__(self, context: WorkspaceProcessContext, connection: KafkaConnection, source: str) -> None:
        self.instance: dg.DagsterInstance = context.instance
        self._context = context
        self._connection = connection
        self._source = source
        self._logger = logging.getLogger("kpipe_platform_tests.queue")
        self._coordinator = QueuedRunCoordinatorDaemon(interval_seconds=1)
        self.most_at_work = 0
        self.most_unfinished = 0

    def tick(self) -> None:
        """Let the sensor daemon look, which evaluates a sensor when its interval has passed."""
        for error in execute_sensor_iteration(self._context, self._logger, None, None):
            assert error is None, error

    def submit_backfills(self) -> None:
        for error in execute_backfill_iteration(self._context, self._logger):
            assert error is None, error

    def dequeue(self) -> list[dg.DagsterRun]:
        """Let the run queue daemon look; returns what is at work then."""
        list(self._coordinator.run_iteration(self._context))
        at_work = self.runs(Status.STARTING, Status.STARTED)
        self.most_at_work = max(self.most_at_work, len(at_work))
        self.most_unfinished = max(self.most_unfinished, len(self.runs(*NOT_FINISHED_STATUSES)))
        return at_work

    def runs(self, *statuses: dg.DagsterRunStatus) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(statuses=list(statuses))))

    def finish(self, run: dg.DagsterRun) -> None:
        """The end of a successful run: the group's offset is stored, then Dagster hears of it."""
        offset = TopicPartition(self._source, int(run.tags["dagster/partition"]), 1)
        with Clients(self._connection.settings) as clients:
            wanted = ConsumerGroupTopicPartitions(GROUP, [offset])
            clients.admin().alter_consumer_group_offsets([wanted])[GROUP].result()
        event = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, run.job_name, message="ended by the test")
        self.instance.report_dagster_event(event, run.run_id)

    def graphql(self, query: str, params: dict[str, Any], field: str, wanted: str) -> dict[str, Any]:
        made = execute_dagster_graphql(self._context.create_request_context(), query, {"params": params})
        answer: dict[str, Any] = made.data[field]
        assert answer["__typename"] == wanted, answer
        return answer

    def launch(self, partition: str, *assets: str) -> str:
        """What the button in the UI does."""
        [location] = self._context.create_request_context().code_locations
        params = {
            "selector": {
                "repositoryLocationName": location.name,
                "repositoryName": "__repository__",
                "jobName": "__ASSET_JOB",
                "assetSelection": [{"path": [name]} for name in assets],
            },
            "runConfigData": {},
            "mode": "default",
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        }
        made = self.graphql(LAUNCH, params, "launchPipelineExecution", "LaunchRunSuccess")
        return str(made["run"]["runId"])

    def backfill(self, partitions: list[str]) -> None:
        params = {"partitionNames": partitions, "assetSelection": [{"path": ["enriched"]}]}
        self.graphql(BACKFILL, params, "launchPartitionBackfill", "LaunchBackfillSuccess")

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run.status


@pytest.fixture
def make_queue(
    tmp_path: Path,
    kafka_broker: EmbeddedBroker,
    kafka_topic: TopicFactory,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Queue]]:
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(partitions: int, at_once: int) -> Queue:
            source = kafka_topic("orders", partitions=partitions)
            produce(source, [record(number, number) for number in range(partitions)])
            monkeypatch.setenv("QUEUE_BROKERS", kafka_broker.bootstrap_servers)
            monkeypatch.setenv("QUEUE_SOURCE", source)
            monkeypatch.setenv("QUEUE_AT_ONCE", str(at_once))
            monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
            connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
            with Clients(connection.settings) as clients:
                for future in clients.admin().delete_consumer_groups([GROUP]).values():
                    future.exception()
            home = tmp_path / uuid.uuid4().hex[:8]
            home.mkdir()
            (home / "dagster.yaml").write_text(dagster_yaml(WORKERS) + LAUNCHER, encoding="utf-8")
            (tmp_path / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
            instance = stack.enter_context(dg.DagsterInstance.from_config(str(home)))
            register_kafka_partitions(instance, source, range(partitions))
            target = PythonFileTarget(str(tmp_path / "definitions.py"), None, str(tmp_path), None)
            context = stack.enter_context(create_test_daemon_workspace_context(target, instance))
            return Queue(context, connection, source)

        yield make


@pytest.mark.parametrize("at_once", [1_000, 6])
def test_a_sensor_over_100_partitions_has_two_at_work_and_floods_nothing(
    make_queue: Callable[..., Queue], at_once: int
) -> None:
    count = 100 if at_once == 1_000 else 20
    queue = make_queue(count, at_once)
    turn = 0
    while len(queue.runs(Status.SUCCESS)) < count:
        # A look over 100 partitions takes two seconds here; with few at once each turn needs one.
        if turn % (10 if at_once == 1_000 else 1) == 0:
            queue.tick()
        turn += 1
        for run in queue.dequeue():
            queue.finish(run)
    taken = collections.Counter(run.tags["dagster/partition"] for run in queue.runs())
    assert taken == {str(number): 1 for number in range(count)}
    assert queue.most_at_work == WORKERS
    # Each partition has one run at most, however often the sensor looks, and no more wait than its scaling says.
    assert queue.most_unfinished <= min(count, at_once)
    assert all(run.tags[SLOT] == f"kpipe.enriched/{run.tags['dagster/partition']}" for run in queue.runs())


@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")
def test_a_backfill_of_100_partitions_queues_and_the_sensor_adds_nothing(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue(100, 1_000)
    queue.backfill([str(number) for number in range(100)])
    queue.submit_backfills()
    queue.tick()
    while len(queue.runs(Status.SUCCESS)) < 100:
        for run in queue.dequeue():
            queue.finish(run)
    taken = collections.Counter(run.tags["dagster/partition"] for run in queue.runs())
    assert taken == {str(number): 1 for number in range(100)}
    assert queue.most_at_work == WORKERS
    queue.tick()
    assert len(queue.runs()) == 100


def test_a_run_by_hand_waits_for_the_run_of_its_partition(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue(2, 1_000)
    while not queue.runs(Status.QUEUED):
        queue.tick()
    first, second = sorted(queue.runs(Status.QUEUED), key=lambda run: run.tags["dagster/partition"])
    queue.dequeue()
    queue.finish(second)

    by_hand = queue.launch("0", "enriched")
    other_partition = queue.launch("1", "enriched")
    queue.dequeue()

    # A worker was free for it, and the later one got it.
    assert queue.status(first.run_id) is Status.STARTED
    assert queue.status(by_hand) is Status.QUEUED
    assert queue.status(other_partition) is Status.STARTED
    for run in queue.runs(Status.STARTED):
        queue.finish(run)
    queue.dequeue()
    assert queue.status(by_hand) is Status.STARTED


def test_another_asset_of_the_same_partition_does_not_wait(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue(1, 1)
    ours, other = queue.launch("0", "enriched"), queue.launch("0", "copied")
    assert len(queue.dequeue()) == 2
    assert {queue.status(ours), queue.status(other)} == {Status.STARTED}


def test_a_limit_on_the_pool_of_an_asset_holds_its_runs_back_in_the_queue(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue(3, 1)
    queue.instance.event_log_storage.set_concurrency_slots("kpipe.enriched", 1)
    first, second = queue.launch("0", "enriched"), queue.launch("1", "enriched")
    other = queue.launch("2", "copied")
    queue.dequeue()
    assert queue.status(first) is Status.STARTED
    assert queue.status(second) is Status.QUEUED
    assert queue.status(other) is Status.STARTED

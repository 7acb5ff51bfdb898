"""Dagster's queue with many partitions and two workers: the real daemons, iterated by hand, and the settings of kpipe.

The runs have no process: the test ends each and moves the group's offset, as a run would. Runs with processes are in
test_dagster_dev.py. All tests share a code server and a topic; each has a Dagster instance and offsets of its own.
"""

from __future__ import annotations

import collections
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from dagster._core.remote_representation.grpc_server_registry import GrpcServerRegistry
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._daemon.controller import create_daemon_grpc_server_registry
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.sensor import execute_sensor_iteration
from dagster_graphql.test.utils import execute_dagster_graphql

from kpipe_platform import KafkaConnection, register_kafka_partitions
from kpipe_platform.cli.dev.command import dagster_yaml
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.partitions.coordinator import SLOT
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

from .conftest import record

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
WORKERS = 2
PARTITIONS = 12
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
orders = kafka_topic_asset(os.environ["QUEUE_SOURCE"], value_codec=JsonCodec("id BIGINT NOT NULL"), name="orders")

def scaling(at_once):
    return PartitionScaling(
        execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, max_concurrent_partitions=at_once
    )

@kafka_asset(source=orders, topic=KafkaTopic("enriched", value_codec=JsonCodec()), scaling=scaling(1_000))
def enriched(orders):
    return orders

@kafka_asset(source=orders, topic=KafkaTopic("limited", value_codec=JsonCodec()), scaling=scaling(3))
def limited(orders):
    return orders

defs = dg.Definitions(
    assets=[orders, enriched, limited],
    sensors=[kafka_offset_sensor(each, minimum_interval_seconds=1) for each in (enriched, limited)],
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
    """The daemons of an instance with two workers, over one topic, and the sensor of one asset."""

    def __init__(
        self, context: WorkspaceProcessContext, connection: KafkaConnection, source: str, asset: str, due: int
    ) -> None:
        self.group = f"queue.{asset}"
        self.instance: dg.DagsterInstance = context.instance
        self._context = context
        self._connection = connection
        self._source = source
        self._logger = logging.getLogger("kpipe_platform_tests.queue")
        self._coordinator = QueuedRunCoordinatorDaemon(interval_seconds=1)
        self.most_at_work = 0
        self.most_unfinished = 0
        with Clients(connection.settings) as clients:
            for future in clients.admin().delete_consumer_groups([self.group]).values():
                future.exception()
        self._store(*range(due, PARTITIONS))
        [location] = context.create_request_context().code_locations
        [repository] = location.get_repositories().values()
        self.instance.start_sensor(repository.get_sensor(f"{asset}_offsets"))

    def _store(self, *partitions: int) -> None:
        """Offsets at the ends of partitions, each of which has one record."""
        if partitions:
            wanted = ConsumerGroupTopicPartitions(
                self.group, [TopicPartition(self._source, number, 1) for number in partitions]
            )
            with Clients(self._connection.settings) as clients:
                clients.admin().alter_consumer_group_offsets([wanted])[self.group].result()

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
        self._store(int(run.tags["dagster/partition"]))
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


@pytest.fixture(scope="module")
def source(kafka_topic: TopicFactory, produce: Produce) -> str:
    """A topic with a record in each partition."""
    made = kafka_topic("orders", partitions=PARTITIONS)
    produce(made, [record(number, number) for number in range(PARTITIONS)])
    return made


def home_of(folder: Path) -> dg.DagsterInstance:
    folder.mkdir()
    (folder / "dagster.yaml").write_text(dagster_yaml(WORKERS) + LAUNCHER, encoding="utf-8")
    return dg.DagsterInstance.from_config(str(folder))


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: EmbeddedBroker, source: str
) -> Iterator[tuple[PythonFileTarget, GrpcServerRegistry]]:
    """A file of definitions, and the code server that serves it to every instance."""
    folder = tmp_path_factory.mktemp("queue")
    (folder / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    target = PythonFileTarget(str(folder / "definitions.py"), None, str(folder), None)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("QUEUE_BROKERS", kafka_broker.bootstrap_servers)
        environment.setenv("QUEUE_SOURCE", source)
        environment.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        with home_of(folder / "home") as instance, create_daemon_grpc_server_registry(instance) as registry:
            yield target, registry


@pytest.fixture
def make_queue(
    tmp_path: Path, kafka_broker: EmbeddedBroker, source: str, servers: tuple[PythonFileTarget, GrpcServerRegistry]
) -> Iterator[Callable[..., Queue]]:
    """Makes the queue of a test, whose first partitions are due."""
    with ExitStack() as stack:

        def make(due: int = PARTITIONS, asset: str = "enriched") -> Queue:
            instance = stack.enter_context(home_of(tmp_path / "home"))
            register_kafka_partitions(instance, source, range(PARTITIONS))
            target, registry = servers
            context = stack.enter_context(WorkspaceProcessContext(instance, target, grpc_server_registry=registry))
            connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
            return Queue(context, connection, source, asset, due)

        yield make


@pytest.mark.parametrize(("asset", "due", "at_once"), [("enriched", PARTITIONS, 1_000), ("limited", 7, 3)])
def test_a_sensor_over_many_partitions_has_two_at_work_and_floods_nothing(
    make_queue: Callable[..., Queue], asset: str, due: int, at_once: int
) -> None:
    queue = make_queue(due, asset)
    for turn in itertools.count():
        if len(queue.runs(Status.SUCCESS)) == due:
            break
        # The sensor looks while runs wait, while runs are at work, and when it has room again.
        if turn % 3 == 0:
            queue.tick()
        for run in queue.dequeue():
            queue.finish(run)
    taken = collections.Counter(run.tags["dagster/partition"] for run in queue.runs())
    assert taken == {str(number): 1 for number in range(due)}
    assert queue.most_at_work == WORKERS
    # Each partition has one run at most, however often the sensor looks, and no more wait than its scaling says.
    assert WORKERS < queue.most_unfinished <= min(due, at_once)
    assert all(run.tags[SLOT] == f"kpipe.{asset}/{run.tags['dagster/partition']}" for run in queue.runs())


@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")
def test_a_backfill_of_many_partitions_queues_and_the_sensor_adds_nothing(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue()
    queue.backfill([str(number) for number in range(PARTITIONS)])
    queue.submit_backfills()
    assert len(queue.runs(Status.QUEUED)) == PARTITIONS
    queue.tick()
    while queue.runs(*NOT_FINISHED_STATUSES):
        for run in queue.dequeue():
            queue.finish(run)
    taken = collections.Counter(run.tags["dagster/partition"] for run in queue.runs(Status.SUCCESS))
    assert taken == {str(number): 1 for number in range(PARTITIONS)}
    assert queue.most_at_work == WORKERS
    queue.tick()
    assert len(queue.runs()) == PARTITIONS


def test_a_run_by_hand_waits_for_its_partition_and_its_pool_and_for_nothing_else(
    make_queue: Callable[..., Queue],
) -> None:
    queue = make_queue(due=2)
    end = time.monotonic() + 60
    while not queue.runs(Status.QUEUED):
        assert time.monotonic() < end
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

    # Another asset of the same partition does not wait.
    other_asset = queue.launch("0", "limited")
    queue.dequeue()
    assert {queue.status(by_hand), queue.status(other_asset)} == {Status.STARTED}
    for run in queue.runs(Status.STARTED):
        queue.finish(run)

    # A limit on the pool of an asset holds its runs back in the queue.
    queue.instance.event_log_storage.set_concurrency_slots("kpipe.enriched", 1)
    has_slot, waits = queue.launch("0", "enriched"), queue.launch("1", "enriched")
    other_pool = queue.launch("2", "limited")
    queue.dequeue()
    assert queue.status(has_slot) is Status.STARTED
    assert queue.status(waits) is Status.QUEUED
    assert queue.status(other_pool) is Status.STARTED

"""The flights platform on a Spark cluster and three brokers, undisturbed and with one of them killed in mid-slice.

Left out of the usual run: it takes minutes and a dozen JVMs. ``make cluster-test`` runs it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kpipe_platform.demo.topics import TOPICS
from kpipe_platform.errors import TransientError
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform_tests.processes import python_workers, send, wait_until

from .flights import Flights
from .standalone import StandaloneCluster

pytestmark = [pytest.mark.cluster, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

MONTHS, WEEKS = 120_000, 60_000
# Long enough for markers to be in every partition after a commit; a writer that stands still does not get that far.
SETTLE_S = 3.0

Start = Callable[[int], AbstractContextManager[Flights]]


def test_months_of_flights(flights: Start, brokers: EmbeddedBroker, spark_cluster: StandaloneCluster) -> None:
    with flights(MONTHS) as platform:
        assert spark_cluster.executors() == 2
        platform.finish()
        platform.assert_exactly_once()
        assert platform.aborted() == 0
        assert_replicated(brokers)


def test_a_worker_that_is_killed_in_mid_slice(flights: Start, spark_cluster: StandaloneCluster) -> None:
    with flights(WEEKS) as platform:
        killed: list[int] = []

        def kill(writer: int) -> None:
            killed.append(writer)
            spark_cluster.kill_worker(writer)

        with when_writing(platform, spark_cluster, kill):
            # Spark gives the task to the other executor, which finds the transaction of the dead one and aborts it.
            succeeded = succeeds(platform)
        assert len(killed) == 1
        assert len(spark_cluster.pids) == 1
        assert (platform.committed() > 0) == succeeded
        platform.finish()
        platform.assert_exactly_once()
        assert succeeded
        # What the dead executor had written is there, and was aborted.
        assert platform.aborted() > 0


def test_a_broker_that_is_killed_in_mid_slice(
    flights: Start, brokers: EmbeddedBroker, spark_cluster: StandaloneCluster
) -> None:
    with flights(WEEKS) as platform:
        killed: list[int] = []

        def kill(_writer: int) -> None:
            killed.append(platform.coordinator())
            brokers.kill_broker(killed[0])

        with when_writing(platform, spark_cluster, kill):
            succeeds(platform)
        assert len(killed) == 1
        # Two replicas are left, and that many are enough.
        assert platform.coordinator() not in killed
        platform.finish()
        platform.assert_exactly_once()
        brokers.start_broker(killed[0])
        platform.assert_exactly_once()


def succeeds(platform: Flights) -> bool:
    """Whether one slice succeeds; where it does not, the error says that it may later."""
    try:
        platform.enrich_one()
    except TransientError:
        return False
    return True


@contextmanager
def when_writing(platform: Flights, cluster: StandaloneCluster, act: Callable[[int], None]) -> Iterator[None]:
    """Do something in the middle of a slice of the block: some outputs are written, and its transaction is open.

    The writer is made to stand still, so that it is certain that its transaction is open when ``act`` is called with
    the process id of the Spark worker that it runs on.
    """
    problems: list[BaseException] = []
    over = threading.Event()

    def watch() -> None:
        try:
            while not over.is_set():
                wait_until(lambda: over.is_set() or platform.is_writing(), "outputs of an open transaction", 300, 0.01)
                writers = {pid: python_workers(pid) for pid in cluster.pids}
                frozen = [pid for below in writers.values() for pid in below]
                send(frozen, signal.SIGSTOP)
                try:
                    if frozen and stays(platform.is_writing):
                        (writer,) = (pid for pid, below in writers.items() if below)
                        act(writer)
                        return
                finally:
                    send(frozen, signal.SIGCONT)
        except BaseException as error:  # noqa: BLE001  # the block's end raises it
            problems.append(error)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join(120)
    if problems:
        raise problems[0]


def stays(condition: Callable[[], bool]) -> bool:
    """Whether it holds for as long as `SETTLE_S`."""
    try:
        wait_until(lambda: not condition(), "a change", SETTLE_S, 0.1)
    except AssertionError:
        return True
    return False


def assert_replicated(brokers: EmbeddedBroker) -> None:
    """Every topic, Kafka's own ones too, has three replicas of which two must acknowledge."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    names = [*TOPICS, "__transaction_state", "__consumer_offsets"]
    found = admin.list_topics(timeout=10).topics
    assert {len(each.replicas) for name in names for each in found[name].partitions.values()} == {3}
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    in_sync = {resource.name: future.result()["min.insync.replicas"].value for resource, future in asked.items()}
    assert in_sync == dict.fromkeys(names, "2")

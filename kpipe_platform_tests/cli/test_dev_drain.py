"""Ctrl-C on `kpipe dev` while a real run is at work: it finishes, or a second Ctrl-C ends it and leaves no trace."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.jvm.ports import is_free
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic, log_ranges
from kpipe_platform_tests.cli.test_dev import ROOT, Dev

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

SOURCE, TARGET, GROUP = "orders", "enriched", "drain.enriched"

# The stage waits, in the driver, until the test lets it go on.
DEFINITIONS = """
import pathlib, time
import dagster as dg
from kpipe_platform import (
    JsonCodec, KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource, KafkaTopic, SparkEngine, kafka_asset,
    kafka_topic_asset, kafka_offset_sensor,
)

connection = KafkaConnection(bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"))
orders = kafka_topic_asset("orders", value=JsonCodec("id BIGINT NOT NULL"))
here = pathlib.Path(__file__).parent

@kafka_asset(source=orders, topic=KafkaTopic("enriched", value=JsonCodec()))
def enriched(orders):
    (here / "at_work").touch()
    while not (here / "go").exists():
        time.sleep(0.05)
    return orders

defs = dg.Definitions(
    assets=[orders, enriched],
    sensors=[kafka_offset_sensor(
        enriched, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING
    )],
    resources={"kafka_io_manager": KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix="drain"),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(),
    )},
    executor=dg.in_process_executor,
)
"""


class Draining(Dev):
    """`kpipe dev` over a topic of two partitions, with the sensor on."""

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to all of the foreground's process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def until_at_work(self, reached: str) -> None:
        self.until_ready()
        found = re.search(r"Kafka +(\S+:\d+)\n", self.log)
        assert found, self.log
        for topic, partitions in ((SOURCE, 2), (TARGET, 1)):
            create_topic(found[1], topic, partitions=partitions)
        records = [{"value": b'{"id": %d}' % number, "partition": number // 2} for number in range(4)]
        produce(found[1], SOURCE, records)
        self.until((self.folder / reached).exists, 150)

    def statuses(self) -> list[dg.DagsterRunStatus]:
        with dg.DagsterInstance.from_config(str(self.folder / ".kpipe/dev/dagster")) as instance:
            return [run.status for run in instance.get_runs()]

    def check_nothing_is_left(self) -> None:
        assert not self.processes(), self.log
        assert is_free(self.port)

    @contextmanager
    def brokers(self) -> Iterator[str]:
        """The same broker once more, with its data."""
        with EmbeddedBroker(1, self.folder / ".kpipe/dev/kafka", keep_data=True) as broker:
            yield broker.bootstrap_servers


def committed(servers: str) -> dict[int, int | None]:
    found = KafkaSource(connection=KafkaConnection(bootstrap_servers=servers)).committed(GROUP, SOURCE)
    return {number: None if offset is None else offset.offset for number, offset in found.items()}


@contextmanager
def started(folder: Path, **environment: str) -> Iterator[Draining]:
    dev = Draining(folder, definitions=DEFINITIONS, **environment)
    try:
        yield dev
    finally:
        if dev.process.poll() is None:
            dev.process.kill()
            dev.process.wait()


def test_the_run_at_work_finishes_and_no_further_one_begins(tmp_path: Path) -> None:
    with started(tmp_path) as dev:
        dev.until_at_work("at_work")
        dev.ctrl_c()
        dev.until(lambda: "Waiting up to 30 s for 1 run at work" in dev.log, 20)
        # The daemon is gone, so nothing can ask for the other partition.
        dev.until(lambda: "Dagster services shut down" in dev.log, 40)
        assert dev.process.poll() is None
        (tmp_path / "go").touch()

        assert dev.process.wait(60) == 0, dev.log
        dev.check_nothing_is_left()

    assert "enriched partition 0 (run " in dev.log
    assert "The runs are finished. Stopping Dagster and Kafka" in dev.log
    assert "Traceback" not in dev.log, dev.log
    assert dev.statuses() == [dg.DagsterRunStatus.SUCCESS]
    with dev.brokers() as servers:
        assert committed(servers) == {0: 2, 1: None}
        assert sorted(each.json()["id"] for each in consume(servers, TARGET)) == [0, 1]


def test_a_second_ctrl_c_ends_it_at_once_and_nothing_is_committed(tmp_path: Path) -> None:
    # Its outputs are flushed, and it hangs in a worker of Spark before the offsets are added: the transaction is open.
    (tmp_path / "go").touch()
    faults = os.pathsep.join([str(ROOT / "kpipe_platform_tests" / "faultpoints"), str(ROOT)])
    hanging = {
        "KPIPE_FAULT": "hang_before_offsets",
        "KPIPE_FAULT_FILE": str(tmp_path / "reached"),
        "PYTHONPATH": faults,
    }
    with started(tmp_path, **hanging) as dev:
        dev.until_at_work("reached")
        dev.ctrl_c()
        dev.until(lambda: "Waiting up to 30 s for 1 run at work" in dev.log, 20)
        began = time.monotonic()
        dev.ctrl_c()

        assert dev.process.wait(30) == 0, dev.log
        took_s = time.monotonic() - began
        dev.check_nothing_is_left()

    assert took_s < 15, f"{took_s:.1f} s\n{dev.log}"
    assert "Ending 1 run at work: Spark jobs are cancelled, transactions aborted" in dev.log
    assert set(dev.statuses()) <= {dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
    with dev.brokers() as servers:
        assert committed(servers) == {0: None, 1: None}
        # No transaction is open: readers of committed records get to the end, and find nothing.
        stable = log_ranges(servers, TARGET)
        assert stable == log_ranges(servers, TARGET, isolation="read_uncommitted")
        assert stable[0][1] > 0
        assert consume(servers, TARGET) == []

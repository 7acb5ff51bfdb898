"""Ctrl-C on `kpipe dev` during a real run: it finishes, or a second Ctrl-C ends it and leaves no trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic, log_ranges
from kpipe_platform_tests.cli.dev_process import ROOT, RUN_DEADLINE_S, STOP_DEADLINE_S, Dev, running_dev

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SOURCE, TARGET, GROUP = "orders", "enriched", "drain.enriched"

# The stage waits, in the driver, until the test lets it go on.
DEFINITIONS = """
import os, pathlib, time
import dagster as dg
from kpipe_platform import (
    JsonCodec, KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource, KafkaTopic, SparkEngine, kafka_asset,
    kafka_topic_asset, kafka_offset_sensor,
)

connection = KafkaConnection(bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"))
orders = kafka_topic_asset("orders", value_codec=JsonCodec("id BIGINT NOT NULL"))
here = pathlib.Path(__file__).parent
remote = os.environ.get("KPIPE_SPARK_REMOTE")
own = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

@kafka_asset(source=orders, topic=KafkaTopic("enriched", value_codec=JsonCodec()))
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
        spark=SparkEngine(remote=remote) if remote else SparkEngine(spark_config=own),
    )},
    executor=dg.in_process_executor,
)
"""


def until_at_work(dev: Dev, reached: Path) -> None:
    """Two records in each of two partitions, of which the sensor takes the first."""
    dev.until_ready()
    for topic, partitions in ((SOURCE, 2), (TARGET, 1)):
        create_topic(dev.brokers, topic, partitions=partitions)
    records = [{"value": b'{"id": %d}' % number, "partition": number // 2} for number in range(4)]
    produce(dev.brokers, SOURCE, records)
    dev.until(reached.exists, RUN_DEADLINE_S)


@contextmanager
def brokers_again(dev: Dev) -> Iterator[str]:
    """The same broker once more, with its data."""
    with EmbeddedBroker(1, dev.data / "kafka", keep_data=True) as broker:
        yield broker.bootstrap_servers


def committed(servers: str) -> dict[int, int | None]:
    found = KafkaSource(connection=KafkaConnection(bootstrap_servers=servers)).committed(GROUP, SOURCE)
    return {number: None if offset is None else offset.offset for number, offset in found.items()}


def test_the_run_at_work_finishes_and_no_further_one_begins(tmp_path: Path) -> None:
    # It is attached to the warm engine, which must not be stopped before it.
    with running_dev(tmp_path, "--drain-s", "120", definitions=DEFINITIONS) as dev:
        until_at_work(dev, tmp_path / "at_work")
        dev.ctrl_c()
        dev.until(lambda: "Waiting up to 120 s for 1 active run" in dev.log, STOP_DEADLINE_S)
        # The daemon is gone, so nothing can request a run of the other partition.
        dev.until(lambda: "Dagster services shut down" in dev.log, STOP_DEADLINE_S)
        assert dev.process.poll() is None
        (tmp_path / "go").touch()

        assert dev.process.wait(STOP_DEADLINE_S) == 0, dev.log
        dev.check_nothing_is_left()

    assert "enriched partition 0 (run " in dev.log
    assert "All runs have finished. Stopping Dagster and Kafka" in dev.log
    assert "Traceback" not in dev.log, dev.log
    assert dev.run_states() == ["SUCCESS"]
    with brokers_again(dev) as servers:
        assert committed(servers) == {0: 2, 1: None}
        assert sorted(each.json()["id"] for each in consume(servers, TARGET)) == [0, 1]


def test_a_second_ctrl_c_ends_it_and_nothing_is_committed(tmp_path: Path) -> None:
    # Its outputs are flushed, and it hangs in a worker of Spark before the offsets are added: the transaction is open.
    (tmp_path / "go").touch()
    hanging = {
        "KPIPE_FAULT": "hang_before_offsets",
        "KPIPE_FAULT_FILE": str(tmp_path / "reached"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "kpipe_platform_tests" / "faultpoints"), str(ROOT)]),
    }
    # Spark is the run's own, and nothing but the second Ctrl-C ends it in time.
    options = ("--no-warm-engine", "--drain-s", "900")
    with running_dev(tmp_path, *options, definitions=DEFINITIONS, **hanging) as dev:
        until_at_work(dev, tmp_path / "reached")
        dev.ctrl_c()
        dev.until(lambda: "Waiting up to 900 s for 1 active run" in dev.log, STOP_DEADLINE_S)
        dev.ctrl_c()

        assert dev.process.wait(STOP_DEADLINE_S) == 0, dev.log
        dev.check_nothing_is_left()

    assert "Canceling 1 active run: Spark jobs are canceled, transactions are aborted" in dev.log
    assert set(dev.run_states()) <= {"FAILURE", "CANCELED"}
    with brokers_again(dev) as servers:
        assert committed(servers) == {0: None, 1: None}
        # No transaction is open: readers of committed records get to the end, and find nothing.
        stable = log_ranges(servers, TARGET)
        assert stable == log_ranges(servers, TARGET, isolation="read_uncommitted")
        assert stable[0][1] > 0
        assert consume(servers, TARGET) == []

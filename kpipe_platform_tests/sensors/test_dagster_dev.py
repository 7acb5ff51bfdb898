"""The sensor in a real `dagster dev`: records are produced, it asks for runs, and the offsets move."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from kpipe_platform import ExecutionMode, KafkaConnection, KafkaSource
from kpipe_platform.cli.dev import dagster_yaml
from kpipe_platform.jvm.ports import is_free
from kpipe_platform.spark.connect_server import ConnectServer
from kpipe_platform.testing.broker import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory

from .conftest import record
from .dagster_dev import DagsterDev
from .latency import Latency, latency_of
from .test_tick import grow_topic

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PREFIX = "dev"

DEFINITIONS = """
import os
from pathlib import Path
import dagster as dg
from kpipe_platform import (
    ExecutionMode, JsonCodec, KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource, KafkaTopic,
    PartitionScaling, SparkEngine, kafka_asset, kafka_topic_asset,
)
from kpipe_platform.sensors import kafka_offset_sensor

connection = KafkaConnection(bootstrap_servers=dg.EnvVar("BROKERS"))
orders = kafka_topic_asset(os.environ["SOURCE"], value=JsonCodec("id BIGINT NOT NULL"), name="orders")

scaling = PartitionScaling(execution_mode=ExecutionMode(os.environ.get("MODE", "preserve_partition_order")))

@kafka_asset(
    source=orders, topic=KafkaTopic(os.environ["TARGET"], value=JsonCodec()), name="enriched", scaling=scaling
)
def enriched(orders):
    return orders

# Read by the process of each run: a warm engine may come meanwhile.
remote = Path("remote").read_text() if Path("remote").exists() else None
own = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

defs = dg.Definitions(
    assets=[orders, enriched],
    sensors=[kafka_offset_sensor(
        enriched, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING
    )],
    resources={"kafka_io_manager": KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix="dev"),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(remote=remote) if remote else SparkEngine(spark_config=own),
    )},
    executor=dg.in_process_executor,
)
"""


def dev_of(folder: Path, workers: int, **environment: str) -> DagsterDev:
    files = {"definitions.py": DEFINITIONS, "dagster.yaml": dagster_yaml(workers)}
    return DagsterDev(folder, files, ("-f", "definitions.py"), **environment)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DagsterDev]]:
    started: list[DagsterDev] = []

    def make(workers: int = 1, **environment: str) -> DagsterDev:
        started.append(dev_of(tmp_path, workers, **environment))
        return started[0]

    yield make
    for dev in started:
        dev.stop()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ConnectServer]:
    """A warm engine, not started yet. Its first slice is what warms it: nothing else then takes the cores."""
    server = ConnectServer(tmp_path / "engine", master="local[2]", warm=False)
    yield server
    server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_produced_records_are_committed_by_runs_that_the_sensor_asked_for(
    start: Callable[..., DagsterDev],
    engine: ConnectServer,
    kafka_broker: EmbeddedBroker,
    kafka_topic: TopicFactory,
    produce: Produce,
    consume: Consume,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = kafka_topic("orders", partitions=2), kafka_topic("enriched")
    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    kafka = KafkaSource(connection=connection, group_prefix=PREFIX)
    group = kafka.group(dg.AssetKey("enriched"))

    def committed() -> dict[int, int]:
        return {n: found.offset for n, found in kafka.committed(group, source).items() if found is not None}

    dev = start(BROKERS=kafka_broker.bootstrap_servers, SOURCE=source, TARGET=target)
    dev.until(lambda: "enriched_offsets skipped" in dev.log, 120)

    with dg.DagsterInstance.from_config(str(dev.folder)) as instance:

        def measured(what: str, numbers: list[int]) -> tuple[Latency, bool]:
            end = committed().get(0, 0) + len(numbers)
            jvms = []
            produced_s = time.time()
            produce(source, [record(number, 0) for number in numbers])
            dev.until(lambda: jvms.append(dev.runs_a_jvm()) or committed() == {0: end}, 150)
            seen_s = time.time()
            dev.until(lambda: instance.get_runs()[0].status is dg.DagsterRunStatus.SUCCESS, 60)
            found = latency_of(instance, instance.get_runs()[0].run_id, produced_s, seen_s)
            with capsys.disabled():
                sys.stdout.write(f"\nproduce to commit, {what}: {found}\n")
            return found, any(jvms)

        own = measured("a Spark of its own", [1, 2])
        engine.start()
        (dev.folder / "remote").write_text(engine.remote, encoding="utf-8")
        attached = [measured(f"attached to {engines} engine", [n]) for n, engines in ((4, "a new"), (5, "a warm"))]
        for latency, _ in (own, *attached):
            assert latency.total_s == pytest.approx(sum(latency.parts_s.values()))
            assert min(latency.parts_s.values()) > -1, latency
        assert [has_jvm for _, has_jvm in (own, *attached)] == [True, False, False]

    # A partition that is added while it runs is taken from its start.
    grow_topic(connection, source, 3)
    produce(source, [record(3, 2)])
    dev.until(lambda: committed() == {0: 4, 2: 1}, 150)

    assert sorted(each.json()["id"] for each in consume(target)) == [1, 2, 3, 4, 5]
    with dg.DagsterInstance.from_config(str(dev.folder)) as instance:
        dev.until(lambda: not instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])), 60)
        runs = instance.get_runs()
        assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 4, dev.log[-6_000:]
        assert {run.tags["kpipe/partitions"] for run in runs} == {"0", "2"}
        assert instance.get_dynamic_partitions(f"kafka.{source}") == ["0", "1", "2"]
    dev.stop()
    assert is_free(dev.port)
    assert not re.search(r"Traceback", dev.log), dev.log[-6_000:]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_partitions_with_new_records_take_turns_at_two_workers(
    start: Callable[..., DagsterDev],
    kafka_broker: EmbeddedBroker,
    kafka_topic: TopicFactory,
    produce: Produce,
    consume: Consume,
) -> None:
    source, target = kafka_topic("orders", partitions=4), kafka_topic("enriched")
    kafka = KafkaSource(
        connection=KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers), group_prefix=PREFIX
    )
    group = kafka.group(dg.AssetKey("enriched"))
    produce(source, [record(number, number) for number in range(4)])
    mode = ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS.value

    dev = start(workers=2, BROKERS=kafka_broker.bootstrap_servers, SOURCE=source, TARGET=target, MODE=mode)
    with dg.DagsterInstance.from_config(str(dev.folder)) as instance:
        succeeded = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])
        dev.until(lambda: instance.get_runs_count(succeeded) == 4, 450)
        records = instance.get_run_records()

    assert all(offset is not None and offset.offset == 1 for offset in kafka.committed(group, source).values())
    assert sorted(each.json()["id"] for each in consume(target)) == [0, 1, 2, 3]
    assert sorted(run.dagster_run.tags["kpipe/slot"] for run in records) == [f"kpipe.enriched/{n}" for n in range(4)]
    # How many were at work when each began.
    spans = [(run.start_time, run.end_time) for run in records]
    at_once = [sum(s <= began < e for s, e in spans if s and e) for began, _ in spans if began]
    assert len(at_once) == 4
    assert max(at_once) <= 2, spans

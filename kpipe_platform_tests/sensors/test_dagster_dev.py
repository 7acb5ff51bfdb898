"""The sensor in a real `dagster dev`: records are produced, it asks for runs, and the offsets move."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg
import pytest

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.cli.dev.command import dagster_yaml
from kpipe_platform.jvm.ports import is_free
from kpipe_platform.partitions.runs import GROUP
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.sensors.tick.test_evaluate import grow_topic

from .conftest import record
from .dagster_dev import DagsterDev
from .latency import Latency, latency_of

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

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
orders = kafka_topic_asset(os.environ["SOURCE"], value_codec=JsonCodec("id BIGINT NOT NULL"), name="orders")
many = kafka_topic_asset(os.environ["MANY"], value_codec=JsonCodec("id BIGINT NOT NULL"), name="many")

@kafka_asset(source=orders, topic=KafkaTopic(os.environ["TARGET"], value_codec=JsonCodec()))
def enriched(orders):
    return orders

@kafka_asset(
    source=many,
    topic=KafkaTopic(os.environ["COPIED"], value_codec=JsonCodec()),
    scaling=PartitionScaling(execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS),
)
def copied(many):
    return many

# Read by the process of each run: whether it has a Spark of its own.
remote = Path("remote").read_text() if Path("remote").exists() else None
own = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

defs = dg.Definitions(
    assets=[orders, enriched, many, copied],
    sensors=[
        kafka_offset_sensor(each, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
        for each in (enriched, copied)
    ],
    resources={"kafka_io_manager": KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix="dev"),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(remote=remote) if remote else SparkEngine(spark_config=own),
    )},
    executor=dg.in_process_executor,
)
"""


@dataclass(frozen=True)
class Deployment:
    """A `dagster dev` with two workers, and the topics of its assets: enriched over 2 partitions, copied over 3."""

    dev: DagsterDev
    kafka: KafkaSource
    source: str
    target: str
    many: str
    copied: str
    engine: str

    def committed(self, asset: str, topic: str) -> dict[int, int]:
        found = self.kafka.committed(self.kafka.group(dg.AssetKey(asset)), topic)
        return {number: each.offset for number, each in found.items() if each is not None}

    def attach(self, is_attached: bool) -> None:
        """Whether later runs attach to the engine, or have a Spark of their own."""
        address = self.dev.folder / "remote"
        if is_attached:
            address.write_text(self.engine, encoding="utf-8")
        else:
            address.unlink(missing_ok=True)

    def instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.from_config(str(self.dev.folder))


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker: EmbeddedBroker, kafka_topic: TopicFactory, engine: str
) -> Iterator[Deployment]:
    """One for all tests of this module; that it ends in order is looked at when they are done."""
    folder = tmp_path_factory.mktemp("dev")
    source, target = kafka_topic("orders", partitions=2), kafka_topic("enriched")
    many, copied = kafka_topic("many", partitions=3), kafka_topic("copied")
    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    kafka = KafkaSource(connection=connection, group_prefix=PREFIX)
    files = {"definitions.py": DEFINITIONS, "dagster.yaml": dagster_yaml(2)}
    topics = {"SOURCE": source, "TARGET": target, "MANY": many, "COPIED": copied}
    dev = DagsterDev(folder, files, ("-f", "definitions.py"), BROKERS=kafka_broker.bootstrap_servers, **topics)
    try:
        dev.until(lambda: "enriched_offsets skipped" in dev.log)
        yield Deployment(dev, kafka, source, target, many, copied, engine)
    finally:
        dev.stop()
    assert is_free(dev.port)
    assert not re.search(r"Traceback", dev.log), dev.log[-6_000:]


def test_produced_records_are_committed_by_runs_that_the_sensor_asked_for(
    deployment: Deployment, produce: Produce, consume: Consume, capsys: pytest.CaptureFixture[str]
) -> None:
    dev, source = deployment.dev, deployment.source

    def committed() -> dict[int, int]:
        return deployment.committed("enriched", source)

    ours = dg.RunsFilter(tags={GROUP: "dev.enriched"})

    with deployment.instance() as instance:

        def measured(what: str, numbers: list[int]) -> tuple[Latency, bool]:
            end = committed().get(0, 0) + len(numbers)
            # A run has succeeded a moment before its process, and the JVM of that, are gone.
            dev.until(lambda: not dev.runs_a_jvm(), 60)
            jvms = []
            produced_s = time.time()
            produce(source, [record(number, 0) for number in numbers])
            dev.until(lambda: jvms.append(dev.runs_a_jvm()) or committed() == {0: end})
            seen_s = time.time()
            dev.until(lambda: instance.get_runs(ours)[0].status is dg.DagsterRunStatus.SUCCESS, 60)
            found = latency_of(instance, instance.get_runs(ours)[0].run_id, produced_s, seen_s)
            with capsys.disabled():
                sys.stdout.write(f"\nproduce to commit, {what}: {found}\n")
            return found, any(jvms)

        deployment.attach(False)
        own = measured("a Spark of its own", [1, 2])
        deployment.attach(True)
        attached = measured("attached to an engine", [4])
        for latency, _ in (own, attached):
            assert latency.total_s == pytest.approx(sum(latency.parts_s.values()))
            assert min(latency.parts_s.values()) > -1, latency
        assert [has_jvm for _, has_jvm in (own, attached)] == [True, False]

        # A partition that is added while it runs is taken from its start.
        grow_topic(deployment.kafka.connection, source, 3)
        produce(source, [record(3, 2)])
        dev.until(lambda: committed() == {0: 3, 2: 1})
        assert sorted(each.json()["id"] for each in consume(deployment.target)) == [1, 2, 3, 4]
        dev.until(lambda: all(run.is_finished for run in instance.get_runs(ours)), 60)
        runs = instance.get_runs(ours)
        assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 3, dev.log[-6_000:]
        assert {run.tags["kpipe/partitions"] for run in runs} == {"0", "2"}
        assert instance.get_dynamic_partitions(f"kafka.{source}") == ["0", "1", "2"]


def test_partitions_with_new_records_take_turns_at_two_workers(
    deployment: Deployment, produce: Produce, consume: Consume
) -> None:
    dev, many = deployment.dev, deployment.many
    deployment.attach(True)
    produce(many, [record(number, number) for number in range(3)])
    with deployment.instance() as instance:
        dev.until(lambda: deployment.committed("copied", many) == {0: 1, 1: 1, 2: 1}, 300)
        ours = dg.RunsFilter(tags={GROUP: "dev.copied"})
        dev.until(lambda: all(run.is_finished for run in instance.get_runs(ours)), 60)
        records = instance.get_run_records(ours)

    assert {each.dagster_run.status for each in records} == {dg.DagsterRunStatus.SUCCESS}
    assert sorted(each.json()["id"] for each in consume(deployment.copied)) == [0, 1, 2]
    assert sorted(run.dagster_run.tags["kpipe/slot"] for run in records) == [f"kpipe.copied/{n}" for n in range(3)]
    # How many were at work when each began.
    spans = [(run.start_time, run.end_time) for run in records]
    at_once = [sum(s <= began < e for s, e in spans if s and e) for began, _ in spans if began]
    assert len(at_once) == 3
    assert max(at_once) <= 2, spans

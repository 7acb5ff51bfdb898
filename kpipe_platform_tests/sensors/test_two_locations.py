"""Two code locations of a real `dagster dev` share a topic: one waits for the run of the other, and takes over."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from kpipe_platform import KafkaConnection, KafkaSource
from kpipe_platform.jvm.ports import LOOPBACK
from kpipe_platform.kafka.admin.groups import group_members
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory

from .dagster_dev import DagsterDev

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

PARTITIONS = 4
SESSION_S = 6
SENSOR = "enriched_offsets"

# One file a location; the name of the file is that of the deployment. One run takes all partitions that are due. A run
# is at work for as long as there is a file called hold.
DEFINITIONS = """
import logging
import os
import time
from pathlib import Path
import dagster as dg
from kpipe_platform import (
    ExecutionMode, JsonCodec, KafkaConnection, KafkaDestination, KafkaIOManager, KafkaSource, KafkaTopic,
    PartitionOwnership, PartitionScaling, SparkEngine, kafka_asset, kafka_offset_sensor, kafka_topic_asset,
)

NAME = Path(__file__).stem
logging.basicConfig(level=logging.INFO, format=NAME + " %(created).3f %(message)s")
connection = KafkaConnection(bootstrap_servers=dg.EnvVar("BROKERS"))
orders = kafka_topic_asset(os.environ["SOURCE"], value_codec=JsonCodec("id BIGINT NOT NULL"), name="orders")

@kafka_asset(
    source=orders,
    topic=KafkaTopic(os.environ["TARGET"], value_codec=JsonCodec()),
    name="enriched",
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def enriched(orders):
    while Path("hold").exists():
        time.sleep(0.1)
    return orders

defs = dg.Definitions(
    assets=[orders, enriched],
    sensors=[kafka_offset_sensor(
        enriched,
        partitions_per_run=4,
        minimum_interval_seconds=1,
        default_status=dg.DefaultSensorStatus.RUNNING if NAME == "blue" else dg.DefaultSensorStatus.STOPPED,
    )],
    resources={"kafka_io_manager": KafkaIOManager(
        source=KafkaSource(
            connection=connection,
            group_prefix="locations",
            scaling=PartitionScaling(
                execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS, max_concurrent_partitions=8
            ),
            ownership=PartitionOwnership(instance_id=NAME, session_timeout_s=6, drain_deadline_s=600),
        ),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(remote=os.environ["ENGINE"]),
    )},
    executor=dg.in_process_executor,
)
"""
WORKSPACE = """
load_from:
  - python_file: {relative_path: blue.py, location_name: blue}
  - python_file: {relative_path: green.py, location_name: green}
"""
SETTINGS = "telemetry:\n  enabled: false\nnux:\n  enabled: false\nconcurrency:\n  runs:\n    max_concurrent_runs: 2\n"
START = """
mutation Start($location: String!, $sensor: String!) {
  startSensor(sensorSelector: {
    repositoryLocationName: $location, repositoryName: "__repository__", sensorName: $sensor
  }) { __typename }
}
"""


class Locations(DagsterDev):
    """`dagster dev` with the locations blue and green."""

    def __init__(self, folder: Path, **environment: str) -> None:
        files = {"blue.py": DEFINITIONS, "green.py": DEFINITIONS, "workspace.yaml": WORKSPACE, "dagster.yaml": SETTINGS}
        super().__init__(folder, files, ("-w", "workspace.yaml"), **environment)

    def start_sensor(self, location: str) -> None:
        """What the switch in the UI does."""
        body = {"query": START, "variables": {"location": location, "sensor": SENSOR}}
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}/graphql",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["data"]["startSensor"]["__typename"] == "Sensor"

    def server(self, location: str) -> int:
        """The process that serves a location."""
        servers = []
        for pid in self.processes():
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "grpc" in arguments and f"{location}.py" in " ".join(arguments):
                servers.append(pid)
        [found] = servers
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Locations]]:
    started: list[Locations] = []

    def make(**environment: str) -> Locations:
        started.append(Locations(tmp_path, **environment))
        return started[0]

    yield make
    for each in started:
        (each.folder / "hold").unlink(missing_ok=True)
        each.stop()


def test_two_code_locations_share_a_topic_and_one_takes_over_from_the_other(
    start: Callable[..., Locations],
    kafka_broker: EmbeddedBroker,
    engine: str,
    kafka_topic: TopicFactory,
    produce: Produce,
    consume: Consume,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = kafka_topic("orders", partitions=PARTITIONS), kafka_topic("enriched")
    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    kafka = KafkaSource(connection=connection, group_prefix="locations")
    group = kafka.group(dg.AssetKey("enriched"))

    def send(batch: int) -> None:
        records = [{"key": "k", "value": b'{"id": %d}' % (batch * 10 + n), "partition": n} for n in range(PARTITIONS)]
        produce(source, records)

    def committed() -> list[int]:
        return [0 if found is None else found.offset for found in kafka.committed(group, source).values()]

    dev = start(BROKERS=kafka_broker.bootstrap_servers, ENGINE=engine, SOURCE=source, TARGET=target)
    hold = dev.folder / "hold"
    dev.until(lambda: f"{SENSOR} skipped" in dev.log)
    blue = dev.server("blue")

    with dg.DagsterInstance.from_config(str(dev.folder)) as instance, Clients(connection.settings) as clients:

        def runs() -> list[dg.DagsterRun]:
            return sorted(instance.get_runs(), key=lambda run: run.tags["kpipe/ranges"])

        def taken(by: str, batch: int) -> set[int]:
            """Partitions whose records of a batch a deployment's runs were asked for."""
            return {
                int(number)
                for run in runs()
                if run.tags["kpipe/instance"] == by
                for number, (first, _) in json.loads(run.tags["kpipe/ranges"])[source].items()
                if first == batch - 1
            }

        # Blue has all of it, for the sensor of green is off.
        hold.touch()
        send(1)
        dev.until(lambda: any(run.status is dg.DagsterRunStatus.STARTED for run in runs()))
        assert taken("blue", 1) == set(range(PARTITIONS))

        # Green's is turned on while blue's run is at work: what green is to have is given away behind that.
        dev.start_sensor("green")
        dev.until(lambda: re.search(r"blue \S+ Owners of \S+ draining \[", dev.log))
        assert committed() == [0] * PARTITIONS
        assert not re.search(r"green \S+ Owners of \S+ assigned \[", dev.log)
        hold.unlink()
        dev.until(lambda: committed() == [1] * PARTITIONS)
        dev.until(lambda: re.search(r"green \S+ Owners of \S+ assigned \[", dev.log), 60)
        drained = re.search(r"blue (\S+) Owners of \S+ drained \[.*\]: no work is in flight", dev.log)
        assert drained is not None, dev.log[-6_000:]
        [record] = instance.get_run_records()
        assert record.end_time is not None
        assert float(drained.group(1)) >= record.end_time

        # Each has its share.
        dev.until(lambda: len(group_members(clients, f"{group}.owners")) == 2)
        send(2)
        dev.until(lambda: committed() == [2] * PARTITIONS)
        assert len(taken("blue", 2)) == len(taken("green", 2)) == 2
        assert taken("blue", 2) | taken("green", 2) == set(range(PARTITIONS))
        dev.until(lambda: all(run.is_finished for run in runs()))

        # The one that dies is replaced.
        os.kill(blue, signal.SIGKILL)
        send(3)
        took_s = dev.until(lambda: taken("green", 3) == set(range(PARTITIONS)), SESSION_S + 30)
        with capsys.disabled():
            sys.stdout.write(f"\nfrom the kill to the last request of the one that took over: {took_s:.1f} s\n")
        dev.until(lambda: committed() == [3] * PARTITIONS)
        dev.until(lambda: all(run.is_finished for run in runs()))
        assert taken("blue", 3) == set()
        assert {run.status for run in runs()} == {dg.DagsterRunStatus.SUCCESS}

    found = consume(target)
    assert sorted(record.json()["id"] for record in found) == [
        batch * 10 + n for batch in (1, 2, 3) for n in range(PARTITIONS)
    ]
    wrote = {record.json()["id"]: dict(record.headers)["kpipe.instance"] for record in found}
    assert {wrote[10 + n] for n in range(PARTITIONS)} == {b"blue"}
    assert {wrote[30 + n] for n in range(PARTITIONS)} == {b"green"}

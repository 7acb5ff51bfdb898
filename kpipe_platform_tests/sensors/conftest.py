"""An offset sensor over a topic of a real broker, ticked by hand with a clock of its own."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from kpipe_platform import (
    JsonCodec,
    KafkaConnection,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    SparkEngine,
    TextCodec,
    kafka_asset,
    kafka_topic_asset,
    register_kafka_partitions,
)
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.sensors import kafka_offset_sensor
from kpipe_platform.sensors.tick.cursor import Cursor
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import Produce, TopicFactory

SCHEMA = "id BIGINT NOT NULL"
ASSET = dg.AssetKey("enriched")


def record(number: int, partition: int = 0) -> dict[str, Any]:
    return {"key": f"k{number}", "value": b'{"id": %d}' % number, "partition": partition}


@dataclass
class Sensing:
    """A topic, an asset over it, its sensor, and what the sensor leaves from tick to tick."""

    source: str
    target: str
    manager: KafkaIOManager
    instance: dg.DagsterInstance
    produce: Produce
    stage: Callable[..., Any]
    asset_options: dict[str, Any] = field(default_factory=dict)
    fixed: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    others: list[Any] = field(default_factory=list)
    now_s: float = field(default_factory=time.time)
    cursor: str | None = None

    def __post_init__(self) -> None:
        self.topic_asset = kafka_topic_asset(
            self.source, value_codec=JsonCodec(SCHEMA), key_codec=TextCodec(), partitions=self.fixed, name="orders"
        )
        self.asset = kafka_asset(
            source=self.topic_asset,
            topic=KafkaTopic(self.target, value_codec=JsonCodec()),
            name="enriched",
            **self.asset_options,
        )(self.stage)
        self.sensor = self.make_sensor(**self.options)

    def make_sensor(self, **options: Any) -> dg.SensorDefinition:
        return kafka_offset_sensor(self.asset, clock=lambda: self.now_s, **options)

    @property
    def group(self) -> str:
        return f"{self.manager.source.group_prefix}.enriched"

    @property
    def definitions(self) -> dg.Definitions:
        return dg.Definitions(
            assets=[self.topic_asset, self.asset, *self.others],
            sensors=[self.sensor],
            resources={"kafka_io_manager": self.manager},
        )

    def tick(self) -> SensorExecutionData:
        """A tick as the daemon makes it: partitions are registered, the cursor is kept."""
        with dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            cursor=self.cursor,
            definitions=self.definitions,
            resources={"kafka_io_manager": self.manager},
        ) as context:
            made = self.sensor.evaluate_tick(context)
        self.cursor = made.cursor
        for request in made.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return made

    def asked(self) -> list[str]:
        """Kafka partitions of each run that a tick asks for; the runs are not started."""
        return [request.tags["kpipe/partitions"] for request in self.tick().run_requests or []]

    def start(self, request: dg.RunRequest) -> bool:
        """Do what the daemon does with a request; tells whether the run succeeded."""
        tags = {**request.tags, "dagster/run_key": str(request.run_key)}
        return dg.materialize(
            [self.topic_asset, self.asset, *self.others],
            selection=[self.asset],
            resources={"kafka_io_manager": self.manager},
            partition_key=request.partition_key,
            instance=self.instance,
            tags=tags,
            raise_on_error=False,
        ).success

    def work(self) -> list[tuple[str, bool]]:
        """A tick whose runs are started: the partitions of each, and whether it succeeded."""
        requests = self.tick().run_requests or []
        return [(request.tags["kpipe/partitions"], self.start(request)) for request in requests]

    def after_last_run(self, seconds: float) -> None:
        """Set the clock to so long after the end of the last run, which ended at the real time."""
        [record] = self.instance.get_run_records(limit=1)
        self.now_s = (record.end_time or record.update_timestamp.timestamp()) + seconds

    def run_by_hand(self, partition: str | None = "0") -> bool:
        return self.start(dg.RunRequest(partition_key=partition))

    def queue(self, status: dg.DagsterRunStatus, **how: Any) -> str:
        """A run that is not finished, as the storage holds it."""
        if status is dg.DagsterRunStatus.QUEUED:
            repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("test"), "test")
            how["remote_job_origin"] = RemoteJobOrigin(repository, "test")
        run = self.instance.create_run_for_job(
            self.definitions.resolve_implicit_global_asset_job_def(), status=status, **how
        )
        return run.run_id

    def end(self, run_id: str, status: dg.DagsterEventType = dg.DagsterEventType.PIPELINE_FAILURE) -> None:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        self.instance.report_dagster_event(
            dg.DagsterEvent(status.value, run.job_name, message="ended by the test"), run_id
        )

    def send(self, *numbers: int, partition: int = 0, **how: Any) -> None:
        self.produce(self.source, [record(number, partition) for number in numbers], **how)

    def committed(self, partition: int = 0) -> int | None:
        found = self.manager.source.committed(self.group, self.source)[partition]
        return None if found is None else found.offset

    def set_offset(self, offset: int, partition: int = 0) -> None:
        """What `kafka-consumer-groups.sh --reset-offsets` does."""
        with Clients(self.manager.source.connection.settings) as clients:
            wanted = ConsumerGroupTopicPartitions(self.group, [TopicPartition(self.source, partition, offset)])
            clients.admin().alter_consumer_group_offsets([wanted])[self.group].result()

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """What retention does."""
        with Clients(self.manager.source.connection.settings) as clients:
            [deleted] = clients.admin().delete_records([TopicPartition(self.source, partition, offset)]).values()
            deleted.result(30)

    @property
    def remembered(self) -> Cursor:
        return Cursor.from_text(self.cursor)


@pytest.fixture(scope="session")
def engine(spark_remote: str | None) -> Iterator[str]:
    """Address of a Spark for runs in processes of their own, which they attach to instead of starting one each."""
    if spark_remote is not None:
        yield spark_remote
        return
    settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with ConnectServer(master="local[2]", settings=settings, warm=False) as server:
        yield server.remote
        assert server.is_running(), server.log_tail()


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a Dagster instance before its first run. Making its tables takes longer than most tests here."""
    home = tmp_path_factory.mktemp("dagster") / "home"
    home.mkdir()
    with dg.instance_for_test(temp_dir=str(home)) as made:
        # Each makes the tables of one of its storages.
        made.get_runs()
        made.get_dynamic_partitions("kafka.orders")
        made.all_instigator_state()
    return home


@pytest.fixture
def instance(empty_home: Path, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    # Not an ephemeral one: a sensor resolves dynamic partitions through a reference to its instance.
    home = shutil.copytree(empty_home, tmp_path / "dagster-home")
    with dg.instance_for_test(temp_dir=str(home)) as made:
        yield made


@pytest.fixture
def manager(kafka_broker: EmbeddedBroker) -> KafkaIOManager:
    """Starts no Spark by itself; the `spark` fixture's session is taken where a run needs one."""
    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    return KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix=f"test-{uuid.uuid4().hex[:12]}"),
        destination=KafkaDestination(connection=connection),
        spark=SparkEngine(),
    )


@pytest.fixture
def make_sensing(
    kafka_topic: TopicFactory, manager: KafkaIOManager, instance: dg.DagsterInstance, produce: Produce
) -> Callable[..., Sensing]:
    def make(partitions: int = 1, *, stage: Callable[..., Any] | None = None, **how: Any) -> Sensing:
        def keep(orders):  # type: ignore[no-untyped-def]
            return orders

        made = Sensing(
            kafka_topic("orders", partitions=partitions),
            kafka_topic("enriched"),
            how.pop("manager", manager),
            how.pop("instance", instance),
            produce,
            stage or keep,
            **how,
        )
        register_kafka_partitions(made.instance, made.source, range(partitions))
        return made

    return make

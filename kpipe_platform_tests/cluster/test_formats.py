"""Formats with a schema registry on executors that have only the archive, with and without packages of extras."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import types as T

from kpipe_platform import (
    AvroCodec,
    DebeziumCodec,
    JsonCodec,
    JsonSchemaCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    ProtobufCodec,
    SchemaRegistry,
    SparkEngine,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.codecs import Codec
from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.registry.client import registry_client
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.spark.connect.executor_archive import OPTIONAL_PACKAGES, write_archive
from kpipe_platform.spark.connect.executors import Executors
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform.testing.topics import create_topic

from .conftest import ENGINE
from .standalone import StandaloneCluster

pytestmark = [pytest.mark.cluster, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; }'
JSON_SCHEMA = (
    '{"title": "Order", "type": "object", "required": ["id"], "properties": {"id": {"type": "integer", "minimum": 0}}}'
)
# The extra that each codec needs.
FORMATS: dict[str, Codec] = {
    "avro": AvroCodec(schema=AVRO),
    "protobuf": ProtobufCodec(schema=PROTO, message="Order"),
    "jsonschema": JsonSchemaCodec(schema=JSON_SCHEMA),
}

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def poor_engine(idle_cluster: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Connect server whose executors have no extra."""
    folder = tmp_path_factory.mktemp("poor-engine")
    archive = folder / "no-extras.tar.gz"
    write_archive(archive, without=OPTIONAL_PACKAGES)
    with ConnectServer(folder, master=idle_cluster.master, executors=Executors(archive), settings=ENGINE) as server:
        yield server


@pytest.fixture
def run(broker: EmbeddedBroker, schema_registry: EmbeddedRegistry) -> Run:
    """Takes one slice of a topic into another one."""

    def materialize(remote: str, source: str, target: str, read: Codec, written: Codec) -> None:
        manager = KafkaIOManager(
            connection=KafkaConnection(
                bootstrap_servers=broker.bootstrap_servers, schema_registry=SchemaRegistry(url=schema_registry.url)
            ),
            source=KafkaSource(group_prefix=target),
            dead_letter=KafkaDeadLetterDestination(create_topic=True),
            spark=SparkEngine(remote=remote),
        )
        topic = kafka_topic_asset(source, value_codec=read, partitions=1, name="orders")

        @kafka_asset(source=topic, topic=KafkaTopic(target, value_codec=written), on_fault="dead_letter")
        def kept(orders: Any) -> Any:
            return orders

        with dg.DagsterInstance.ephemeral() as instance:
            dg.materialize(
                [topic, kept],
                selection=[kept],
                resources={"kafka_io_manager": manager},
                partition_key="0",
                instance=instance,
            )

    return materialize


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_there_and_back(name: str, run: Run, broker: EmbeddedBroker, engine: ConnectServer) -> None:
    servers, topics = broker.bootstrap_servers, [f"{name}-{step}" for step in ("json", "framed", "again")]
    for topic in topics:
        create_topic(servers, topic)
    produce(servers, topics[0], [b'{"id": 1}', b'{"id": 2}'])
    run(engine.remote, topics[0], topics[1], JsonCodec("id BIGINT NOT NULL"), FORMATS[name])
    produce(servers, topics[1], [b"no frame"])
    run(engine.remote, topics[1], topics[2], FORMATS[name], JsonCodec())
    assert [each.json() for each in consume(servers, topics[2])] == [{"id": 1}, {"id": 2}]
    assert len(consume(servers, f"{topics[1]}.dlq")) == 1


def test_change_events(run: Run, broker: EmbeddedBroker, engine: ConnectServer) -> None:
    for topic in ("changes", "changed"):
        create_topic(broker.bootstrap_servers, topic)
    produce(broker.bootstrap_servers, "changes", [b'{"op": "c", "before": null, "after": {"id": 1}}'])
    run(engine.remote, "changes", "changed", DebeziumCodec("id BIGINT"), JsonCodec())
    (found,) = consume(broker.bootstrap_servers, "changed")
    assert found.json()["after"] == {"id": 1}


@pytest.mark.parametrize("name", FORMATS)
def test_an_extra_that_executors_lack_is_named(
    name: str, run: Run, broker: EmbeddedBroker, schema_registry: EmbeddedRegistry, poor_engine: ConnectServer
) -> None:
    servers, codec = broker.bootstrap_servers, FORMATS[name]
    plain, framed, never = (f"{name}-{step}" for step in ("plain", "no-frame", "never"))
    for topic in (plain, framed, never):
        create_topic(servers, topic)
    produce(servers, plain, [b'{"id": 1}'])
    registry = registry_client(RegistrySettings(url=schema_registry.url))
    writer = codec.resolved_to_write(registry, framed, "value", T.StructType().add("id", T.LongType()))
    # Bytes after the value: finding that reason needs the package of each format.
    produce(servers, framed, [(writer.encode({"id": 1}) or b"") + b"\xff"])
    cases = [(framed, codec, JsonCodec()), (plain, JsonCodec("id BIGINT"), codec)]
    # Spark writes Avro by itself.
    for source, read, written in cases[: 1 if name == "avro" else 2]:
        with pytest.raises(EnvironmentSetupError, match=rf"kpipe-platform\[{name}\]") as caught:
            run(poor_engine.remote, source, never, read, written)
        assert "kpipe spark pack" in str(caught.value)
        assert consume(servers, never) == []

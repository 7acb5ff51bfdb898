"""What Java's serializers write is read, and what is written is read by Java's deserializers.

Confluent's serializers are not on Maven Central. Apicurio's have a mode for Confluent's wire format, except that their
one for Protobuf writes no message path: see `JavaSerializers.java`.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import (
    AvroCodec,
    JsonSchemaCodec,
    KafkaIOManager,
    KafkaTopic,
    ProtobufCodec,
    SchemaRegistry,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.codecs import Codec
from kpipe_platform.codecs.protobuf.compiler import compiled
from kpipe_platform.jvm.jars import class_path, fetch_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.registry.model import Schema
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import TopicFactory
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.codecs.managers import with_registry
from kpipe_platform_tests.metadata import plain_metadata

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

_JARS = [
    f"io.apicurio:apicurio-registry-serdes-{name}-serde:2.6.13.Final" for name in ("avro", "protobuf", "jsonschema")
]
Java = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def java(kafka_broker: EmbeddedBroker, schema_registry: EmbeddedRegistry) -> Iterator[Java]:
    """Send a command to the Java program, and return its answer."""
    url = schema_registry.url.replace("/apis/ccompat/v7", "/apis/registry/v2")
    program = Path(__file__).with_name("JavaSerializers.java")
    command = [
        *(str(find_java().path), "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path(fetch_jars(*_JARS))),
        *(str(program), kafka_broker.bootstrap_servers, url),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:

        def send(**what: Any) -> list[Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
            answer: list[Any] = json.loads(process.stdout.readline() or '["the Java program ended"]')
            return answer

        yield send


@pytest.fixture
def manager(kafka_io_manager: KafkaIOManager, schema_registry: EmbeddedRegistry) -> KafkaIOManager:
    return with_registry(kafka_io_manager, SchemaRegistry(url=schema_registry.url))


def copy(manager: KafkaIOManager, source: str, target: str, read: Codec, written: Codec) -> None:
    """Read all records of a topic, and write them to another."""
    topic = kafka_topic_asset(source, value_codec=read, partitions=1, name="orders")

    @kafka_asset(source=topic, topic=KafkaTopic(target, value_codec=written), on_fault="dead_letter")
    def copied(orders: DataFrame) -> DataFrame:
        return orders

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [topic, copied],
            selection=[copied],
            resources={"kafka_io_manager": manager},
            partition_key="0",
            instance=instance,
        )
    (event,) = result.get_asset_materialization_events()
    found = plain_metadata(event.materialization.metadata)
    assert (found["records_written"], found["dead_letters"]) == (found["records_read"], 0)


def test_avro(java: Java, manager: KafkaIOManager, kafka_topic: TopicFactory) -> None:
    source, target = kafka_topic("java"), kafka_topic("kpipe")
    schema = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
        ],
    }
    # In Avro's JSON, bytes are characters, and the value of a union has its type.
    records = [
        {"id": 1, "note": {"string": "é"}, "price": "\x04\xe2", "state": "PAID", "counts": {"a": 1}},
        {"id": -(2**63), "note": None, "price": "\xff", "state": "NEW", "counts": {}},
    ]
    java(format="avro", topic=source, schema=schema, records=records)
    written = java(format="avro", topic=source)
    copy(manager, source, target, AvroCodec(), AvroCodec(schema=json.dumps(schema)))
    assert java(format="avro", topic=target) == written
    assert [(each["id"], each["note"]) for each in written] == [(1, "é"), (-(2**63), None)]


def test_json_schema(java: Java, manager: KafkaIOManager, kafka_topic: TopicFactory) -> None:
    source, target = kafka_topic("java"), kafka_topic("kpipe")
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "note": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        },
        "required": ["id"],
    }
    client = manager.source.connection_settings.registry()
    assert client is not None
    client.register(f"{source}-value", Schema(json.dumps(schema), "JSON"))
    records = [{"id": 1, "note": "é", "lines": [{"sku": "a"}, {}]}, {"id": 2**53}]
    java(format="json", topic=source, records=records)
    copy(manager, source, target, JsonSchemaCodec(), JsonSchemaCodec(schema=schema))
    assert java(format="json", topic=target) == records


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message First { int32 x = 1; }
message Outer {
  map<string, int32> counts = 1;
  message Other { int32 x = 1; }
  message Inner {
    string text = 1;
    map<string, int64> counts = 2;
    oneof amount { uint64 units = 3; double money = 4; }
    google.protobuf.Timestamp at = 5;
    optional int32 maybe = 6;
    enum State { NEW = 0; PAID = 1; }
    State state = 7;
  }
}
"""
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "shop.First": [{"x": 5}, {}],
    "shop.Outer": [{"counts": {"a": 1}}],
    "shop.Outer.Inner": [
        {"text": "é", "counts": {"a": "1"}, "units": str(2**64 - 1), "at": "1969-12-31T23:59:59.500Z", "maybe": 0},
        {"money": 0.0, "state": "PAID"},
    ],
}


@pytest.mark.parametrize("message", MESSAGES)
def test_protobuf(java: Java, manager: KafkaIOManager, kafka_topic: TopicFactory, tmp_path: Path, message: str) -> None:
    source, target = kafka_topic("java"), kafka_topic("kpipe")
    file = tmp_path / "written.desc"
    file.write_bytes(base64.b64decode(compiled(Schema(PROTO, "PROTOBUF"))))
    java(format="protobuf", topic=source, file=str(file), message=message, records=MESSAGES[message])
    copy(manager, source, target, ProtobufCodec(message=message), ProtobufCodec(schema=PROTO, message=message))
    client = manager.source.connection_settings.registry()
    assert client is not None
    file.write_bytes(base64.b64decode(compiled(client.latest(f"{target}-value"))))
    assert java(format="protobuf", topic=target, file=str(file), message=message) == MESSAGES[message]

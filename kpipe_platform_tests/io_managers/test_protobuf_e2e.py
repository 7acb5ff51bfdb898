"""Protobuf from topic to topic, with a schema registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    KafkaConnection,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    KafkaTopics,
    ProtobufCodec,
    SchemaRegistry,
    kafka_topic_asset,
)
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.errors import ConfigError, RegistryUnavailableError
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.wire import frame
from kpipe_platform.testing.plugin import TopicFactory
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.codecs.protobuf.schemas import BROAD

from .conftest import Orders

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

NEWER = BROAD.replace("double d = 1;", "double d = 1; string added = 90;")
BROAD_CODEC = ProtobufCodec(schema=BROAD, message="broad.All")
VALUES: list[dict[str, Any]] = [
    {"i32": 1, "u64": 2**64 - 1, "u32": 2**32 - 1, "c": "BLUE", "m": {"name": "é", "xs": [1, 2]}, "os": "", "ox": 0},
    {"i32": 2, "msi": {"a": 1}, "mim": {7: {"n": 1}}, "rm": [{"name": "x"}, {}], "by": b"\x00\xff", "ws": ""},
]


def with_registry(orders: Orders, registry: EmbeddedRegistry, codec: ProtobufCodec) -> KafkaIOManager:
    """An IO manager whose connection has a registry. The source has Protobuf values."""
    connection = KafkaConnection(
        bootstrap_servers=orders.manager.source.connection.bootstrap_servers,
        schema_registry=SchemaRegistry(url=registry.url, timeout_s=0),
    )
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=codec, partitions=1, name="orders")
    orders.manager = KafkaIOManager(
        connection=connection,
        source=KafkaSource(group_prefix=orders.manager.source.group_prefix),
        destination=KafkaDestination(),
        dead_letter=orders.manager.dead_letter.model_copy(update={"connection": None}),
        spark=orders.manager.spark,
    )
    return orders.manager


def writer(orders: Orders, text: str = BROAD) -> Any:
    client: RegistryClient = orders.manager.connection.schema_registry.client()
    codec = ProtobufCodec(schema=text, message="broad.All")
    return codec.resolved_to_write(client, orders.source, "value", None)


def test_messages_of_several_schemas_pass_unchanged(orders: Orders, schema_registry: EmbeddedRegistry) -> None:
    with_registry(orders, schema_registry, BROAD_CODEC)
    old, new = writer(orders), writer(orders, NEWER)
    good = [old.encode(VALUES[0]), new.encode({**VALUES[1], "added": "x"})]
    bad = {
        frame(1_000_000, b"\x00"): "unknown_schema_id",
        b"\x07garbage": "wrong_magic_byte",
        b"\x00\x00": "truncated_frame",
        good[0][:6]: "bad_message_indexes",
        good[0][:7] + b"\x72\x02\xff\xfe": "not_protobuf",
        good[0][:5] + b"\x00": "wrong_message_type",
    }
    records = [{"key": f"{i}", "value": each} for i, each in enumerate([*good, *bad])]
    orders.send(*records, {"key": "tombstone", "value": None})

    def stage(orders: DataFrame) -> DataFrame:
        return orders

    found = orders.metadata(
        orders.run(
            orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=BROAD_CODEC)), manager=orders.manager
        )
    )
    assert (found["records_written"], found["dead_letters"]) == (3, len(bad))
    assert {e.original.value: e.fault.kind for e in map(decoded, orders.letters())} == bad
    client = orders.manager.connection.schema_registry.client()
    reader = BROAD_CODEC.resolved(client, orders.target, "value")
    written = [reader.decode(each.value) for each in orders.outputs()]
    assert [written[0], written[1]] == [reader_of(old, each) for each in (VALUES[0], VALUES[1])]
    assert written[2] is None


def decoded(letter: Any) -> Any:
    return decode_envelope(letter.value or b"")


def reader_of(codec: Any, value: dict[str, Any]) -> Any:
    """The value with all fields."""
    return codec.read_payload(codec.encode(value)[len(codec.prefix) :])


def test_an_id_that_is_registered_after_the_slice_was_planned_is_found(
    orders: Orders, schema_registry: EmbeddedRegistry
) -> None:
    with_registry(orders, schema_registry, BROAD_CODEC)
    writer(orders)
    client = orders.manager.connection.schema_registry.client()
    elsewhere = ProtobufCodec(schema=NEWER, message="broad.All").resolved_to_write(client, "another", "value", None)
    orders.send({"value": elsewhere.encode({"i32": 5})})

    def stage(orders: DataFrame) -> DataFrame:
        return orders.select("i32", "_kafka")

    found = orders.metadata(orders.run(orders.asset(stage), manager=orders.manager))
    assert (found["records_written"], found["dead_letters"]) == (1, 0)


def test_columns_are_checked_before_any_work(orders: Orders, schema_registry: EmbeddedRegistry) -> None:
    with_registry(orders, schema_registry, BROAD_CODEC)
    orders.send({"value": writer(orders).encode({"i32": 5})})

    def stage(orders: DataFrame) -> DataFrame:
        return orders.select("i32", "_kafka")

    topic = KafkaTopic(orders.target, value_codec=BROAD_CODEC)
    with pytest.raises(ConfigError, match="'u64' is declared but not returned"):
        orders.run(orders.asset(stage, topic=topic), manager=orders.manager)


def test_without_a_registry_no_record_is_lost(
    make_orders: Callable[..., Orders], schema_registry: EmbeddedRegistry
) -> None:
    orders = make_orders()
    with_registry(orders, schema_registry, BROAD_CODEC)
    orders.send({"value": writer(orders).encode({"i32": 5})})

    def stage(orders: DataFrame) -> DataFrame:
        return orders.select("i32", "_kafka")

    with schema_registry.outage(), pytest.raises(RegistryUnavailableError):
        orders.run(orders.asset(stage), manager=orders.manager)
    assert orders.letters() == []
    found = orders.metadata(orders.run(orders.asset(stage), manager=orders.manager))
    assert (found["records_written"], found["dead_letters"]) == (1, 0)


PAYMENT = """
syntax = "proto3";
package pay;
import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto";
message Unused { int32 x = 1; }
message Payment {
  map<string, int32> counts = 1;
  message Key { uint64 id = 1; }
  message Value {
    oneof how { google.protobuf.Empty cash = 1; string card = 2; }
    google.protobuf.FieldMask changed = 3;
    string to = 4;
  }
}
"""


def test_nested_message_types_as_keys_and_values_of_several_topics(
    orders: Orders, schema_registry: EmbeddedRegistry, kafka_topic: TopicFactory
) -> None:
    keys = ProtobufCodec(schema=PAYMENT, message="pay.Payment.Key")
    values = ProtobufCodec(schema=PAYMENT, message="pay.Payment.Value")
    with_registry(orders, schema_registry, values)
    orders.topic_asset = kafka_topic_asset(
        orders.source, value_codec=values, key_codec=keys, partitions=1, name="orders"
    )
    client = orders.manager.connection.schema_registry.client()
    key = keys.resolved_to_write(client, orders.source, "key", None)
    value = values.resolved_to_write(client, orders.source, "value", None)
    sent = [
        ({"id": 2**64 - 1}, {"cash": {}, "card": None, "changed": {"paths": ["a.b"]}, "to": "eu"}),
        ({"id": 0}, {"cash": None, "card": "1234", "changed": None, "to": "us"}),
        ({"id": 7}, {"cash": None, "card": None, "changed": {"paths": []}, "to": "eu"}),
    ]
    orders.send(*({"key": key.encode(one), "value": value.encode(other)} for one, other in sent))
    orders.send({"key": b"\x00\x00", "value": value.encode(sent[0][1])})

    def stage(orders: DataFrame) -> DataFrame:
        return orders.withColumn("topic", F.col("to")).withColumn("who", F.col("_kafka.key"))

    targets = {name: kafka_topic(name) for name in ("eu", "us")}
    topics = {
        name: KafkaTopic(target, key_column="who", key_codec=keys, value_codec=values)
        for name, target in targets.items()
    }
    asset = orders.asset(stage, topic=KafkaTopics(by="topic", topics=topics))
    found = orders.metadata(orders.run(asset, manager=orders.manager))
    assert (found["records_written"], found["dead_letters"]) == (3, 1)
    for name, target in targets.items():
        written = [
            (
                keys.resolved(client, target, "key").decode(each.key),
                values.resolved(client, target, "value").decode(each.value),
            )
            for each in orders.consume(target)
        ]
        assert written == [each for each in sent if each[1]["to"] == name]

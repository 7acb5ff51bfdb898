"""Topics with JSON Schema and the real registry, shared with confluent-kafka's serializers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference as ConfluentReference
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame

from kpipe_platform import (
    JsonSchemaCodec,
    KafkaIOManager,
    KafkaTopic,
    SchemaRegistry,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.codecs import Codec
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.codecs.managers import with_registry
from kpipe_platform_tests.metadata import plain_metadata

pytestmark = [pytest.mark.broker, pytest.mark.spark]

V1 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "additionalProperties": False,
    "properties": {"id": {"type": "integer"}, "note": {"type": "string", "maxLength": 3}},
    "required": ["id"],
}
V2 = {**V1, "properties": {**V1["properties"], "state": {"enum": ["new", "paid"]}}}  # type: ignore[dict-item]


@dataclass
class Shop:
    topic: str
    target: str
    manager: KafkaIOManager
    client: SchemaRegistryClient
    produce: Produce
    consume: Consume

    def serialized(self, schema: Any, value: Any, topic: str | None = None) -> bytes:
        """Encode as confluent-kafka does, which registers the schema."""
        text = schema if isinstance(schema, ConfluentSchema) else json.dumps(schema)
        serializer = JSONSerializer(text, self.client, conf={"validate": False})
        data = serializer(value, SerializationContext(topic or self.topic, MessageField.VALUE))
        assert data is not None
        return data

    def deserialized(self, data: bytes | None) -> Any:
        read = JSONDeserializer(None, schema_registry_client=self.client)
        return None if data is None else read(data, SerializationContext(self.target, MessageField.VALUE))

    def run(self, codec: Codec, written: Codec) -> dict[str, Any]:
        source = kafka_topic_asset(self.topic, value_codec=codec, partitions=1, name="orders")

        @kafka_asset(source=source, topic=KafkaTopic(self.target, value_codec=written), on_fault="dead_letter")
        def enriched(orders: DataFrame) -> DataFrame:
            return orders

        with dg.DagsterInstance.ephemeral() as instance:
            result = dg.materialize(
                [source, enriched],
                selection=[enriched],
                resources={"kafka_io_manager": self.manager},
                partition_key="0",
                instance=instance,
            )
        (event,) = result.get_asset_materialization_events()
        return plain_metadata(event.materialization.metadata)


@pytest.fixture
def shop(
    kafka_topic: TopicFactory,
    kafka_io_manager: KafkaIOManager,
    schema_registry: EmbeddedRegistry,
    produce: Produce,
    consume: Consume,
) -> Shop:
    manager = with_registry(kafka_io_manager, SchemaRegistry(url=schema_registry.url, timeout_s=1))
    client = SchemaRegistryClient({"url": schema_registry.url})
    return Shop(kafka_topic("orders"), kafka_topic("enriched"), manager, client, produce, consume)


def test_records_of_two_schemas_and_their_faults(shop: Shop) -> None:
    first = shop.serialized(V1, {"id": 1, "note": "abc"})
    second = shop.serialized(V2, {"id": 2, "state": "paid"})
    bad = [
        shop.serialized(V1, {"id": 3, "state": "paid"}),
        shop.serialized(V2, {"id": 4, "state": "lost"}),
        b"\x00\x7f\xff\xff\xff{}",
        b'{"id": 1}',
        first[:-1],
    ]
    shop.produce(shop.topic, [{"value": value} for value in (first, None, *bad, second)])
    found = shop.run(JsonSchemaCodec(), JsonSchemaCodec())
    assert (found["records_written"], found["dead_letters"]) == (3, len(bad))
    values = [shop.deserialized(record.value) for record in shop.consume(shop.target)]
    assert values == [{"id": 1, "note": "abc"}, None, {"id": 2, "state": "paid"}]
    faults = [decode_envelope(record.value or b"") for record in shop.consume(f"{shop.topic}.dlq")]
    assert [(each.original.value, each.fault.kind) for each in faults] == list(
        zip(
            bad,
            ["schema_violation", "schema_violation", "unknown_schema_id", "wrong_magic_byte", "not_json"],
            strict=True,
        )
    )
    assert faults[1].fault.message == 'field "state": "lost" is not one of "new" or "paid"'
    made = shop.client.get_latest_version(f"{shop.target}-value").schema
    assert made.schema_type == "JSON"
    assert json.loads(made.schema_str or "")["properties"] == {
        "id": {"type": ["null", "integer"]},
        "note": {"type": ["null", "string"]},
        "state": {"type": ["null", "string"]},
    }


def test_references_in_the_registry(shop: Shop) -> None:
    place = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    subject = f"{shop.topic}-place"
    shop.client.register_schema(subject, ConfluentSchema(json.dumps(place), "JSON"))
    order = {"type": "object", "properties": {"place": {"$ref": "place.json"}}}
    reference = ConfluentReference("place.json", subject, 1)
    schema_id = shop.client.register_schema(
        f"{shop.topic}-value", ConfluentSchema(json.dumps(order), "JSON", [reference])
    )
    frame = b"\x00" + schema_id.to_bytes(4, "big")
    shop.produce(shop.topic, [{"value": frame + b'{"place":{"x":1}}'}, {"value": frame + b'{"place":{}}'}])
    found = shop.run(JsonSchemaCodec(), JsonSchemaCodec())
    assert (found["records_written"], found["dead_letters"]) == (1, 1)
    assert [shop.deserialized(record.value) for record in shop.consume(shop.target)] == [{"place": {"x": 1.0}}]

"""Avro topics with the real registry: whole runs over broker, registry and Spark."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    AvroCodec,
    KafkaIOManager,
    KafkaTopic,
    SchemaRegistry,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.dead_letters import decode_envelope
from kpipe_platform.dead_letters.envelope.model import Envelope
from kpipe_platform.errors import ConfigError, IncompatibleSchemaError, RegistryUnavailableError, SchemaNotFoundError
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.testing.messages import ConsumedRecord
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry
from kpipe_platform_tests.codecs.managers import with_registry
from kpipe_platform_tests.docs.pages import ROOT
from kpipe_platform_tests.metadata import plain_metadata

pytestmark = [pytest.mark.broker, pytest.mark.spark]

V1 = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "old", "type": "string", "default": ""},
    ],
}
V2 = {
    **V1,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "remark", "type": ["null", "string"], "default": None, "aliases": ["note"]},
        *V1["fields"][2:4],
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "default": "NEW"},
    ],
}
AT = dt.datetime(1969, 12, 31, 23, 59, 59, 5000, tzinfo=dt.timezone.utc)


@dataclass
class Shop:
    """A topic with Avro values, an asset over it, and clients of the registry as others use it."""

    topic: str
    target: str
    manager: KafkaIOManager
    client: SchemaRegistryClient
    produce: Produce
    consume: Consume
    instance: dg.DagsterInstance
    codec: AvroCodec = field(default_factory=AvroCodec)

    def serialized(self, schema: Any, value: Any, *, part: str = MessageField.VALUE, topic: str | None = None) -> bytes:
        """Encode as confluent-kafka does, which registers the schema."""
        serializer = AvroSerializer(self.client, json.dumps(schema))
        data = serializer(value, SerializationContext(topic or self.topic, part))
        assert data is not None
        return data

    def deserialized(self, data: bytes, *, part: str = MessageField.VALUE) -> Any:
        return AvroDeserializer(self.client)(data, SerializationContext(self.target, part))

    def order(self, number: int, **changes: Any) -> bytes:
        value = {"id": number, "note": f"n{number}", "price": Decimal("12.50"), "at": AT, "old": "x", **changes}
        return self.serialized(V1, value)

    def order_2(self, number: int, **changes: Any) -> bytes:
        value = {"id": number, "remark": None, "price": Decimal("-0.01"), "at": AT, "state": "PAID", **changes}
        return self.serialized(V2, value)

    def send(self, *values: bytes | None) -> None:
        self.produce(self.topic, [{"key": str(n), "value": value} for n, value in enumerate(values)])

    def run(self, stage: Callable[..., Any] | None = None, **how: Any) -> dict[str, Any]:
        def keep(orders):  # type: ignore[no-untyped-def]
            return orders

        source = kafka_topic_asset(self.topic, value_codec=self.codec, partitions=1, name="orders")
        how.setdefault("topic", KafkaTopic(self.target, value_codec=AvroCodec()))
        asset = kafka_asset(source=source, name="enriched", on_fault="dead_letter", **how)(stage or keep)
        result = dg.materialize(
            [source, asset],
            selection=[asset],
            resources={"kafka_io_manager": self.manager},
            partition_key="0",
            instance=self.instance,
        )
        (event,) = result.get_asset_materialization_events()
        return plain_metadata(event.materialization.metadata)

    def outputs(self) -> list[ConsumedRecord]:
        return self.consume(self.target)

    def dead_letters(self) -> list[Envelope]:
        return [decode_envelope(record.value or b"") for record in self.consume(f"{self.topic}.dlq")]

    def committed(self) -> int | None:
        found = self.manager.source.committed(f"{self.manager.source.group_prefix}.enriched", self.topic)[0]
        return None if found is None else found.offset


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def shop(
    kafka_topic: TopicFactory,
    kafka_io_manager: KafkaIOManager,
    schema_registry: EmbeddedRegistry,
    produce: Produce,
    consume: Consume,
    instance: dg.DagsterInstance,
) -> Shop:
    manager = with_registry(kafka_io_manager, SchemaRegistry(url=schema_registry.url, timeout_s=1))
    client = SchemaRegistryClient({"url": schema_registry.url})
    return Shop(kafka_topic("orders"), kafka_topic("enriched"), manager, client, produce, consume, instance)


def test_two_schemas_in_a_slice_become_the_latest(shop: Shop) -> None:
    shop.send(shop.order(1), None, shop.order_2(2), shop.order(3))
    found = shop.run()
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (4, 4, 0)
    values = [record.value and shop.deserialized(record.value) for record in shop.outputs()]
    rest = {"price": Decimal("12.50"), "at": AT, "state": "NEW"}
    assert values == [
        {"id": 1, "remark": "n1", **rest},
        None,
        {"id": 2, "remark": None, "price": Decimal("-0.01"), "at": AT, "state": "PAID"},
        {"id": 3, "remark": "n3", **rest},
    ]
    # The stage's columns are a schema of their own, in the subject of the target.
    assert shop.client.get_latest_version(f"{shop.target}-value").schema.schema_type == "AVRO"


def test_faults_of_single_records(shop: Shop) -> None:
    good = shop.order(1)
    unknown = b"\x00\x7f\xff\xff\xff" + good[5:]
    bad = [
        unknown,
        b"\x05" + good[1:],
        b"\x00\x00",
        b"",
        good[:-1],
        good + b"x",
        good[:6] + b"\x02\x04\xff\xff" + good[6:],
    ]
    shop.send(good, *bad, shop.order(2))
    found = shop.run()
    assert (found["records_written"], found["dead_letters"]) == (2, len(bad))
    dead_letters = shop.dead_letters()
    assert [each.original.value for each in dead_letters] == bad
    assert [each.fault.kind for each in dead_letters] == [
        "unknown_schema_id",
        "wrong_magic_byte",
        "truncated_frame",
        "truncated_frame",
        "truncated",
        "trailing_bytes",
        "not_utf8",
    ]
    assert shop.committed() == 9


def test_a_schema_registered_after_the_plan(shop: Shop) -> None:
    """The id is not among those of the subject, because another subject has it. The slice is read again."""
    value = {"id": 2, "note": "r", "price": Decimal(1), "at": AT, "old": ""}
    shop.send(shop.order_2(1), shop.serialized(V1, value, topic="another-topic"))
    shop.codec = AvroCodec(V2)
    found = shop.run()
    assert (found["records_written"], found["dead_letters"]) == (2, 0)
    assert [shop.deserialized(record.value or b"")["id"] for record in shop.outputs()] == [1, 2]


def test_a_registry_that_stops_during_a_run(shop: Shop, schema_registry: EmbeddedRegistry) -> None:
    """The run fails before anything is written; the next run processes the records."""
    other = shop.serialized(
        V2, {"id": 2, "remark": "r", "price": Decimal(1), "at": AT, "state": "NEW"}, topic="other-2"
    )
    shop.send(shop.order(1), other)
    shop.run(lambda orders: orders.where("false"))  # makes the topics and the group
    committed = shop.committed()
    outage = schema_registry.outage()
    stopped = threading.Event()

    def stage(orders: DataFrame) -> DataFrame:
        if not stopped.is_set():
            stopped.set()
            outage.__enter__()
        return orders

    unknown = b"\x00\x00\x00\xff\xff" + shop.order(3)[5:]
    shop.send(unknown)
    try:
        with pytest.raises(RegistryUnavailableError):
            shop.run(stage)
    finally:
        outage.__exit__(None, None, None)
    assert shop.committed() == committed
    assert shop.outputs() == []
    assert shop.run()["dead_letters"] == 1


def test_keys_and_values_for_others(shop: Shop) -> None:
    """A key of one type and a made schema: confluent-kafka and Spark read both."""
    shop.send(shop.order(1))

    def stage(orders: DataFrame) -> DataFrame:
        return orders.select(
            (F.col("id") + 2**40).cast("bigint").alias("id"),
            F.array(F.lit("a"), F.lit(None)).alias("tags"),
            F.create_map(F.lit("k"), F.struct(F.lit(1.5).alias("x"))).alias("m"),
            F.col("price"),
            F.lit(None).cast("date").alias("day"),
            F.col("at"),
        )

    topic = KafkaTopic(shop.target, key_column="id", key_codec=AvroCodec(), value_codec=AvroCodec())
    shop.run(stage, topic=topic)
    (record,) = shop.outputs()
    key = record.key.encode() if isinstance(record.key, str) else record.key
    assert shop.deserialized(key or b"", part=MessageField.KEY) == 2**40 + 1
    value = {
        "id": 2**40 + 1,
        "tags": ["a", None],
        "m": {"k": {"x": 1.5}},
        "price": Decimal("12.50"),
        "day": None,
        "at": AT,
    }
    assert shop.deserialized(record.value or b"") == value


def test_an_incompatible_schema_fails_before_the_run_writes(shop: Shop) -> None:
    subject = f"{shop.target}-value"
    shop.client.register_schema(subject, ConfluentSchema(json.dumps(V1), "AVRO"))
    shop.client.set_compatibility(subject, "FULL")
    shop.send(shop.order(1))
    fields = [{"name": "id", "type": "string"}, *V1["fields"][1:]]
    with pytest.raises(IncompatibleSchemaError, match=subject):
        shop.run(topic=KafkaTopic(shop.target, value_codec=AvroCodec({**V1, "fields": fields})))
    assert shop.committed() is None
    assert shop.outputs() == []


def test_the_example_of_the_readme_with_avro(shop: Shop) -> None:
    """One line changes, besides the import."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    json_codec = 'JsonCodec("id STRING NOT NULL, quantity INT, price DOUBLE")'
    assert example.count(json_codec) == 1
    example = example.replace(json_codec, "AvroCodec()").replace("JsonCodec", "AvroCodec")
    example = example.replace('"orders", ', f'"{shop.topic}", name="orders", ')
    example = example.replace('"orders.priced"', f'"{shop.target}"')
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(example, "README.md", "exec"), namespace)
    fields = [{"name": n, "type": t} for n, t in (("id", "string"), ("quantity", "int"), ("price", "double"))]
    order = shop.serialized(
        {"type": "record", "name": "Order", "fields": fields}, {"id": "a", "quantity": 2, "price": 1.5}
    )
    shop.send(order, b"not Avro")
    dg.materialize(
        [namespace["orders"], namespace["orders_priced"]],
        selection=[namespace["orders_priced"]],
        resources={"kafka_io_manager": shop.manager},
        partition_key="0",
        instance=shop.instance,
    )
    assert [record.json() for record in shop.outputs()] == [{"id": "a", "quantity": 2, "price": 1.5, "total": 3.0}]
    assert [each.fault.kind for each in shop.dead_letters()] == ["wrong_magic_byte"]


@pytest.mark.slow
def test_a_schema_of_10_mb_with_a_thousand_fields(shop: Shop) -> None:
    """A chain of a thousand conditions would overflow the stack of Spark's analyzer."""
    names = [f"f{number}" for number in range(1000)]
    fields = [{"name": each, "type": ["null", "string"], "default": None, "doc": "d" * 10_000} for each in names]
    schema = {"type": "record", "name": "Wide", "fields": fields}
    value = dict.fromkeys(names, "x")
    shop.send(shop.serialized(schema, value), shop.serialized(schema, value) + b"x", None)
    found = shop.run()
    assert (found["records_written"], found["dead_letters"]) == (2, 1)
    assert [record.value and shop.deserialized(record.value) for record in shop.outputs()] == [value, None]


def test_what_to_do_without_a_schema(shop: Shop) -> None:
    """Errors say it: records are encoded one by one, a subject does not exist, and a schema is only looked up."""
    shop.send(b"\x00\x00\x00\x00\x01x")
    with pytest.raises(SchemaNotFoundError, match=r"(?s)no subject orders-.*AvroCodec\(schema=...\)"):
        shop.run()
    shop.codec = AvroCodec(V1)

    def records(orders: list[KafkaRecord]) -> list[KafkaRecord]:
        return [KafkaRecord(key=b"k", value={"id": 1})]

    with pytest.raises(ConfigError, match=r"(?s)list\[KafkaRecord\].*AvroCodec\(schema=...\), or return a DataFrame"):
        shop.run(records)
    with pytest.raises(SchemaNotFoundError, match=f"(?s)subject '{shop.target}-value'.*register=True"):
        shop.run(topic=KafkaTopic(shop.target, value_codec=AvroCodec(V1, register=False)))
    assert shop.committed() is None

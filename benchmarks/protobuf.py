"""The orders as Protobuf with the framing of a schema registry, and the work of ``json_1p`` on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import kpipe_platform as kp
from benchmarks.checks import enriched_problems
from benchmarks.kafka_loop import to_dead_letters
from benchmarks.measure import Problems
from benchmarks.orders import TAX, VALUE_BYTES, Orders
from benchmarks.topics import Sources
from benchmarks.work import Work
from kpipe_platform.codecs import Codec
from kpipe_platform.codecs.protobuf.compiler import compiled
from kpipe_platform.codecs.protobuf.descriptors import message_type
from kpipe_platform.registry.model import Schema
from kpipe_platform.registry.wire import frame
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

ORDER = """syntax = "proto3";
message Order {
  int64 order_id = 1; string customer = 2; double amount = 3; string country = 4; string note = 5; int64 ts = 6;
}
"""
ENRICHED = """syntax = "proto3";
message Enriched { int64 order_id = 1; string customer = 2; string country = 3; double gross = 4; }
"""
_NOTE_CHARS = 60
_FIRST_TS = 1_767_225_600_000
# Path of the first message type of a file.
_FIRST = b"\x00"


@cache
def message_class(text: str) -> Any:
    """Return the class of the only message type of a schema."""
    return GetMessageClass(message_type(compiled(Schema(text, "PROTOBUF")), None))


@dataclass(frozen=True)
class ProtobufOrders(Orders):
    """Orders as Protobuf; one in a thousand is not.

    Args:
        schema_id: Id of `ORDER` in the registry.
    """

    schema_id: int = 0

    def value(self, number: int) -> bytes:
        """Value of one record, about 110 bytes."""
        if self.is_bad(number):
            return f"order {number} is no Protobuf".ljust(VALUE_BYTES, ".").encode()
        order = message_class(ORDER)(
            order_id=number,
            customer=self.customer(number),
            amount=self.amount(number),
            country=self.country(number),
            note="x" * _NOTE_CHARS,
            ts=_FIRST_TS + number,
        )
        return frame(self.schema_id, _FIRST + order.SerializeToString())


@dataclass(frozen=True)
class ProtobufEnrich(Work):
    """Decode Protobuf, compute a column, encode Protobuf.

    Args:
        registry: Address of the schema registry.
        enriched_id: Id of `ENRICHED` in it.
    """

    orders: ProtobufOrders
    registry: str = ""
    enriched_id: int = 0

    @property
    def codec(self) -> Codec:
        return kp.ProtobufCodec(schema=ORDER)

    @property
    def connection(self) -> kp.KafkaConnection:
        registry = kp.SchemaRegistry(url=self.registry)
        return kp.KafkaConnection(bootstrap_servers=self.bootstrap_servers, schema_registry=registry)

    def target(self, out: str) -> kp.KafkaTopic:
        return kp.KafkaTopic(out, key_column="customer", value_codec=kp.ProtobufCodec(schema=ENRICHED))

    def stage(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn("gross", F.col("amount") * TAX).select("order_id", "customer", "country", "gross")

    def by_hand(self, rows: DataFrame) -> DataFrame:
        msg = "Spark has no Protobuf of its own here"
        raise NotImplementedError(msg)

    def loop(self) -> LoopRecord:
        """What a confluent-kafka loop does with a record."""
        return LoopRecord(self)

    @property
    def bad(self) -> int:
        return self.orders.bad

    def output_problems(self, out: str) -> Problems:
        def parse(data: bytes) -> Any:
            found = message_class(ENRICHED).FromString(data[6:])
            return {field.name: getattr(found, field.name) for field in found.DESCRIPTOR.fields}

        return enriched_problems(self.bootstrap_servers, out, self.orders, self.partitions, parse=parse)


class LoopRecord:
    """Enriches a record with confluent-kafka's deserializer, and writes it."""

    def __init__(self, work: ProtobufEnrich) -> None:
        self._deserialize = ProtobufDeserializer(message_class(ORDER), {"use.deprecated.format": False})
        self._context = SerializationContext(work.source, MessageField.VALUE)
        self._enriched, self._head = message_class(ENRICHED), frame(work.enriched_id, _FIRST)

    def __call__(self, producer: Producer, message: Message, out: str, dead_letters: str) -> None:
        try:
            order: Any = self._deserialize(message.value(), self._context)
        except SerializationError:
            to_dead_letters(producer, message, dead_letters)
            return
        enriched = self._enriched(
            order_id=order.order_id, customer=order.customer, country=order.country, gross=order.amount * TAX
        )
        producer.produce(out, self._head + enriched.SerializeToString(), order.customer)
        producer.poll(0)


@contextmanager
def protobuf_work(bootstrap_servers: str, sources: Sources, count: int) -> Iterator[ProtobufEnrich]:
    """Start a registry, and make the work on orders whose schema is in it."""
    with EmbeddedRegistry() as registry:
        client = kp.SchemaRegistry(url=registry.url).client()
        schema_id = client.register("orders", Schema(ORDER, "PROTOBUF")).id
        orders = ProtobufOrders(count, schema_id)
        source = sources.topic(orders)
        client.register(f"{source}-value", Schema(ORDER, "PROTOBUF"))
        enriched = client.register("enriched", Schema(ENRICHED, "PROTOBUF")).id
        yield ProtobufEnrich(bootstrap_servers, source, orders, registry=registry.url, enriched_id=enriched)

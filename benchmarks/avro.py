"""The orders as Avro with the framing of a schema registry, and the work of ``json_1p`` on them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import fastavro
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

import kpipe_platform as kp
from benchmarks.checks import enriched_problems
from benchmarks.measure import Problems
from benchmarks.orders import TAX, VALUE_BYTES, Orders
from benchmarks.topics import Sources
from benchmarks.work import Work
from kpipe_platform.codecs import Codec
from kpipe_platform.registry.wire import frame
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

_NOTE_CHARS = 60
_FIRST_TS = 1_767_225_600_000


def order_schema(version: int) -> str:
    """The schema of an order. Each version has another field, which no other version has."""
    kinds = {"customer": "string", "amount": "double", "country": "string", "note": "string", "ts": "long"}
    fields: list[dict[str, Any]] = [{"name": "order_id", "type": "long"}]
    fields += [{"name": name, "type": kind} for name, kind in kinds.items()]
    fields.append({"name": f"only_in_{version}", "type": ["null", "int"], "default": None})
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


ENRICHED = json.dumps(
    {
        "type": "record",
        "name": "Enriched",
        "fields": [
            {"name": name, "type": ["null", kind], "default": None}
            for name, kind in {"order_id": "long", "customer": "string", "country": "string", "gross": "double"}.items()
        ],
    }
)


@dataclass(frozen=True)
class AvroOrders(Orders):
    """Orders as Avro; one in a thousand is not.

    Args:
        ids: Ids of the versions of `order_schema`, of which the orders have one after another.
    """

    ids: tuple[int, ...] = ()

    def value(self, number: int) -> bytes:
        """Value of one record, about 100 bytes."""
        if self.is_bad(number):
            return f"order {number} is no Avro".ljust(VALUE_BYTES, ".").encode()
        version = number % len(self.ids)
        stream = io.BytesIO()
        order = {
            "order_id": number,
            "customer": self.customer(number),
            "amount": self.amount(number),
            "country": self.country(number),
            "note": "x" * _NOTE_CHARS,
            "ts": _FIRST_TS + number,
        }
        fastavro.schemaless_writer(stream, _parsed(order_schema(version)), order)
        return frame(self.ids[version], stream.getvalue())


@cache
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@dataclass(frozen=True)
class AvroEnrich(Work):
    """Decode Avro, compute a column, encode Avro. ``registry`` is the address of the schema registry."""

    orders: AvroOrders
    registry: str = ""

    @property
    def codec(self) -> Codec:
        return kp.AvroCodec()

    @property
    def connection(self) -> kp.KafkaConnection:
        registry = kp.SchemaRegistry(url=self.registry)
        return kp.KafkaConnection(bootstrap_servers=self.bootstrap_servers, schema_registry=registry)

    def target(self, out: str) -> kp.KafkaTopic:
        return kp.KafkaTopic(out, key_column="customer", value_codec=kp.AvroCodec(ENRICHED))

    def stage(self, rows: DataFrame) -> DataFrame:
        return rows.withColumn("gross", F.col("amount") * TAX).select("order_id", "customer", "country", "gross")

    def by_hand(self, rows: DataFrame) -> DataFrame:
        data = F.substring(F.col("value"), 6, 2**31 - 1)
        order = from_avro(data, order_schema(0), {"mode": "PERMISSIVE"})
        value = F.struct("order_id", "customer", "country", (F.col("amount") * TAX).alias("gross"))
        good = rows.select(order.alias("order")).select("order.*").where("order_id is not null")
        encoded = F.concat(F.lit(frame(self.ids_of_enriched)), to_avro(value, ENRICHED))
        return good.select(F.col("customer").alias("key"), encoded.alias("value"))

    @property
    def ids_of_enriched(self) -> int:
        """Id of the schema of the outputs."""
        return registered(self.registry, "enriched", ENRICHED)

    @property
    def bad(self) -> int:
        return self.orders.bad

    def output_problems(self, out: str) -> Problems:
        def parse(data: bytes) -> Any:
            return fastavro.schemaless_reader(io.BytesIO(data[5:]), _parsed(ENRICHED), None)

        return enriched_problems(self.bootstrap_servers, out, self.orders, self.partitions, parse=parse)


@cache
def registered(registry: str, subject: str, schema: str) -> int:
    """Register a schema and return its id. By default, Apicurio accepts all versions of a subject."""
    client = SchemaRegistryClient({"url": registry})
    return client.register_schema(subject, Schema(schema, "AVRO"))


@contextmanager
def avro_works(bootstrap_servers: str, sources: Sources, count: int, *versions: int) -> Iterator[list[AvroEnrich]]:
    """Start a registry, and make a work for each number of versions of the schema."""
    with EmbeddedRegistry() as registry:
        works = []
        for number in versions:
            schemas = [order_schema(version) for version in range(number)]
            orders = AvroOrders(count, tuple(registered(registry.url, "orders", schema) for schema in schemas))
            source = sources.topic(orders)
            # The first version is the latest one, with which kpipe reads.
            again = [registered(registry.url, f"{source}-value", schema) for schema in reversed(schemas)]
            if tuple(reversed(again)) != orders.ids:
                msg = f"the registry has other ids for another subject: {again}, {orders.ids}"
                raise RuntimeError(msg)
            works.append(AvroEnrich(bootstrap_servers, source, orders, registry=registry.url))
        yield works

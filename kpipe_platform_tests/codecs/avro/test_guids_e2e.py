"""Ids in headers, as confluent-kafka's serializer writes them: GUIDs, of a small registry of the test's own.

Apicurio Registry has no GUIDs. Confluent's mock registry makes them, and a small HTTP server answers for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import dagster as dg
import pandas as pd
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import SerializationContext
from pyspark.sql import DataFrame

from kpipe_platform import AvroCodec, JsonCodec, KafkaIOManager, KafkaTopic, SchemaRegistry
from kpipe_platform.assets import kafka_asset, kafka_topic_asset
from kpipe_platform.dead_letters.redrive.options import RedriveOptions
from kpipe_platform.dead_letters.redrive.redrive import redrive
from kpipe_platform.registry.wire import KEY_HEADER, VALUE_HEADER, frame
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform_tests.codecs.managers import with_registry
from kpipe_platform_tests.registry.answers import serving

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@contextmanager
def registry_of(mock: SchemaRegistryClient) -> Iterator[str]:
    """Serve what kpipe needs of the API."""

    def answer(path: str) -> tuple[int, Any]:
        kind, name, *rest = path.partition("?")[0].strip("/").split("/")[:4]
        try:
            if (kind, name) == ("schemas", "guids"):
                return 200, {"schema": mock.get_schema_by_guid(rest[0]).schema_str}
            found = mock.get_latest_version(name)
        except SchemaRegistryError:
            return 404, {"error_code": 40403, "message": "not found"}
        if rest == ["versions"]:
            return 200, [found.version]
        version = {"subject": name, "id": found.schema_id, "version": found.version, "guid": found.guid}
        return 200, {**version, "schema": found.schema.schema_str}

    with serving(answer) as server:
        yield server.url


def test_headers_with_guids(
    kafka_topic: TopicFactory, kafka_io_manager: KafkaIOManager, produce: Produce, consume: Consume
) -> None:
    """Keys and values, dead letters and their redrive. An output has no id that describes other bytes."""
    topic = kafka_topic("guids")
    mock = SchemaRegistryClient.new_client({"url": f"mock://{topic}"})
    settings = {"schema.id.serializer": header_schema_id_serializer}
    values, keys = (AvroSerializer(mock, json.dumps(each), conf=settings) for each in (ORDER, "long"))

    def sent(number: int, after: bytes = b"") -> dict[str, Any]:
        headers: list[tuple[str, bytes]] = []
        key = keys(number, SerializationContext(topic, "key", headers))
        value = values({"id": number}, SerializationContext(topic, "value", headers))
        return {"key": key, "value": (value or b"") + after, "headers": headers}

    ids = [frame(UUID(int=7)), b"\x01abc"]
    bad = [sent(3, b"x"), *({**sent(4), "headers": [*sent(4)["headers"][:1], (VALUE_HEADER, each)]} for each in ids)]
    good = [sent(1), {**sent(2), "value": None}]
    produce(topic, [*good, *bad])
    source = kafka_topic_asset(topic, value_codec=AvroCodec(), key_codec=AvroCodec(), partitions=1, name="orders")

    def keep(orders: DataFrame) -> DataFrame:
        return orders

    def keep_pandas(orders: pd.DataFrame) -> pd.DataFrame:
        return orders

    targets = [kafka_topic(name) for name in ("kept", "keyed")]
    kept, keyed = (
        KafkaTopic(targets[0], value_codec=JsonCodec()),
        KafkaTopic(targets[1], value_codec=JsonCodec(), key_column="id"),
    )
    options: dict[str, Any] = {"source": source, "on_fault": "dead_letter", "max_dead_letter_ratio": 1.0}
    assets = [
        kafka_asset(name="kept", topic=kept, **options)(keep),
        kafka_asset(name="keyed", topic=keyed, **options)(keep_pandas),
    ]
    with registry_of(mock) as url, dg.DagsterInstance.ephemeral() as instance:
        manager = with_registry(kafka_io_manager, SchemaRegistry(url=url, timeout_s=1))
        result = dg.materialize(
            [source, *assets],
            selection=assets,
            resources={"kafka_io_manager": manager},
            partition_key="0",
            instance=instance,
        )
        assert result.success
        redrive(manager.source.connection_settings, RedriveOptions(f"{topic}.dlq"))
    kinds = [dead_letter.json()["fault"]["kind"] for dead_letter in consume(f"{topic}.dlq")]
    assert sorted(kinds) == sorted(2 * ["trailing_bytes", "unknown_schema_id", "truncated_frame"])
    again = [(record.value, record.header(VALUE_HEADER)) for record in consume(topic)[len(good) + len(bad) :]]
    assert set(again) == {(each["value"], dict(each["headers"])[VALUE_HEADER]) for each in bad}

    first, tombstone = consume(targets[0])
    # The key is that of the source, with its id; the value is new.
    assert (first.key, first.json()) == (good[0]["key"], {"id": 1})
    assert first.header(KEY_HEADER) == dict(good[0]["headers"])[KEY_HEADER]
    assert first.header(VALUE_HEADER) is None
    assert (tombstone.key, tombstone.value) == (good[1]["key"], None)
    first, tombstone = consume(targets[1])
    assert (first.key, first.header(KEY_HEADER), first.header(VALUE_HEADER)) == (b"1", None, None)
    assert (tombstone.key, tombstone.header(KEY_HEADER)) == (good[1]["key"], dict(good[1]["headers"])[KEY_HEADER])

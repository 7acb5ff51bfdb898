"""The codec with a real schema registry, and with what confluent-kafka's serializers write and read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from kpipe_platform import ProtobufCodec
from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.codecs.protobuf.compiler import compiled
from kpipe_platform.codecs.protobuf.descriptors import indexes_of, message_type
from kpipe_platform.errors import ConfigError, IncompatibleSchemaError, SchemaNotFoundError, UnknownSchemaIdError
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import Schema, SchemaReference
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.registry.wire import frame
from kpipe_platform.spark._compat import to_arrow_type

V1 = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; string name = 2; int32 pieces = 3; }
"""
# A field is renamed, one is removed, one is widened, one is added.
V2 = """
syntax = "proto3";
package shop;
message Unrelated { string x = 1; }
message Order { int64 id = 1; string title = 2; optional double price = 4; }
"""
READER = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; string label = 2; int64 pieces = 3; optional double price = 4; }
"""
NESTED = """
syntax = "proto3";
package shop;
message First { int32 x = 1; }
message Outer {
  map<string, int32> before = 1;
  message Other { int32 x = 1; }
  message Inner { string text = 1; Deepest deepest = 2; message Deepest { int32 n = 1; } }
}
"""
MONEY = """
syntax = "proto3";
package shop.common;
import "google/protobuf/timestamp.proto";
message Money { int64 units = 1; google.protobuf.Timestamp at = 2; }
"""
PRICED = """
syntax = "proto3";
package shop;
import "shop/common/money.proto";
message Priced { int64 id = 1; shop.common.Money price = 2; }
"""


@pytest.fixture
def client(schema_registry: Any) -> Iterator[RegistryClient]:
    return RegistryClient(RegistrySettings(url=schema_registry.url))


@pytest.fixture
def confluent(schema_registry: Any) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": schema_registry.url})


def schema(text: str, *references: SchemaReference) -> Schema:
    return Schema(text, "PROTOBUF", references)


def class_of(text: str, name: str, *references: SchemaReference) -> Any:
    return GetMessageClass(message_type(compiled(schema(text, *references)), name))


def written(client: RegistryClient, topic: str, text: str, name: str = "shop.Order", **settings: Any) -> Any:
    codec = ProtobufCodec(schema=text, message=name, **settings)
    return codec.resolved_to_write(client, topic, "value", None)


def decoded(codec: Any, records: list[bytes | None]) -> list[Any]:
    kind = to_arrow_type(codec.value_type, timezone="UTC")
    return codec.decode_batch(pa.array(records, pa.binary()), kind).to_pylist()


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def test_each_record_is_read_by_the_schema_that_it_was_written_with(client: RegistryClient) -> None:
    topic = "proto-versions"
    old = written(client, topic, V1).encode({"id": 1, "name": "a", "pieces": 7})
    new = written(client, topic, V2).encode({"id": 2, "title": "b", "price": 1.5})
    reader = ProtobufCodec(schema=READER, message="shop.Order").resolved(client, topic, "value")

    expected = [
        {"id": 1, "label": "a", "pieces": 7, "price": None},
        {"id": 2, "label": "b", "pieces": 0, "price": 1.5},
    ]
    assert [reader.decode(each) for each in (old, new)] == expected
    assert decoded(reader, [old, new, None, old]) == [*expected, None, expected[0]]
    assert old[5:6] == b"\x00"
    assert new[5:7] == b"\x02\x02"


def test_without_a_schema_the_latest_of_the_subject_is_read(client: RegistryClient) -> None:
    topic = "proto-latest"
    old = written(client, topic, V1).encode({"id": 1, "name": "a", "pieces": 7})
    written(client, topic, V2)
    with pytest.raises(ConfigError, match=r"has 2 message types: shop\.Unrelated, shop\.Order"):
        ProtobufCodec().resolved(client, topic, "value")
    reader = ProtobufCodec(message="shop.Order").resolved(client, topic, "value")
    assert reader.decode(old) == {"id": 1, "title": "a", "price": None}


def test_bad_frames_are_faults(client: RegistryClient) -> None:
    topic = "proto-frames"
    good = written(client, topic, V2).encode({"id": 2, "title": "b", "price": None})
    other = written(client, topic, V2, "shop.Unrelated").encode({"x": "text"})
    missing = frame(1_000_000, b"\x00\x08\x01")
    bad = {
        missing: "the schema registry does not have",
        b"\x07" + good[1:]: "the first byte is 0x07",
        good[:3]: "there are only 3 bytes",
        good[:5]: "the data ends within the Protobuf message path",
        b"": "there are 0 bytes",
        other: "is message type [0] of schema",
        good[:7] + b"\xff": "not a message of type shop.Order: the data ends within a number",
    }
    codec = ProtobufCodec(schema=V2, message="shop.Order")
    reader = codec.resolved(client, topic, "value", [missing[:5], good[:5]])
    found = decoded(reader, [good, *bad, None, good])
    assert [each is None for each in found] == [False, *[True] * 8, False]
    for data, reason in bad.items():
        with pytest.raises(DecodeFault) as caught:
            reader.decode(data)
        assert reason in caught.value.message or "is not in the schema registry" in caught.value.message

    unknown = codec.resolved(client, topic, "value", [])
    assert decoded(unknown, [good]) == [None]
    with pytest.raises(UnknownSchemaIdError):
        unknown.explain(good)


def test_a_schema_that_would_be_misread_is_a_fault(client: RegistryClient) -> None:
    topic = "proto-changes"
    data = written(client, topic, V1).encode({"id": 1, "name": "a", "pieces": 7})
    reader = 'syntax = "proto3"; package shop; message Order { int64 id = 1; int32 name = 2; }'
    codec = ProtobufCodec(schema=reader, message="shop.Order").resolved(client, topic, "value")
    with pytest.raises(DecodeFault, match=r"field 'name' \(number 2\) was written as string, read as int32"):
        codec.decode(data)
    assert decoded(codec, [data]) == [None]


def test_an_incompatible_schema_is_refused_before_the_run_writes(
    client: RegistryClient, confluent: SchemaRegistryClient
) -> None:
    topic = "proto-incompatible"
    written(client, topic, V1)
    confluent.set_compatibility(f"{topic}-value", level="BACKWARD")
    text = 'syntax = "proto3"; package shop; message Order { string id = 1; }'
    with pytest.raises(IncompatibleSchemaError):
        written(client, topic, text)


def test_look_up_only(client: RegistryClient) -> None:
    topic = "proto-lookup"
    with pytest.raises(SchemaNotFoundError, match="no version with this message type"):
        written(client, topic, V1, register=False)
    registered = client.register(f"{topic}-value", schema(V1.replace("int64 id", "/* a comment */ int64 id")))
    codec = written(client, topic, V1, register=False)
    assert codec.prefix == frame(registered.id, b"\x00")
    assert written(client, topic, V1).prefix == codec.prefix
    assert len(client.versions(f"{topic}-value")) == 1


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("topic", "proto-s-value"), ("record", "shop.Order"), ("topic-record", "proto-s-shop.Order")],
)
def test_subject_strategies(client: RegistryClient, strategy: Any, subject: str) -> None:
    written(client, "proto-s", V1, subject=strategy)
    assert len(client.versions(subject)) == 1


@pytest.mark.parametrize("name", ["shop.First", "shop.Outer", "shop.Outer.Inner", "shop.Outer.Inner.Deepest"])
def test_confluents_serializer_and_ours_read_each_other(
    client: RegistryClient, confluent: SchemaRegistryClient, name: str
) -> None:
    topic = f"proto-interop-{name.lower()}"
    kind = class_of(NESTED, name)
    value = {
        "shop.First": {"x": 5},
        "shop.Outer": {"before": {"a": 1}},
        "shop.Outer.Inner": {"text": "é", "deepest": {"n": 5}},
        "shop.Outer.Inner.Deepest": {"n": -1},
    }[name]
    serialize = ProtobufSerializer(kind, confluent, {"use.deprecated.format": False})
    theirs = serialize(kind(**value), context(topic))
    reader = ProtobufCodec(message=name).resolved(client, topic, "value")
    assert reader.decode(theirs) == value

    codec = written(client, topic, NESTED, name)
    ours = codec.encode(value)
    assert ours == theirs
    deserialize = ProtobufDeserializer(kind, {"use.deprecated.format": False}, confluent)
    assert deserialize(ours, context(topic)) == kind(**value)


def test_schemas_with_imports(client: RegistryClient, confluent: SchemaRegistryClient) -> None:
    money = client.register("shop/common/money.proto", schema(MONEY))
    reference = SchemaReference("shop/common/money.proto", "shop/common/money.proto", 1, money)
    kind = class_of(PRICED, "shop.Priced", reference)
    topic = "proto-imports"
    value = {"id": 1, "price": {"units": 5, "at": None}}

    ours = written(client, topic, kind, "shop.Priced").encode(value)

    assert client.latest(f"{topic}-value").references[0].name == "shop/common/money.proto"
    assert len(client.versions("shop/common/money.proto")) == 1
    # With a registry, it asks for descriptors (format=serialized), which Apicurio returns only if they were registered.
    deserialize = ProtobufDeserializer(kind, {"use.deprecated.format": False})
    assert deserialize(ours, context(topic)) == kind(id=1, price={"units": 5})
    reader = ProtobufCodec().resolved(client, topic, "value")
    assert reader.decode(ours) == value
    assert decoded(reader, [ours, None]) == [value, None]

    other = "proto-imports-theirs"
    serialize = ProtobufSerializer(kind, confluent, {"use.deprecated.format": False})
    theirs = serialize(kind(**value), context(other))
    assert ProtobufCodec().resolved(client, other, "value").decode(theirs) == value


def test_a_registered_imports_tree_is_compiled(client: RegistryClient) -> None:
    descriptors = compiled(schema(PRICED, SchemaReference("shop/common/money.proto", "m", 1, schema(MONEY))))
    assert indexes_of(message_type(descriptors, "shop.Priced")) == (0,)
    codec = written(client, "proto-tree", descriptors, "shop.Priced")
    data = codec.encode({"id": 1, "price": {"units": 5}})
    assert ProtobufCodec().resolved(client, "proto-tree", "value").decode(data)["price"]["units"] == 5


def test_a_registry_is_needed(client: RegistryClient) -> None:
    with pytest.raises(ConfigError, match="needs a schema registry"):
        ProtobufCodec().resolved(None, "t", "value")
    with pytest.raises(SchemaNotFoundError):
        ProtobufCodec().resolved(client, "proto-no-such-topic", "value")
    with pytest.raises(ConfigError, match="has no schema"):
        ProtobufCodec(framing="none")

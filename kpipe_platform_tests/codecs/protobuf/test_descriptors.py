"""Where descriptors come from, and which schemas are refused."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka.schema_registry.common.protobuf import _create_index_array
from google.protobuf import timestamp_pb2, type_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from kpipe_platform import ProtobufCodec
from kpipe_platform.codecs import codec_from_config, codec_to_config
from kpipe_platform.codecs.framed import WriterSchemas
from kpipe_platform.codecs.protobuf import _compat, compiler
from kpipe_platform.codecs.protobuf.compiler import compiled
from kpipe_platform.codecs.protobuf.descriptors import indexes_of, last_file, message_type
from kpipe_platform.codecs.protobuf.registered import _shape
from kpipe_platform.codecs.protobuf.text import proto_text
from kpipe_platform.codecs.schema import to_ddl
from kpipe_platform.errors import ConfigError, TransientError
from kpipe_platform.registry.model import Schema
from kpipe_platform_tests.codecs.protobuf.schemas import BROAD, JSONS, PROTO2

ORDER = 'syntax = "proto3"; package shop; message Order { int64 id = 1; repeated string tags = 2; }'


def plain(**settings: Any) -> ProtobufCodec:
    return ProtobufCodec(framing="none", **settings)


def test_all_forms_of_a_schema_are_the_same(tmp_path: Path) -> None:
    descriptors = compiled(Schema(ORDER, "PROTOBUF"))
    data = base64.b64decode(descriptors)
    file = tmp_path / "orders.desc"
    file.write_bytes(data)
    made = GetMessageClass(message_type(descriptors, "shop.Order"))
    forms = [ORDER, data, descriptors, file, str(file), made]
    codecs = [plain(schema=each) for each in forms]
    assert {to_ddl(each.fields) for each in codecs} == {"id BIGINT, tags ARRAY<STRING>"}
    assert {each.message for each in codecs} == {"shop.Order"}
    assert len(set(codecs)) == 1
    assert codec_from_config(codec_to_config(codecs[0])) == codecs[0]
    assert pickle.loads(pickle.dumps(codecs[0])) == codecs[0]


def test_a_class_by_its_import_path() -> None:
    codec = plain(schema="google.protobuf.type_pb2:Field")
    assert codec.message == "google.protobuf.Field"
    assert codec == plain(schema=type_pb2.Field)
    assert codec.fields["kind"].dataType.simpleString() == "string"


def test_imports_that_protobuf_has_itself_may_be_missing() -> None:
    found = FileDescriptorSet.FromString(base64.b64decode(compiled(Schema(BROAD, "PROTOBUF"))))
    alone = FileDescriptorSet(file=[found.file[-1]]).SerializeToString()
    assert plain(schema=alone, message="broad.Inner").fields == plain(schema=BROAD, message="broad.Inner").fields


REFUSED = {
    "no_file": ("/no/such/file.desc", None, "cannot be read"),
    "not_descriptors": (b"\xff\xff", None, "not a serialized FileDescriptorSet"),
    "empty": (b"", None, "has no files"),
    "not_a_schema": (5, None, "is not a Protobuf schema"),
    "no_module": ("no.such.module:Order", None, "cannot be imported"),
    "no_class": ("google.protobuf.type_pb2:Nothing", None, "cannot be imported"),
    "syntax": (
        'syntax = "proto3"; message X { strin a = 1; }',
        None,
        'the Protobuf compiler refuses the schema: .*"strin"',
    ),
    "no_message": (ORDER, "shop.Orders", "no message type 'shop.Orders'"),
    "several": (BROAD, None, "has 2 message types: broad.Inner, broad.All"),
    "none": ('syntax = "proto3"; enum E { A = 0; }', None, "has 0 message types"),
    "cycle": (
        'syntax = "proto3"; message A { B b = 1; } message B { repeated A a = 1; }',
        "A",
        "'A' contains itself, at 'b.a': A > B > A",
    ),
    "map_cycle": ('syntax = "proto3"; message A { map<string, A> a = 1; }', "A", "'A' contains itself, at 'a': A > A"),
    "case": (
        'syntax = "proto3"; message A { int32 ab = 1; int32 aB = 2 [json_name = "x"]; }',
        "A",
        "differ only in case",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_schemas_are_refused(name: str) -> None:
    schema, message, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        plain(schema=schema, message=message)


def test_a_missing_import_is_named() -> None:
    imported = FileDescriptorSet()
    imported.file.add(name="a.proto", dependency=["b.proto"])
    with pytest.raises(ConfigError, match=r"lacks 'b\.proto', which 'a\.proto' imports"):
        plain(schema=imported.SerializeToString())


@pytest.mark.parametrize(
    ("command", "timeout_s", "reason"),
    [(["sleep", "30"], 0.1, "did not finish within 0.1 s"), (["sh", "-c", "kill -9 $$"], 60, "was killed by signal 9")],
)
def test_a_compiler_that_cannot_finish_is_no_fault_of_records(
    monkeypatch: pytest.MonkeyPatch, command: list[str], timeout_s: float, reason: str
) -> None:
    monkeypatch.setattr(_compat, "protoc_command", lambda _: command)
    monkeypatch.setattr(compiler, "_TIMEOUT_S", timeout_s)
    written = Schema(ORDER + f"// {reason}", "PROTOBUF")
    codec = ProtobufCodec(schema=type_pb2.Field)
    with pytest.raises(TransientError, match=reason):
        codec.reading(written, WriterSchemas("PROTOBUF", ((b"\x00\x00\x00\x00\x01", written),)))


def wide(fields: int) -> str:
    size = 10_000_000 // fields
    lines = "".join(f"string f_{i} = {i + 1}; // {'x' * size}\n" for i in range(fields))
    return f'syntax = "proto3"; message Wide {{ {lines} }}'


def test_a_schema_of_10_mb() -> None:
    codec = plain(schema=wide(2_000))
    assert len(codec.fields) == 2_000
    assert codec.decode(b"\x0a\x01x")["f_0"] == "x"
    with pytest.raises(ConfigError, match="Message size exceeded maximum size"):
        plain(schema=wide(10_000))


@pytest.mark.parametrize("text", [BROAD, PROTO2, JSONS, ORDER])
def test_the_text_of_a_descriptor_compiles_to_it(text: str) -> None:
    descriptors = compiled(Schema(text, "PROTOBUF"))
    again = compiled(Schema(proto_text(last_file(descriptors)), "PROTOBUF"))
    for one in last_file(descriptors).message_type:
        name = f"{last_file(descriptors).package}.{one.name}"
        assert _shape(message_type(again, name)) == _shape(message_type(descriptors, name))


def test_indexes_are_those_of_confluent() -> None:
    descriptors = compiled(Schema(BROAD, "PROTOBUF"))
    for name in ("broad.Inner", "broad.All", "broad.All.Deep", "broad.All.Deep.Deeper", "broad.All.Deeper2"):
        found = message_type(descriptors, name)
        assert list(indexes_of(found)) == _create_index_array(found)


def test_a_descriptor_registered_by_confluents_serializer_is_read() -> None:
    text = base64.b64encode(timestamp_pb2.DESCRIPTOR.serialized_pb).decode("ascii")
    assert message_type(compiled(Schema(text, "PROTOBUF")), None).full_name == "google.protobuf.Timestamp"


def test_maps_as_javas_serializers_register_them_are_read() -> None:
    text = """
    syntax = "proto3";
    package shop;
    message Order {
      int64 id = 1;
      repeated .shop.Order.AttrsEntry attrs = 2;
      message AttrsEntry { option map_entry = true; string key = 1; Line value = 2; }
      message Line {
        int32 n = 1;
        repeated NsEntry ns = 2;
        message NsEntry { option map_entry=true; bool key = 1; int32 value = 2; }
      }
    }
    """
    with_maps = """
    syntax = "proto3";
    package shop;
    message Order {
      int64 id = 1;
      map<string, Line> attrs = 2;
      message Line { int32 n = 1; map<bool, int32> ns = 2; }
    }
    """
    codec, same = plain(schema=text), plain(schema=with_maps)
    assert to_ddl(codec.fields) == to_ddl(same.fields)
    value = {"id": 1, "attrs": {"a": {"n": 5, "ns": {True: 7}}}}
    assert codec.encode(value) == same.encode(value)
    assert codec.decode(codec.encode(value)) == value
    found = [message_type(compiled(Schema(each, "PROTOBUF")), "shop.Order.Line") for each in (text, with_maps)]
    assert _shape(found[0]) == _shape(found[1])


def test_an_edition_is_read_and_written_but_not_registered() -> None:
    text = """
    edition = "2023";
    package shop;
    message Order {
      int32 id = 1 [features.field_presence = LEGACY_REQUIRED];
      int32 pieces = 2 [features.field_presence = IMPLICIT];
      Line line = 3 [features.message_encoding = DELIMITED];
      State state = 4;
      string note = 5 [features.utf8_validation = NONE];
      message Line { int32 n = 1; }
      enum State { option features.enum_type = CLOSED; NEW = 0; PAID = 1; }
    }
    """
    codec = plain(schema=text)
    value = {"id": 1, "pieces": 0, "line": {"n": 4}, "state": "PAID", "note": None}
    assert codec.decode(codec.encode(value)) == value
    assert ProtobufCodec(schema=text).given is not None
    with pytest.raises(ConfigError, match="is of a Protobuf edition, which kpipe reads, but cannot register"):
        proto_text(last_file(codec.schema))
    names = ["LEGACY_REQUIRED", "IMPLICIT", "DELIMITED", "CLOSED"]
    changed = ["EXPLICIT", "EXPLICIT", "LENGTH_PREFIXED", "OPEN"]
    own = _shape(message_type(codec.schema, "shop.Order"))
    for one, other in zip(names, changed, strict=True):
        assert _shape(message_type(compiled(Schema(text.replace(one, other), "PROTOBUF")), "shop.Order")) != own


def test_common_types_of_google_and_confluent_are_found() -> None:
    text = """syntax = "proto3"; import "google/type/date.proto"; import "confluent/meta.proto";
    import "confluent/type/decimal.proto"; import "google/protobuf/field_mask.proto";
    message X { google.type.Date day = 1; confluent.type.Decimal price = 2; google.protobuf.FieldMask mask = 3; }"""
    codec = plain(schema=text, message="X")
    assert codec.fields["day"].dataType.simpleString() == "struct<year:int,month:int,day:int>"
    assert codec.fields["mask"].dataType.simpleString() == "struct<paths:array<string>>"
    value = {"day": {"year": 2024, "month": 1, "day": 2}, "price": None, "mask": {"paths": [f"{Random(1).random()}"]}}
    assert codec.decode(codec.encode(value)) == value

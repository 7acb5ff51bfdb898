"""AvroCodec without Spark and without a registry."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import sys
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from kpipe_platform import AvroCodec, DecodeFault, EncodeFault, KafkaTopic
from kpipe_platform.codecs.avro.codec import PinnedAvroCodec
from kpipe_platform.codecs.avro.made import made_schema
from kpipe_platform.codecs.avro.schema import parse_avro, to_text
from kpipe_platform.codecs.config import codec_from_config, codec_to_config
from kpipe_platform.codecs.framed import WriterSchemas
from kpipe_platform.errors import ConfigError, EnvironmentSetupError, UnknownSchemaIdError
from kpipe_platform.registry.model import Schema, SchemaReference
from kpipe_platform.registry.wire import frame


def record(*types: Any, name: str = "R", **attributes: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields, **attributes}


def plain(*types: Any) -> AvroCodec:
    return AvroCodec(record(*types), framing="none")


def text(given: Any) -> Schema:
    return Schema(json.dumps(given))


def read(writer: Any, reader: Any, payload: bytes) -> Any:
    codec = PinnedAvroCodec(schema=text(reader), writers=WriterSchemas("AVRO", ((frame(1), text(writer)),)))
    return codec.decode(frame(1) + payload)


NODE = record("int", ["null", "Node"], name="Node")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type": "record"', "is not JSON"),
        ("strin", "is not JSON"),
        (5, "int is not an Avro schema"),
        ({"type": "record", "name": "R"}, "has no fields"),
        ({"type": "record", "fields": []}, "has no name"),
        (record("strin"), 'R.f0: the type "strin" is not defined'),
        (record({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "one of them twice"),
        (record({"type": "fixed", "name": "F"}), "has no size"),
        (record({"type": "array"}), "has no 'items'"),
        (record(["int", "int"]), "has a type twice"),
        (record(record("int")), "'R' is defined twice"),
        (record("int", name="no-name"), "'no-name' is not a name"),
        (NODE, "contains itself"),
        (record(["null"]), "no type except null"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 39}), "39 digits; Spark has at most 38"),
        ({**record(), "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}, "differ only in case"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_refused_schemas(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        AvroCodec(schema)


@pytest.mark.parametrize(("setting", "value"), [("framing", "other"), ("subject", "other"), ("framing", "none")])
def test_refused_settings(setting: str, value: str) -> None:
    with pytest.raises(ConfigError):
        AvroCodec(**{setting: value})  # type: ignore[arg-type]


def test_a_schema_of_10_mb() -> None:
    codec = AvroCodec({**record("int"), "doc": "x" * 10_000_000}, framing="none")
    assert codec.decode(codec.encode({"f0": 5})) == {"f0": 5}
    wide = AvroCodec(record(*["int"] * 100_000), framing="none")
    assert len(wide.fields) == 100_000


def test_it_is_a_setting_and_can_be_pickled() -> None:
    codec = AvroCodec(record("int"), subject="record", register=False)
    assert codec == AvroCodec(json.dumps(record("int")), subject="record", register=False)
    assert codec_from_config(json.loads(json.dumps(codec_to_config(codec)))) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert AvroCodec().has_schema
    KafkaTopic("orders", value_codec=AvroCodec(), key_codec=AvroCodec('"string"')).require_readable()


def test_without_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(EnvironmentSetupError, match="kpipe-platform\\[avro\\]"):
        AvroCodec()


def test_nullable_is_that_of_the_schema() -> None:
    fields = plain("int", ["null", "int"], {"type": "array", "items": ["int", "null"]}).fields
    assert [field.nullable for field in fields] == [False, True, False]
    assert fields[2].dataType == T.ArrayType(T.IntegerType(), True)


@pytest.mark.parametrize(
    ("kind", "payload", "fault"),
    [
        ("string", b"\x04\xff\xff", "not_utf8"),
        ("string", b"\x04a", "truncated"),
        ("string", b"\x04abc", "trailing_bytes"),
        ("string", b"", "truncated"),
        (["null", "int"], b"\x08", "not_avro"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "wrong_type"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x02\x64", "wrong_type"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x00", "wrong_type"),
        ("int", b"\xff\xff\xff\xff\x7f", "wrong_type"),
    ],
)
def test_faults(kind: Any, payload: bytes, fault: str) -> None:
    found = plain(kind).diagnose(payload)
    assert found is not None
    assert found.kind == fault
    assert plain(kind).explain(payload).kind == fault


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("int", 2**31, "f0: int 2147483648 does not fit int"),
        ("int", True, "does not fit int"),
        ("int", None, "'f0' is null"),
        ("string", "\ud800", "does not fit string"),
        ("string", b"x", "does not fit string"),
        ({"type": "fixed", "name": "F", "size": 2}, b"x", "does not fit fixed"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "does not fit enum"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, Decimal("100"), r"decimal\(3,1\)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, Decimal("0.01"), r"decimal\(3,1\)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, Decimal("1E+999999"), "decimal"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}, Decimal("NaN"), "decimal"),
        ({"type": "int", "logicalType": "date"}, dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), "date"),
        ({"type": "array", "items": "int"}, "x", "does not fit array"),
        ({"type": "map", "values": "int"}, {1: 1}, "does not fit map"),
        (["int", "string"], 5, "a dict with one of member0, member1"),
        (["int", "string"], {"member0": 1, "member1": "x"}, "a dict with one of"),
    ],
)
def test_values_that_do_not_fit(kind: Any, value: Any, problem: str) -> None:
    with pytest.raises(EncodeFault, match=problem):
        plain(kind).encode({"f0": value})


def test_fields_that_are_missing_or_unknown() -> None:
    schema = record("int", "int")
    schema["fields"][1]["default"] = 7
    codec = AvroCodec(schema, framing="none")
    assert codec.decode(codec.encode({"f0": 1})) == {"f0": 1, "f1": 7}
    for value in ({"f1": 1}, {"f0": 1, "g": 2}, "text"):
        with pytest.raises(EncodeFault):
            codec.encode(value)


class TestResolution:
    def test_names_of_the_record_need_not_match(self) -> None:
        reader = {**record(name="b.Other"), "fields": [{"name": "new", "type": "long", "aliases": ["f0"]}]}
        assert read(record("int", name="a.R"), reader, b"\x0a") == {"new": 5}

    def test_a_recursive_writer(self) -> None:
        assert read(NODE, record("int", name="Node"), b"\x0a\x02\x0c\x00") == {"f0": 5}

    def test_a_changed_scale_is_not_a_wrong_value(self) -> None:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": 6}
        with pytest.raises(DecodeFault, match="2 digits after the point now has 3"):
            read(record({**decimal, "scale": 2}), record({**decimal, "scale": 3}), b"\x02\x05")

    def test_a_changed_unit_is_converted(self) -> None:
        units = [record({"type": "long", "logicalType": f"timestamp-{unit}"}) for unit in ("millis", "micros")]
        assert read(units[0], units[1], b"\x02")["f0"].microsecond == 1000
        assert read(units[1], units[0], b"\x02")["f0"].microsecond == 1

    def test_a_missing_field_without_default(self) -> None:
        with pytest.raises(DecodeFault) as caught:
            read(record("int"), record("int", "string"), b"\x02")
        assert (caught.value.kind, caught.value.field) == ("schema_mismatch", "f1")

    def test_a_schema_with_references(self) -> None:
        address = Schema(json.dumps({**record("string", name="Address"), "namespace": "shop"}))
        reference = SchemaReference("shop.Address", "address", 1, address)
        order = Schema(json.dumps(record("shop.Address", ["null", "shop.Address"])), references=(reference,))
        codec = PinnedAvroCodec(schema=order)
        assert codec.value_type.simpleString() == "struct<f0:struct<f0:string>,f1:struct<f0:string>>"
        value = {"f0": {"f0": "x"}, "f1": None}
        assert codec.decode(codec.encode(value)) == value
        assert to_text(parse_avro(order)).count('"record"') == 2

    def test_an_id_that_is_not_known(self) -> None:
        codec = PinnedAvroCodec(schema=text(record("int")), writers=WriterSchemas("AVRO", ((frame(1), None),)))
        assert codec.explain(frame(1)).kind == "unknown_schema_id"
        with pytest.raises(UnknownSchemaIdError):
            codec.explain(frame(2))

    def test_an_id_in_a_header(self) -> None:
        schema = text(record("int"))
        codec = AvroCodec().reading(schema, WriterSchemas("AVRO", ((frame(1), schema),)))
        for part, header in (("value", "__value_schema_id"), ("key", "__key_schema_id")):
            assert codec.decode(codec.framed(b"\x02", [(header, frame(1))], part)) == {"f0": 1}  # type: ignore[arg-type]
        assert PinnedAvroCodec(schema=schema).framed(b"\x02", [("__value_schema_id", frame(1))], "value") == b"\x02"


def test_a_writer_puts_its_id_in_front() -> None:
    writer = PinnedAvroCodec(schema=text("string"), frame=frame(258))
    assert writer.encode("ab") == b"\x00\x00\x00\x01\x02\x04ab"
    assert writer.decode(b"\x00\x00\x00\x01\x02\x04ab") == "ab"


class TestMadeSchema:
    def test_types(self) -> None:
        kind = T.StructType().add("a", T.IntegerType(), False).add("b", T.StructType().add("c", T.DecimalType(5, 2)))
        kind = kind.add("d", T.ArrayType(T.StructType().add("e", T.DateType()))).add(
            "m", T.MapType(T.StringType(), T.LongType())
        )
        node = parse_avro(text(made_schema(kind, "R")))
        assert PinnedAvroCodec(schema=text(made_schema(kind, "R"))).value_type.simpleString() == (
            "struct<a:int,b:struct<c:decimal(5,2)>,d:array<struct<e:date>>,m:map<string,bigint>>"
        )
        assert all(each.node.is_nullable and each.attributes["default"] is None for each in node.fields)

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            (T.StructType().add("dep-time", T.IntegerType()), "'dep-time' is not a name in Avro"),
            (T.StructType().add("x", T.NullType()), "'x' is void"),
            (T.StructType().add("x", T.ShortType()), "'x' is smallint"),
            (T.StructType().add("x", T.MapType(T.IntegerType(), T.IntegerType())), "'x' is map<int,int>"),
        ],
    )
    def test_refused(self, kind: T.DataType, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            made_schema(kind, "R")

    def test_a_name_in_the_subject_needs_a_schema(self) -> None:
        with pytest.raises(ConfigError, match="needs a schema"):
            AvroCodec(subject="record")
        with pytest.raises(ConfigError, match="has no name"):
            AvroCodec('"string"', subject="record").record_name(Schema('"string"'))
        assert AvroCodec(record("int", name="shop.R")).record_name(text(record("int", name="shop.R"))) == "shop.R"

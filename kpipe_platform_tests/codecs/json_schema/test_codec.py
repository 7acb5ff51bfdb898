"""JsonSchemaCodec: columns, faults, what is written, and Spark's answers, which are those of Python."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import jsonschema
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonSchemaCodec, codec_from_config, codec_to_config
from kpipe_platform.codecs.framed import WriterSchemas
from kpipe_platform.codecs.json_schema.columns import columns_of, schema_of_columns
from kpipe_platform.codecs.json_schema.documents import MAX_SCHEMA_BYTES
from kpipe_platform.codecs.schema import schema_of, to_ddl
from kpipe_platform.errors import ConfigError, EncodeFault, UnknownSchemaIdError
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaReference
from kpipe_platform.registry.wire import frame
from kpipe_platform.spark.columns import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACE = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "integer"}}, "required": ["x"]}
ORDER: dict[str, Any] = {
    "type": "object",
    "title": "Order",
    "required": ["id", "amount"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "amount": {"type": ["null", "number"]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "places": {"type": "array", "items": {"$ref": "#/definitions/place"}},
    },
    "definitions": {"place": PLACE},
}


def plain(schema: Any = None, **settings: Any) -> JsonSchemaCodec:
    return JsonSchemaCodec(schema=ORDER if schema is None else schema, framing="none", **settings)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "definitions": {"place": PLACE}}


@pytest.mark.parametrize(
    ("node", "ddl"),
    [
        ({"type": "integer"}, "BIGINT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": "string"}, "STRING"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "time"}, "STRING"),
        ({"type": "null"}, "STRING"),
        ({}, "STRING"),
        (True, "STRING"),
        ({"type": ["integer", "number"]}, "DOUBLE"),
        ({"type": ["integer", "string"]}, "STRING"),
        ({"enum": ["a", "b", None]}, "STRING"),
        ({"enum": [1, 2.5]}, "DOUBLE"),
        ({"const": 7}, "BIGINT"),
        ({"type": "array"}, "ARRAY<STRING>"),
        ({"type": "array", "items": {"type": ["null", "integer"]}}, "ARRAY<BIGINT>"),
        ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}, "ARRAY<STRING>"),
        ({"type": "object"}, "MAP<STRING, STRING>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "MAP<STRING, BIGINT>"),
        ({"type": "object", "patternProperties": {"^x": {"type": "boolean"}}}, "MAP<STRING, BOOLEAN>"),
        ({"$ref": "#/definitions/place"}, "STRUCT<x: DOUBLE NOT NULL, y: BIGINT>"),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/definitions/place"}]}, "STRUCT<x: DOUBLE NOT NULL, y: BIGINT>"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "BIGINT"),
        ({"anyOf": [{"type": "integer"}, {"type": "object"}]}, "STRING"),
        (
            {"oneOf": [{"$ref": "#/definitions/place"}, object_of(z={"type": "boolean"}, y={"type": "string"})]},
            "STRUCT<x: DOUBLE, y: STRING, z: BOOLEAN>",
        ),
        (
            {"allOf": [{"$ref": "#/definitions/place"}, {"properties": {"w": {"type": "integer"}}, "required": ["w"]}]},
            "STRUCT<x: DOUBLE NOT NULL, y: BIGINT, w: BIGINT NOT NULL>",
        ),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "BIGINT"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "oneOf": [{"required": ["a"]}, {"required": []}],
            },
            "STRUCT<a: BIGINT>",
        ),
    ],
)
def test_columns_of_a_schema(node: Any, ddl: str) -> None:
    assert to_ddl(plain(object_of(a=node)).fields) == f"a {ddl}"


def test_a_required_property_is_not_null_unless_it_may_be() -> None:
    assert to_ddl(plain().fields) == (
        "id BIGINT NOT NULL, amount DOUBLE, day DATE, at TIMESTAMP, places ARRAY<STRUCT<x: DOUBLE NOT NULL, y: BIGINT>>"
    )
    assert "amount DOUBLE, day STRING, at STRING, " in to_ddl(plain(formats=False).fields)


CASES: list[tuple[Any, str | None]] = [
    ({"id": 1, "amount": None}, None),
    ({"id": 1, "amount": 2, "day": "2020-02-29", "at": "2020-01-01T00:00:00.5+02:00", "places": [{"x": 1}]}, None),
    ({"id": 1, "amount": 1, "more": [1]}, None),
    ({"id": 1}, '"amount" is a required property'),
    ({"id": 0, "amount": 1}, 'field "id": 0 is less than the minimum of 1'),
    ({"id": "1", "amount": 1}, 'field "id": "1" is not of type "integer"'),
    ({"id": 1, "amount": 2, "day": "2020-02-30"}, 'field "day": "2020-02-30" is not a "date"'),
    ({"id": 1, "amount": 1, "at": "yesterday"}, 'field "at": "yesterday" is not a "date-time"'),
    ({"id": 1, "amount": 1, "places": [{"x": 1}, {"y": 1}]}, 'field "places[1]": "x" is a required property'),
    ({"id": 1, "amount": float("nan")}, "cannot be validated: NaN is not JSON"),
    (
        {"id": 10**30, "amount": 1},
        'field "id": expected bigint, found number 1000000000000000000000000000000, which is out of range',
    ),
    (b"", "the value is empty; expected a JSON object"),
    (b"\xff", "not UTF-8: byte 0xff at position 0 (invalid start byte)"),
    (b"[1]", "expected a JSON object, found array [1]"),
    (b'{"id":1,"amount":1} x', "not JSON: text after the object, 'x', at line 1, column 21 (character 20)"),
    (
        b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}",
        "not JSON: nested deeper than 200 levels at line 1, column 205 (character 204)",
    ),
]


def data_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.mark.parametrize(("value", "message"), CASES)
def test_why_a_record_does_not_decode(value: Any, message: str | None) -> None:
    fault = plain().diagnose(data_of(value))
    assert (None if fault is None else fault.message) == message


def test_a_long_message_keeps_its_end() -> None:
    codec = plain(object_of(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}))
    fault = codec.diagnose(data_of({"a": {"b": "x" * 5_000}}))
    assert fault is not None
    assert len(fault.message) < 300
    assert fault.message.endswith("is not valid under any of the schemas listed in the 'anyOf' keyword")


OLD = RegisteredSchema(json.dumps(object_of(id={"type": "integer"}, note={"type": "string"})), "JSON", id=1)
NEW = RegisteredSchema(json.dumps(ORDER), "JSON", id=2)
AVRO = RegisteredSchema('"string"', "AVRO", id=3)
KNOWN = WriterSchemas("JSON", ((frame(1), OLD), (frame(2), NEW), (frame(3), AVRO), (frame(4), None)))
FRAMED = JsonSchemaCodec(columns="id BIGINT NOT NULL, note STRING, amount DOUBLE")
FRAMED_CASES: list[tuple[bytes, str | None]] = [
    (frame(1, b'{"id":1,"note":"n","amount":5}'), None),
    (frame(1, b'{"id":0}'), None),
    (frame(1, b'{"note":"n"}'), 'field "id" is required but missing'),
    (frame(2, b'{"id":0,"amount":1}'), 'field "id": 0 is less than the minimum of 1'),
    (frame(2, b'{"id":1,"amount":1}'), None),
    (frame(3, b'{"id":1}'), "schema 3 in the schema registry is AVRO, not JSON"),
    (frame(4, b'{"id":1}'), "the schema registry has no schema 4"),
    (b'{"id":1}', "the first byte is 0x7b, not the magic byte 0x00 or 0x01 of Confluent's wire format"),
    (b"\x00\x00", "there are only 2 bytes, but the magic byte and the id of the schema take 5"),
    (frame(1), "the value is empty; expected a JSON object"),
]


@pytest.mark.parametrize(("data", "message"), FRAMED_CASES)
def test_each_record_is_validated_by_its_own_schema(data: bytes, message: str | None) -> None:
    fault = FRAMED.reading(NEW, KNOWN).diagnose(data)
    assert (None if fault is None else fault.message) == message


def test_an_id_that_was_not_known_is_asked_for() -> None:
    with pytest.raises(UnknownSchemaIdError, match="schema 9 of a record was not known"):
        FRAMED.reading(NEW, KNOWN).explain(frame(9, b"{}"))


def spark_answers(spark: SparkSession, codec: Codec, records: list[bytes]) -> list[dict[str, Any]]:
    frame = spark.createDataFrame([(bytearray(data),) for data in records], "data binary")
    frame = frame.select("data", parsed(codec, F.col("data")).alias("parsed"))
    bad = codec.fault(F.col("data"), F.col("parsed"))
    assert bad is not None
    value = codec.value(F.col("parsed"))
    columns = F.struct(*[value[name].alias(name) for name in codec.fields.names])
    return list(frame.select(bad.alias("bad"), columns.alias("value")).toArrow().to_pylist())


@pytest.mark.spark
def test_spark_finds_the_same_faults(spark: SparkSession) -> None:
    rows = spark_answers(spark, plain(), [data_of(value) for value, _ in CASES])
    assert [row["bad"] for row in rows] == [message is not None for _, message in CASES]
    at = dt.datetime(2019, 12, 31, 22, 0, 0, 500_000, tzinfo=dt.timezone.utc)
    assert rows[1]["value"] == {
        "id": 1,
        "amount": 2.0,
        "day": dt.date(2020, 2, 29),
        "at": at,
        "places": [{"x": 1.0, "y": None}],
    }
    reader = FRAMED.reading(NEW, KNOWN)
    rows = spark_answers(spark, reader, [*(data for data, _ in FRAMED_CASES), frame(9, b"{}")])
    assert [row["bad"] for row in rows] == [message is not None for _, message in FRAMED_CASES] + [True]
    assert rows[0]["value"] == {"id": 1, "note": "n", "amount": 5.0}


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=4),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["id", "amount", "x", "y"]), inside, max_size=3)
    ),
    max_leaves=5,
)
NODES = st.sampled_from(
    [
        {"type": "integer", "multipleOf": 2},
        {"type": ["null", "number"], "exclusiveMinimum": 0},
        {"type": "string", "maxLength": 2},
        {"enum": ["a", None, 3]},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"oneOf": [{"type": "null"}, PLACE]},
        {"not": {"type": "object"}},
        {},
    ]
)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(a=NODES, b=NODES, value=st.fixed_dictionaries({"a": JSON_VALUES}, optional={"b": JSON_VALUES}))
def test_validation_is_that_of_another_library(a: Any, b: Any, value: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": a, "b": b}, "required": ["b"]}
    codec = JsonSchemaCodec(schema=schema, columns="a STRING, b STRING", framing="none")
    is_valid = jsonschema.Draft7Validator(schema).is_valid(value)
    assert (codec.diagnose(data_of(value)) is None) == is_valid


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_drafts(draft: str) -> None:
    codec = plain({"$schema": draft, **object_of(a={"type": "integer", "minimum": 1})})
    assert codec.diagnose(b'{"a": 1}') is None
    assert codec.diagnose(b'{"a": 0}') is not None


TREE = '{"type": "object", "properties": {"child": {"$ref": "#"}}}'


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (TREE, "the JSON Schema is recursive, and a column cannot be"),
        ('{"type": "foo"}', 'the JSON Schema is invalid: "foo" is not valid under any of the schemas'),
        ("[]", "the JSON Schema is list; a schema is an object"),
        ("{", "the JSON Schema is not JSON"),
        ("[" * 100_000, "the JSON Schema is not JSON"),
        ('{"type": "string"}', "describes string, not an object with properties, so it has no columns"),
        ("true", "describes string, not an object"),
        (
            json.dumps(object_of(a={"$ref": "http://127.0.0.1:1/x.json"})),
            "refers to 'http://127.0.0.1:1/x.json', which is not",
        ),
        (json.dumps(object_of(a={"$ref": "other.json"})), "refers to 'other.json', which is not a reference"),
        (json.dumps(object_of(a={"$ref": "#/definitions/no"})), "Pointer '/definitions/no' does not exist"),
        (json.dumps(object_of(a={"pattern": "("})), 'is not a "regex"'),
        (json.dumps(object_of(a={}, A={})), "differ only in case"),
        ('{"$schema": "http://example.com/", "type": "object"}', "Unknown meta-schema"),
        (json.dumps({"description": "x" * 10_000_000}), f"has 10,000,019 bytes .* accepts up to {MAX_SCHEMA_BYTES:,}"),
        (5, "int is not a JSON Schema"),
    ],
)
def test_a_bad_schema_is_refused_where_it_is_declared(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain(schema)


def test_a_schema_that_grows_without_end_is_refused() -> None:
    doubling = {
        f"d{n}": object_of(a={"$ref": f"#/definitions/d{n + 1}"}, b={"$ref": f"#/definitions/d{n + 1}"})
        for n in range(30)
    }
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/d0"}},
        "definitions": {**doubling, "d30": {}},
    }
    with pytest.raises(ConfigError, match="more than 10,000 parts"):
        plain(schema)


def test_columns_of_a_recursive_schema_are_declared() -> None:
    codec = plain(TREE, columns="child STRING")
    assert codec.decode(b'{"child": {"child": {}}}') == {"child": {"child": {}}}
    assert codec.diagnose(b'{"child": {"child": 1}}') is not None


@pytest.mark.parametrize("base", [{}, {"$id": "http://shop/order.json"}])
def test_references_of_the_registry(base: dict[str, str]) -> None:
    place = Schema(json.dumps(PLACE), "JSON")
    text = json.dumps({**base, **object_of(p={"$ref": "place.json"}, q={"$ref": "#/properties/p"})})
    schema = Schema(text, "JSON", (SchemaReference("place.json", "place", 1, place),))
    assert to_ddl(columns_of(schema, True)) == ", ".join(f"{n} STRUCT<x: DOUBLE NOT NULL, y: BIGINT>" for n in "pq")
    reader = JsonSchemaCodec().reading(schema, WriterSchemas("JSON", ((frame(1), schema),)))
    assert reader.diagnose(frame(1, b'{"p": {"x": 1}}')) is None
    fault = reader.diagnose(frame(1, b'{"q": {"x": "1"}}'))
    assert fault is not None
    assert fault.message == 'field "q.x": "1" is not of type "number"'


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://shop/order",
            "properties": {"p": {"$ref": "place"}, "x": {"$ref": "https://shop/place#x"}},
            "$defs": {
                "a": {
                    "$id": "place",
                    "type": "object",
                    "properties": {"x": {"$ref": "#/$defs/x"}},
                    "$defs": {"x": {"$anchor": "x", "type": "number"}},
                }
            },
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"p": {"$ref": "place.json"}, "x": {"$ref": "place.json#/definitions/x"}},
            "definitions": {
                "a": {
                    "$id": "place.json",
                    "type": "object",
                    "properties": {"x": {"$ref": "#/definitions/x"}},
                    "definitions": {"x": {"type": "number"}},
                }
            },
        },
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://shop/order.json",
            "properties": {"p": {"$ref": "place.json"}, "x": {"type": "number"}},
            "definitions": {
                "a": {"id": "place.json", "type": "object", "properties": {"x": {"type": "number"}}},
            },
        },
    ],
)
def test_references_to_schemas_within_the_schema(schema: Any) -> None:
    codec = plain({"type": "object", **schema})
    assert to_ddl(codec.fields) == "p STRUCT<x: DOUBLE>, x DOUBLE"
    assert codec.diagnose(b'{"p": {"x": 1}, "x": 2}') is None
    fault = codec.diagnose(b'{"p": {"x": "1"}}')
    assert fault is not None
    assert fault.message == 'field "p.x": "1" is not of type "number"'


def test_what_violates_the_schema_is_not_written() -> None:
    codec = plain()
    value = {"id": 1, "amount": Decimal("1.5"), "day": dt.date(2020, 1, 1)}
    assert codec.encode(value) == b'{"id":1,"amount":1.5,"day":"2020-01-01"}'
    with pytest.raises(EncodeFault, match='violates the JSON Schema: "amount" is a required property'):
        codec.encode({"id": 1, "amount": None})
    assert plain(include_nulls=True).encode({"id": 1, "amount": None}) == b'{"id":1,"amount":null}'
    writer = JsonSchemaCodec(schema=ORDER).writing(NEW)
    assert writer.encode(value) == frame(2, codec.encode(value) or b"")
    assert writer.diagnose(writer.encode(value) or b"") is None


@pytest.mark.spark
def test_spark_writes_the_same(spark: SparkSession) -> None:
    writer = JsonSchemaCodec(schema=ORDER).writing(NEW)
    output = spark.createDataFrame([(1, 1.5), (0, 1.5), (1, None)], "id BIGINT, amount DOUBLE")
    value, kind = F.struct("id", "amount"), output.schema
    misfit = writer.misfit(value, kind)
    assert misfit is not None
    rows = output.select(writer.write(value, kind).alias("data"), misfit.alias("misfit")).collect()
    assert bytes(rows[0]["data"]) == frame(2, b'{"id":1,"amount":1.5}')
    assert [row["misfit"] for row in rows] == [
        None,
        'violates the JSON Schema: field "id": 0 is less than the minimum of 1',
        'violates the JSON Schema: "amount" is a required property',
    ]
    closed = RegisteredSchema(json.dumps({**ORDER, "additionalProperties": False}), "JSON", id=2)
    with pytest.raises(ConfigError, match="'amount' is required but not returned; 'x' is returned but not a property"):
        JsonSchemaCodec().writing(closed).write(value, T.StructType().add("id", T.LongType()).add("x", T.LongType()))


def test_a_schema_from_columns_reads_as_the_same_columns() -> None:
    ddl = "id BIGINT NOT NULL, a ARRAY<DOUBLE>, m MAP<STRING, DATE>, s STRUCT<t: TIMESTAMP, b: BOOLEAN NOT NULL>"
    made = schema_of_columns(schema_of(ddl))
    assert to_ddl(columns_of(Schema(json.dumps(made), "JSON"), True)) == ddl
    assert made["required"] == ["id"]
    with pytest.raises(ConfigError, match="writes objects, not int"):
        schema_of_columns(T.IntegerType())
    with pytest.raises(ConfigError, match="column 'v' is variant"):
        schema_of_columns(T.StructType().add("v", T.VariantType()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JsonSchemaCodec(framing="none"), "has no schema"),
        (lambda: JsonSchemaCodec(columns="a INTT"), "expected a type"),
        (lambda: JsonSchemaCodec().encode({}), "has no schema to convert single values"),
        (lambda: JsonSchemaCodec(subject="record"), "needs a schema"),
        (lambda: JsonSchemaCodec(ORDER, subject="record").record_name(Schema(TREE, "JSON")), "the schema has no title"),
    ],
)
def test_settings_that_do_not_fit(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "codec", [plain(), plain(formats=False, include_nulls=True), FRAMED, JsonSchemaCodec(), FRAMED.reading(NEW, KNOWN)]
)
def test_settings_and_pickles_make_the_same_codec(codec: Codec) -> None:
    copies = [pickle.loads(pickle.dumps(codec))]
    if isinstance(codec, JsonSchemaCodec):
        copies.append(codec_from_config(json.loads(json.dumps(codec_to_config(codec)))))
    for copy in copies:
        assert (copy, hash(copy), copy.fields) == (codec, hash(codec), codec.fields)

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from kpipe_platform.codecs import DecodeFault, JsonCodec
from kpipe_platform.errors import ConfigError

FLIGHT = JsonCodec(
    "dep_time INT NOT NULL, tailnum STRING, distance BIGINT, price DECIMAL(5,2), "
    "legs ARRAY<STRUCT<code: STRING NOT NULL, at TIMESTAMP>>, counts MAP<STRING, INT>"
)


@pytest.mark.parametrize(
    ("data", "kind", "field", "message"),
    [
        (b"", "empty", None, "the value is empty; expected a JSON object"),
        (b" \r\n\t", "empty", None, "the value contains only white space; expected a JSON object"),
        (b'{"dep_time":\xff}', "not_utf8", None, "not UTF-8: byte 0xff at position 12 (invalid start byte)"),
        (
            b'{"dep_time":517',
            "not_json",
            None,
            "not JSON: Expecting ',' delimiter, found the end of the text at line 1, column 16 (character 15)",
        ),
        (
            b'{"dep_time":517,\n "tailnum": N14228}',
            "not_json",
            None,
            "not JSON: Expecting value, found 'N14228}' at line 2, column 13 (character 29)",
        ),
        (
            b"{dep_time:1}",
            "not_json",
            None,
            "not JSON: Expecting property name enclosed in double quotes, found 'dep_time:1}' "
            "at line 1, column 2 (character 1)",
        ),
        (
            b'{"dep_time" 1}',
            "not_json",
            None,
            "not JSON: Expecting ':' delimiter, found '1}' at line 1, column 13 (character 12)",
        ),
        (
            b'{"legs":[1 2]}',
            "not_json",
            None,
            "not JSON: Expecting ',' delimiter, found '2]}' at line 1, column 12 (character 11)",
        ),
        (
            b'{"tailnum":"N14228',
            "not_json",
            None,
            "not JSON: Unterminated string, found '\"N14228' at line 1, column 12 (character 11)",
        ),
        (
            b'{"tailnum":"N1\n4228"}',
            "not_json",
            None,
            "not JSON: Invalid control character, found '\\n4228\"}' at line 1, column 15 (character 14)",
        ),
        (
            b'{"tailnum":"\\q"}',
            "not_json",
            None,
            "not JSON: Invalid \\escape, found '\\\\q\"}' at line 1, column 13 (character 12)",
        ),
        (
            b'{"dep_time":1} {"dep_time":2}',
            "not_json",
            None,
            "not JSON: text after the object, '{\"dep_time\":', at line 1, column 16 (character 15)",
        ),
        (b"null", "not_an_object", None, "expected a JSON object, found null"),
        (b'[{"dep_time":1}]', "not_an_object", None, 'expected a JSON object, found array [{"dep_time": 1}]'),
        (b'"x"', "not_an_object", None, 'expected a JSON object, found string "x"'),
        (b"517", "not_an_object", None, "expected a JSON object, found number 517"),
        (b"{}", "missing_field", "dep_time", 'field "dep_time" is required but missing'),
        (b'{"Dep_time":1}', "missing_field", "dep_time", 'field "dep_time" is required but missing'),
        (b'{"dep_time":null}', "null_field", "dep_time", 'field "dep_time" is required but null'),
        (
            b'{"dep_time":1,"distance":"abc"}',
            "wrong_type",
            "distance",
            'field "distance": expected bigint, found string "abc"',
        ),
        (
            b'{"dep_time":3000000000}',
            "wrong_type",
            "dep_time",
            'field "dep_time": expected int, found number 3000000000, which is out of range',
        ),
        (b'{"dep_time":5.10}', "wrong_type", "dep_time", 'field "dep_time": expected int, found number 5.10'),
        (b'{"dep_time":true}', "wrong_type", "dep_time", 'field "dep_time": expected int, found boolean true'),
        (
            b'{"dep_time":1,"price":1000}',
            "wrong_type",
            "price",
            'field "price": expected decimal(5,2), found number 1000',
        ),
        (
            b'{"dep_time":1,"legs":[{"code":"EWR"},{"code":"IAH","at":"soon"}]}',
            "wrong_type",
            "legs[1].at",
            'field "legs[1].at": expected timestamp, found string "soon"',
        ),
        (
            b'{"dep_time":1,"legs":[{"code":"EWR"},null,{"code":null}]}',
            "null_field",
            "legs[2].code",
            'field "legs[2].code" is required but null',
        ),
        (
            b'{"dep_time":1,"legs":[{}]}',
            "missing_field",
            "legs[0].code",
            'field "legs[0].code" is required but missing',
        ),
        (
            b'{"dep_time":1,"counts":{"late arrivals":"many"}}',
            "wrong_type",
            'counts["late arrivals"]',
            'field "counts["late arrivals"]": expected int, found string "many"',
        ),
        (
            b'{"dep_time":1,"counts":[1]}',
            "wrong_type",
            "counts",
            'field "counts": expected map<string,int>, found array [1]',
        ),
        (
            b'{"dep_time":"' + b"x" * 100 + b'"}',
            "wrong_type",
            "dep_time",
            f'field "dep_time": expected int, found string "{"x" * 56}...',
        ),
        (
            b'{"dep_time":1,"legs":"' + "é".encode() * 100 + b'"}',
            "wrong_type",
            "legs",
            'field "legs": expected array<struct<code:string,at:timestamp>>, found string "' + "é" * 56 + "...",
        ),
    ],
)
def test_diagnose(data: bytes, kind: str, field: str | None, message: str) -> None:
    fault = FLIGHT.diagnose(data)
    assert fault is not None
    assert (fault.kind, fault.field, fault.message) == (kind, field, message)
    with pytest.raises(DecodeFault) as caught:
        FLIGHT.decode(data)
    assert str(caught.value) == str(fault)


def test_the_first_field_in_the_schema_is_named_whatever_the_order_in_the_record() -> None:
    fault = FLIGHT.diagnose(b'{"counts":1,"distance":"x","tailnum":"N","dep_time":"y"}')
    assert fault is not None
    assert fault.field == "dep_time"


def test_a_fault_of_a_field_goes_before_text_after_the_object() -> None:
    fault = FLIGHT.diagnose(b"{} x")
    assert fault is not None
    assert fault.kind == "missing_field"


def test_a_repeated_name_is_wrong_when_any_of_its_values_is() -> None:
    fault = FLIGHT.diagnose(b'{"dep_time":"x","dep_time":1}')
    assert fault is not None
    assert fault.message == 'field "dep_time": expected int, found string "x"'
    assert FLIGHT.decode(b'{"dep_time":2,"dep_time":1}')["dep_time"] == 1


NOTHING = {"dep_time": None, "tailnum": None, "distance": None, "price": None, "legs": None, "counts": None}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"dep_time":517}', {"dep_time": 517}),
        (b'{"year":2013,"dep_time":517,"tailnum":"N14228"}', {"dep_time": 517, "tailnum": "N14228"}),
        (b'{"dep_time":517,"price":12.5}', {"dep_time": 517, "price": Decimal("12.5")}),
        (b'{"dep_time":517,"tailnum":12.5}', {"dep_time": 517, "tailnum": 12.5}),
        (b"{'dep_time':517,'tailnum':'\\'N\\''}", {"dep_time": 517, "tailnum": "'N'"}),
        ('{"dep_time":517,"tailnum":"\\ud83d\\ude00 é"}'.encode(), {"dep_time": 517, "tailnum": "\N{GRINNING FACE} é"}),
        (b"{'dep_time':517,'tailnum':'\\ud83d\\ude00'}", {"dep_time": 517, "tailnum": "\N{GRINNING FACE}"}),
        (
            b'{"dep_time":1,"legs":[{"code":"EWR","gate":7},null],"counts":{"a":null,"b":2}}',
            {"dep_time": 1, "legs": [{"code": "EWR", "at": None}, None], "counts": {"a": None, "b": 2}},
        ),
    ],
)
def test_decode_gives_the_fields_of_the_schema(data: bytes, value: dict[str, Any]) -> None:
    assert FLIGHT.decode(data) == {**NOTHING, **value}
    assert list(FLIGHT.decode(data)) == list(NOTHING)


def test_without_a_schema_any_object_decodes() -> None:
    codec = JsonCodec()
    assert (codec.has_schema, codec.fields) == (False, T.StructType())
    assert codec.decode(b'{"a":{"b":[1,2.5,null,true]}}') == {"a": {"b": [1, 2.5, None, True]}}
    assert codec.explain(b"[1]").kind == "not_an_object"


def test_the_schema_is_known_in_every_form() -> None:
    codec = JsonCodec("id bigint not null, v varchar(3)")
    assert codec.has_schema
    assert codec.schema == "id BIGINT NOT NULL, v VARCHAR(3)"
    assert codec.fields == T.StructType().add("id", T.LongType(), nullable=False).add("v", T.VarcharType(3))
    assert pickle.loads(pickle.dumps(codec)).fields == codec.fields


@pytest.mark.parametrize(
    ("schema", "where"), [("m MAP<INT, STRING>", "m"), ("s STRUCT<l: ARRAY<MAP<DATE, INT>>>", "s.l")]
)
def test_keys_of_maps_are_strings(schema: str, where: str) -> None:
    with pytest.raises(ConfigError, match=f"field '{where}' is map") as caught:
        JsonCodec(schema)
    assert caught.value.fix == "use MAP<STRING, ...>"


def test_deep_nesting_is_a_fault_and_no_crash() -> None:
    for depth in (200, 1_000, 100_000):
        fault = FLIGHT.diagnose(b'{"dep_time":1,"x":' + b"[" * depth + b"]" * depth + b"}")
        assert fault is not None
        assert fault.message == (
            f"not JSON: nested deeper than 200 levels at line 1, column {18 + 200} (character {17 + 200})"
        )
    # Brackets in strings and beside each other are no nesting.
    assert FLIGHT.diagnose(b'{"dep_time":1,"x":["' + b"[" * 2_000 + b'",' + b"[]," * 2_000 + b"1]}") is None


def test_numbers_of_more_than_a_thousand_digits_are_a_fault() -> None:
    fault = FLIGHT.diagnose(b'{"dep_time":1,"x":' + b"7" * 5_000 + b"}")
    assert fault is not None
    assert fault.message == "not JSON: a number of more than 1,000 digits at line 1, column 19 (character 18)"
    assert FLIGHT.diagnose(b'{"dep_time":1,"tailnum":"' + b"7" * 5_000 + b'"}') is None


@pytest.mark.parametrize(
    "schema", ["id INT, ID STRING", "s STRUCT<a: INT, A: INT>", "l ARRAY<STRUCT<Ab: INT, aB: INT>>"]
)
def test_names_that_differ_only_in_case_are_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match="differ only in case"):
        JsonCodec(schema)

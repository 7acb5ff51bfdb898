from __future__ import annotations

import json

import pytest

from kpipe_platform.codecs.ddl import parse_ddl
from kpipe_platform.codecs.schema import (
    ArrayType,
    Field,
    MapType,
    ScalarType,
    StructType,
    to_ddl,
    to_spark_ddl,
)
from kpipe_platform.codecs.spark_schema import fields_of
from kpipe_platform.errors import ConfigError

INT, STRING, BIGINT = ScalarType("int"), ScalarType("string"), ScalarType("bigint")


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("a INT", (Field("a", INT),)),
        ("a int NOT NULL", (Field("a", INT, required=True),)),
        ("a Int nOt nUlL,\n  b STRING", (Field("a", INT, required=True), Field("b", STRING))),
        ("`dep-time` INT", (Field("dep-time", INT),)),
        ("`a``b` INT", (Field("a`b", INT),)),
        ("a: INT", (Field("a", INT),)),
        ("2a INT, _b INT", (Field("2a", INT), Field("_b", INT))),
        ("a INT COMMENT 'minutes'", (Field("a", INT, comment="minutes"),)),
        ('a INT NOT NULL COMMENT "it\'s"', (Field("a", INT, required=True, comment="it's"),)),
        ("a INT COMMENT 'it''s'", (Field("a", INT, comment="it's"),)),
        ("a INT COMMENT 'it\\'s'", (Field("a", INT, comment="it's"),)),
        ("a INT, A INT", (Field("a", INT), Field("A", INT))),
        ("timestamp TIMESTAMP, struct INT", (Field("timestamp", ScalarType("timestamp")), Field("struct", INT))),
        ("a ARRAY<INT>", (Field("a", ArrayType(INT)),)),
        ("m MAP<STRING, BIGINT>", (Field("m", MapType(STRING, BIGINT)),)),
        ("a array<array<int>>", (Field("a", ArrayType(ArrayType(INT))),)),
        (
            "a ARRAY<STRUCT<x: INT NOT NULL, y STRING COMMENT 'why'>>",
            (
                Field(
                    "a",
                    ArrayType(StructType((Field("x", INT, required=True), Field("y", STRING, comment="why")))),
                ),
            ),
        ),
        ("STRUCT<a: INT, b: STRING>", (Field("a", INT), Field("b", STRING))),
        ("d DECIMAL(10,2)", (Field("d", ScalarType("decimal", (10, 2))),)),
        (
            "d DEC, e NUMERIC(5)",
            (Field("d", ScalarType("decimal", (10, 0))), Field("e", ScalarType("decimal", (5, 0)))),
        ),
        ("v VARCHAR(20), c CHAR(3)", (Field("v", ScalarType("varchar", (20,))), Field("c", ScalarType("char", (3,))))),
    ],
)
def test_parse(ddl: str, fields: tuple[Field, ...]) -> None:
    assert parse_ddl(ddl) == fields
    assert parse_ddl(to_ddl(fields)) == fields


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("BOOLEAN", "boolean"),
        ("TINYINT", "tinyint"),
        ("byte", "tinyint"),
        ("SMALLINT", "smallint"),
        ("short", "smallint"),
        ("INTEGER", "int"),
        ("LONG", "bigint"),
        ("REAL", "float"),
        ("FLOAT", "float"),
        ("DOUBLE", "double"),
        ("BINARY", "binary"),
        ("DATE", "date"),
        ("TIMESTAMP", "timestamp"),
        ("TIMESTAMP_LTZ", "timestamp"),
        ("TIMESTAMP_NTZ", "timestamp_ntz"),
    ],
)
def test_names_of_types(name: str, canonical: str) -> None:
    assert parse_ddl(f"x {name}") == (Field("x", ScalarType(canonical)),)


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "the schema is empty at position 1"),
        ("   ", "the schema is empty at position 4"),
        ("a", "expected a type, found the end at position 2"),
        ("a INTT", "expected a type, found 'INTT' at position 3"),
        ("dep-time INT", "expected a type, found '-' at position 4"),
        ("a.b INT", "expected a type, found '.' at position 2"),
        ("12 INT", "expected a field name, found '12' at position 1"),
        ("é INT", "expected a field name, found 'é' at position 1"),
        ("`` INT", "expected a field name, found '``' at position 1"),
        ("a INT,", "expected a field name, found the end at position 7"),
        ("a INT b INT", "expected ',' or the end, found 'b' at position 7"),
        ("a INT NOT", "expected NULL after NOT, found the end at position 10"),
        ("a INT COMMENT x", "expected a quoted text after COMMENT, found 'x' at position 15"),
        ("a INT COMMENT 'x' NOT NULL", "expected ',' or the end, found 'NOT' at position 19"),
        ("a INT, b STRING, a INT", "field 'a' is there twice at position 18"),
        ("a STRUCT<x: INT, x: INT>", "field 'x' is there twice at position 18"),
        ("a ARRAY", "expected '<', found the end at position 8"),
        ("a ARRAY<INT", "expected '>', found the end at position 12"),
        ("a MAP<STRING>", "expected ',', found '>' at position 13"),
        ("a STRUCT<>", "expected a field name, found '>' at position 10"),
        ("a DECIMAL(39,0)", "a decimal cannot have (39, 0) at position 3"),
        ("a DECIMAL(5,6)", "a decimal cannot have (5, 6) at position 3"),
        ("a DECIMAL(x)", "expected a number, found 'x' at position 11"),
        ("a VARCHAR", "varchar needs one length at position 3"),
        ("a INT(4)", "int takes no argument at position 3"),
        ("a VARIANT", "expected a type, found 'VARIANT' at position 3"),
        ("STRUCT<a: INT> x", "expected ',' or the end, found 'x' at position 16"),
    ],
)
def test_what_is_wrong_is_named_with_its_position(ddl: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ddl(ddl)
    assert f"schema: {message} of {ddl!r}" in caught.value.message
    assert caught.value.fix


def test_ddl_for_spark_has_no_constraints_no_comments_and_no_varchar() -> None:
    fields = parse_ddl(
        "a INT NOT NULL COMMENT 'x', `b-c` VARCHAR(5), s STRUCT<x: CHAR(1) NOT NULL>, m MAP<STRING, DATE>"
    )
    assert to_spark_ddl(fields) == "a INT, `b-c` STRING, s STRUCT<x: STRING>, m MAP<STRING, DATE>"


SPARK_JSON = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {"name": "d", "type": "decimal(10,2)", "nullable": True, "metadata": {"comment": "dollars"}},
        {"name": "t", "type": "timestamp_ntz", "nullable": True, "metadata": {}},
        {
            "name": "legs",
            "nullable": True,
            "metadata": {},
            "type": {
                "type": "array",
                "containsNull": False,
                "elementType": {
                    "type": "struct",
                    "fields": [{"name": "code", "type": "string", "nullable": False, "metadata": {}}],
                },
            },
        },
        {
            "name": "m",
            "nullable": True,
            "metadata": {},
            "type": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
        },
    ],
}
AS_DDL = (
    "id BIGINT NOT NULL, d DECIMAL(10,2) COMMENT 'dollars', t TIMESTAMP_NTZ, "
    "legs ARRAY<STRUCT<code: STRING NOT NULL>>, m MAP<STRING, INT>"
)


class LikeStructType:
    def jsonValue(self) -> dict[str, object]:
        return SPARK_JSON


@pytest.mark.parametrize("schema", [LikeStructType(), json.dumps(SPARK_JSON), AS_DDL])
def test_schemas_in_every_form_are_the_same(schema: object) -> None:
    assert to_ddl(fields_of(schema)) == AS_DDL


def test_a_real_spark_schema() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    schema = types.StructType(
        [
            types.StructField("id", types.LongType(), nullable=False),
            types.StructField("legs", types.ArrayType(types.StructType([types.StructField("c", types.ByteType())]))),
        ]
    )
    assert to_ddl(fields_of(schema)) == "id BIGINT NOT NULL, legs ARRAY<STRUCT<c: TINYINT>>"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (7, "schema: int is not a schema"),
        ("{broken", "schema: the text starts with { and is not JSON"),
        ('{"type":"array","elementType":"long"}', "schema: a record needs a struct, found array<bigint>"),
        ('{"type":"struct"}', "schema: the schema lacks 'fields'"),
        (
            '{"type":"struct","fields":[{"name":"v","type":"variant"}]}',
            "schema: type 'variant' of field 'v' is not supported",
        ),
        (
            '{"type":"struct","fields":[{"name":"v","type":{"type":"udt"}}]}',
            "schema: the type of field 'v' is not supported",
        ),
    ],
)
def test_what_is_no_schema(schema: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fields_of(schema)
    assert caught.value.message.startswith(message)

from __future__ import annotations

import json

import pytest
from pyspark.sql import types as T

from kpipe_platform.codecs.ddl import parse_ddl
from kpipe_platform.codecs.schema import schema_of, to_ddl
from kpipe_platform.codecs.types import TimestampMicrosType, TimestampMillisType, json_type, stage_type
from kpipe_platform.errors import ConfigError

INT, STRING, BIGINT = T.IntegerType(), T.StringType(), T.LongType()


def field(name: str, kind: T.DataType, *, required: bool = False, comment: str | None = None) -> T.StructField:
    return T.StructField(name, kind, not required, {} if comment is None else {"comment": comment})


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("a INT", (field("a", INT),)),
        ("a int NOT NULL", (field("a", INT, required=True),)),
        ("a Int nOt nUlL,\n  b STRING", (field("a", INT, required=True), field("b", STRING))),
        ("`dep-time` INT", (field("dep-time", INT),)),
        ("`a``b` INT", (field("a`b", INT),)),
        ("a: INT", (field("a", INT),)),
        ("2a INT, _b INT", (field("2a", INT), field("_b", INT))),
        ("a INT COMMENT 'minutes'", (field("a", INT, comment="minutes"),)),
        ('a INT NOT NULL COMMENT "it\'s"', (field("a", INT, required=True, comment="it's"),)),
        ("a INT COMMENT 'it''s'", (field("a", INT, comment="it's"),)),
        ("a INT COMMENT 'it\\'s'", (field("a", INT, comment="it's"),)),
        ("a STRUCT<>, b INT", (field("a", T.StructType()), field("b", INT))),
        ("a INT, A INT", (field("a", INT), field("A", INT))),
        ("timestamp TIMESTAMP, struct INT", (field("timestamp", T.TimestampType()), field("struct", INT))),
        ("a ARRAY<INT>", (field("a", T.ArrayType(INT)),)),
        ("m MAP<STRING, BIGINT>", (field("m", T.MapType(STRING, BIGINT)),)),
        ("a array<array<int>>", (field("a", T.ArrayType(T.ArrayType(INT))),)),
        (
            "a ARRAY<STRUCT<x: INT NOT NULL, y STRING COMMENT 'why'>>",
            (
                field(
                    "a",
                    T.ArrayType(T.StructType([field("x", INT, required=True), field("y", STRING, comment="why")])),
                ),
            ),
        ),
        ("STRUCT<a: INT, b: STRING>", (field("a", INT), field("b", STRING))),
        ("d DECIMAL(10,2)", (field("d", T.DecimalType(10, 2)),)),
        (
            "d DEC, e NUMERIC(5)",
            (field("d", T.DecimalType(10, 0)), field("e", T.DecimalType(5, 0))),
        ),
        ("v VARCHAR(20), c CHAR(3)", (field("v", T.VarcharType(20)), field("c", T.CharType(3)))),
    ],
)
def test_parse(ddl: str, fields: tuple[T.StructField, ...]) -> None:
    struct = T.StructType(list(fields))
    assert parse_ddl(ddl) == struct
    assert parse_ddl(to_ddl(struct)) == struct


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BOOLEAN", T.BooleanType()),
        ("TINYINT", T.ByteType()),
        ("byte", T.ByteType()),
        ("SMALLINT", T.ShortType()),
        ("short", T.ShortType()),
        ("INTEGER", T.IntegerType()),
        ("LONG", T.LongType()),
        ("REAL", T.FloatType()),
        ("FLOAT", T.FloatType()),
        ("DOUBLE", T.DoubleType()),
        ("BINARY", T.BinaryType()),
        ("DATE", T.DateType()),
        ("TIMESTAMP", T.TimestampType()),
        ("TIMESTAMP_LTZ", T.TimestampType()),
        ("TIMESTAMP_NTZ", T.TimestampNTZType()),
        ("TIMESTAMP_MILLIS", TimestampMillisType()),
        ("timestamp_micros", TimestampMicrosType()),
    ],
)
def test_names_of_types(name: str, kind: T.DataType) -> None:
    struct = T.StructType([field("x", kind)])
    assert parse_ddl(f"x {name}") == struct
    assert parse_ddl(to_ddl(struct)) == struct


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
        ("a INT, b STRING, a INT", "field 'a' is declared twice at position 18"),
        ("a STRUCT<x: INT, x: INT>", "field 'x' is declared twice at position 18"),
        ("a ARRAY", "expected '<', found the end at position 8"),
        ("a ARRAY<INT", "expected '>', found the end at position 12"),
        ("a MAP<STRING>", "expected ',', found '>' at position 13"),
        ("STRUCT<>", "the schema is empty at position 9"),
        ("a DECIMAL(39,0)", "invalid precision and scale (39, 0) of a decimal at position 3"),
        ("a DECIMAL(5,6)", "invalid precision and scale (5, 6) of a decimal at position 3"),
        ("a DECIMAL(x)", "expected a number, found 'x' at position 11"),
        ("a VARCHAR", "varchar needs a length at position 3"),
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


DECLARED = parse_ddl(
    "a INT NOT NULL COMMENT 'x', b VARCHAR(5), s STRUCT<x: CHAR(1) NOT NULL, at: TIMESTAMP_MILLIS>, m MAP<STRING, DATE>"
)


def test_the_types_for_from_json_have_no_constraints_no_comments_and_no_varchar() -> None:
    assert json_type(DECLARED) == parse_ddl("a INT, b STRING, s STRUCT<x: STRING, at: BIGINT>, m MAP<STRING, DATE>")


def test_a_stage_sees_times_in_place_of_numbers() -> None:
    seen = parse_ddl("a INT, b STRING, s STRUCT<x: STRING, at: TIMESTAMP>, m MAP<STRING, DATE>")
    assert stage_type(DECLARED) == seen
    required = parse_ddl("a INT NOT NULL, b STRING, s STRUCT<x: STRING NOT NULL, at: TIMESTAMP>, m MAP<STRING, DATE>")
    assert stage_type(DECLARED, keep_not_null=True) == required


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


@pytest.mark.parametrize("schema", [T.StructType.fromJson(SPARK_JSON), json.dumps(SPARK_JSON), AS_DDL])
def test_schemas_in_every_form_are_the_same(schema: object) -> None:
    assert schema_of(schema) == parse_ddl(AS_DDL)
    assert to_ddl(schema_of(schema)) == AS_DDL


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (7, "schema: int is not a schema"),
        ("{broken", "schema: the text starts with { but is not JSON"),
        (
            '{"type":"array","elementType":"long","containsNull":true}',
            "schema: a record needs a struct, found array<bigint>",
        ),
        (T.StructType().add("s", T.StringType("UNICODE")), "schema: expected ',' or the end, found 'COLLATE'"),
        (T.StructType().add("v", T.DayTimeIntervalType()), "schema: expected a type, found 'INTERVAL'"),
        (T.StructType().add("v", T.LongType()).add("v", T.LongType()), "schema: field 'v' is declared twice"),
        ('{"type":"struct","fields":[7]}', "schema: the JSON text is not a Spark schema"),
        ('{"type":"struct"}', "schema: the JSON text lacks 'fields'"),
        (
            '{"type":"struct","fields":[{"name":"v","type":"variant"}]}',
            "schema: expected a type, found 'VARIANT' at position 3 of 'v VARIANT'",
        ),
        (
            '{"type":"struct","fields":[{"name":"v","type":{"type":"udt"}}]}',
            "schema: the JSON text lacks 'pyClass'",
        ),
    ],
)
def test_what_is_no_schema(schema: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema_of(schema)
    assert caught.value.message.startswith(message)

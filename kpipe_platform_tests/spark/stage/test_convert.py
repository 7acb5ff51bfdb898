"""A value leaves as the same bytes, whatever form a stage takes it in."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from random import Random
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import JsonCodec, KafkaRecord, TextCodec
from kpipe_platform.codecs.types import json_type
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.columns import as_key, as_timestamp_ms, column_at, encoded_value
from kpipe_platform.spark.sink.output_schema import check_output_schema
from kpipe_platform.spark.source.reader import _SOURCE_COLUMNS
from kpipe_platform.spark.source.rows import TopicCodecs, decode_rows
from kpipe_platform.spark.stage.convert import to_form, to_frame
from kpipe_platform.spark.stage.map_records import map_records
from kpipe_platform_tests.spark.conftest import NOON
from kpipe_platform_tests.values import NAMES, SOURCE, WITHOUT_MAPS, record, text_of

pytestmark = pytest.mark.spark


def read(spark: SparkSession, values: list[str], codec: JsonCodec = SOURCE) -> DataFrame:
    raw = [(None, value.encode(), "orders", 0, offset, NOON, 0, []) for offset, value in enumerate(values)]
    frame = spark.createDataFrame(raw, _SOURCE_COLUMNS)
    return decode_rows(frame, TopicCodecs(TextCodec(), codec), src=F.lit(0)).good


def written(frame: DataFrame, codec: JsonCodec, *, records: bool = False) -> list[bytes]:
    value = F.col("value") if records else encoded_value(codec, frame.schema)
    return [bytes(row[1]) for row in sorted(frame.select("_kafka.offset", value.alias("value")).collect())]


def texts(frame: DataFrame, codec: JsonCodec) -> list[str]:
    return [row[0] for row in frame.select(encoded_value(codec, frame.schema).cast("string")).collect()]


def through(spark: SparkSession, frame: DataFrame, form: str, codec: JsonCodec, source: JsonCodec) -> list[bytes]:
    """The bytes that a stage writes which takes this form and returns it as it is."""
    if form.startswith("map_records"):
        batch: Any = form.partition(" ")[2] or None
        back = map_records(frame, lambda rows: rows, schema=json_type(source.fields), batch=batch)
    else:
        back = to_frame(spark, to_form(frame, form, source), codec, source.fields)
    if form != "records":
        check_output_schema(back, codec, "target")
    return written(back, codec, records=form == "records")


def without_nulls(value: Any, name: str = "") -> Any:
    """The value as it is written: nulls in structs are left out, those in maps and lists stay."""
    is_map = name == "m"
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if one is not None or is_map}
        return {key: without_nulls(one, "" if is_map else key) for key, one in kept.items()}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


FORMS = ("pandas", "pyarrow", "records", "map_records", "map_records pandas", "map_records arrow")


def keys_and_times(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Each column as the record's key, and those that can be as its timestamp."""
    names = [name for name in frame.columns if name != "_kafka"]
    found = [as_key(*column_at(frame.schema, name)) for name in names]
    times = [NAMES[kind] for kind in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BIGINT")]
    found += [as_timestamp_ms(*column_at(frame.schema, name), name) for name in times]
    columns = [column.alias(str(number)) for number, column in enumerate(found)]
    return [tuple(row)[1:] for row in sorted(frame.select("_kafka.offset", *columns).collect(), key=lambda row: row[0])]


def test_a_value_leaves_as_it_came_and_as_the_same_bytes_in_every_form(spark: SparkSession) -> None:
    random = Random(16)
    values = [record(random) for _ in range(100)]
    frame = read(spark, [text_of(value) for value in values]).cache()
    bare = frame.select(*(field.name for field in WITHOUT_MAPS.fields), "_kafka")
    try:
        for codec in (SOURCE, JsonCodec(include_nulls=True)):
            by_spark = written(frame, codec)
            for form in FORMS if codec.has_schema else FORMS[:3]:
                found = through(spark, frame, form, codec, SOURCE)
                assert [(form, *pair) for pair in zip(found, by_spark, strict=True) if pair[0] != pair[1]] == []
            without = JsonCodec(WITHOUT_MAPS.schema if codec.has_schema else None, include_nulls=codec.include_nulls)
            found = through(spark, bare, "polars", without, WITHOUT_MAPS)
            assert [pair for pair in zip(found, written(bare, without), strict=True) if pair[0] != pair[1]] == []
            left = [json.loads(data, parse_float=Decimal) for data in by_spark]
            if codec.include_nulls:
                left = [without_nulls(value) for value in left]
            assert left == [json.loads(text_of(without_nulls(v)), parse_float=Decimal) for v in values]
        kept = keys_and_times(bare)
        for form in ("pandas", "pyarrow", "polars"):
            back = to_frame(spark, to_form(bare, form, WITHOUT_MAPS), JsonCodec(), WITHOUT_MAPS.fields)
            assert (form, keys_and_times(back)) == (form, kept)
    finally:
        frame.unpersist()


@pytest.mark.parametrize("form", ["spark", "pandas", "pyarrow", "polars", "records"])
def test_microseconds_and_large_ids_beside_nulls_stay(spark: SparkSession, form: str) -> None:
    codec = JsonCodec("id BIGINT, n INT, at TIMESTAMP")
    sent = ['{"id":9007199254740993,"at":"2026-01-05T10:00:00.123456Z"}', '{"n":7}']
    frame = read(spark, sent, codec)
    for target in (JsonCodec(), codec):
        assert [data.decode() for data in through(spark, frame, form, target, codec)] == sent


def test_times_inside_of_records_have_the_zone_of_the_session(spark: SparkSession) -> None:
    codec = JsonCodec(
        "t TIMESTAMP, s STRUCT<t: TIMESTAMP>, a ARRAY<STRUCT<t: TIMESTAMP>>, m MAP<STRING, ARRAY<TIMESTAMP>>, "
        "n ARRAY<TIMESTAMP_NTZ>"
    )
    at, first = '"2026-11-01T01:30:00.000000-04:00"', '"0001-01-02T00:00:00.000000Z"'
    sent = [
        f'{{"t":{at},"s":{{"t":{at}}},"a":[{{"t":{at}}},null],"m":{{"k":[{at},null]}},"n":["2026-11-01T01:30:00.000000"]}}',
        f'{{"t":{first},"a":[{{"t":{first}}}]}}',
    ]
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        frame = read(spark, sent, codec)
        by_spark = written(frame, codec)
        assert by_spark[0].decode() == sent[0]
        for form in ("records", "pandas", "pyarrow"):
            assert (form, through(spark, frame, form, codec, codec)) == (form, by_spark)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_records_keep_the_milliseconds_of_their_timestamp(spark: SparkSession) -> None:
    codec = JsonCodec("id INT")
    times = [NOON + dt.timedelta(milliseconds=n) for n in range(200)]
    raw = [(None, b"{}", "orders", 0, n, time, 0, []) for n, time in enumerate(times)]
    frame = decode_rows(spark.createDataFrame(raw, _SOURCE_COLUMNS), TopicCodecs(TextCodec(), codec), src=F.lit(0)).good
    found = [record.timestamp_ms for record in to_form(frame, "records", codec)]
    assert found == [1_357_041_600_000 + n for n in range(200)]


def test_a_pandas_column_of_nulls_is_no_key_and_no_timestamp(spark: SparkSession) -> None:
    frame = to_frame(spark, pd.DataFrame({"at": [None, None]}), JsonCodec())
    column, kind = column_at(frame.schema, "at")
    assert frame.select(as_key(column, kind), as_timestamp_ms(column, kind, "at")).collect() == [(None, None)] * 2


class TestMaps:
    CODEC = JsonCodec("m MAP<STRING, BIGINT>")
    SENT: ClassVar = ['{"m":{"a":1,"b":null}}', '{"m":{"c":2}}']

    @pytest.mark.parametrize("form", ["pandas", "records"])
    def test_are_dicts(self, spark: SparkSession, form: str) -> None:
        found = to_form(read(spark, self.SENT, self.CODEC), form, self.CODEC)
        first = found[0].value["m"] if form == "records" else found["m"][0]
        assert first == {"a": 1, "b": None}

    @pytest.mark.parametrize("codec", [JsonCodec(), CODEC], ids=["undeclared", "declared"])
    def test_dicts_that_a_stage_makes_leave_as_objects(self, spark: SparkSession, codec: JsonCodec) -> None:
        made: list[dict[str, Any]] = [{"x": 1, "y": None}, {}]
        frame = to_frame(spark, pd.DataFrame({"m": made}), codec, self.CODEC.fields)
        check_output_schema(frame, codec, "target")
        value = encoded_value(codec, frame.schema)
        assert [row[0] for row in frame.select(value.cast("string")).collect()] == [
            '{"m":{"x":1,"y":null}}',
            '{"m":{}}',
        ]
        records = [KafkaRecord(value={"m": one}) for one in made]
        found = to_frame(spark, records, codec, self.CODEC.fields).collect()
        assert [bytes(row["value"]) for row in found] == [b'{"m":{"x":1,"y":null}}', b'{"m":{}}']

    def test_polars_has_none(self, spark: SparkSession) -> None:
        with pytest.raises(ConfigError, match="polars has no type for MAP; it occurs in 'm'"):
            to_form(read(spark, self.SENT, self.CODEC), "polars", self.CODEC)


def test_a_pandas_column_takes_its_declared_type_where_nothing_changes(spark: SparkSession) -> None:
    codec = JsonCodec("id INT, price DECIMAL(10,2), note STRING, legs ARRAY<STRUCT<code: STRING, n: INT>>")
    made = pd.DataFrame(
        {"id": [1.0, None], "price": [Decimal("1.5"), None], "note": [None, None], "legs": [[{"code": "a"}], []]}
    )
    frame = to_frame(spark, made, codec)
    check_output_schema(frame, codec, "target")
    value = encoded_value(codec, frame.schema).cast("string")
    assert [row[0] for row in frame.select(value).collect()] == [
        '{"id":1,"price":1.50,"legs":[{"code":"a"}]}',
        '{"legs":[]}',
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"id": [1.5]}, "'id' is double, declared as int"),
        ({"id": [2**40]}, "'id' is bigint, declared as int"),
        ({"legs": [[{"code": "a", "more": 1}]]}, "'legs' is array<struct<code:string,more:bigint>>, declared as"),
        ({"legs": ["text"]}, "'legs' is string, declared as array<struct<code:string>>"),
        ({"id": [1, "x"]}, "column 'id' of the pandas.DataFrame has no single type"),
    ],
)
def test_a_pandas_column_that_does_not_fit_is_refused(
    spark: SparkSession, column: dict[str, list[Any]], message: str
) -> None:
    codec = JsonCodec("id INT" if "id" in column else "legs ARRAY<STRUCT<code: STRING>>")
    with pytest.raises(ConfigError) as caught:
        check_output_schema(to_frame(spark, pd.DataFrame(column), codec), codec, "target")
    assert message in str(caught.value)


_WALL_TIME = dt.datetime(2026, 1, 5, 10, 30)  # noqa: DTZ001  # a time without a zone


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1767225600000], "TIMESTAMP", "bigint"),
        ([1767225600000], "TIMESTAMP_NTZ", "bigint"),
        ([1767225600000], "TIMESTAMP_MILLIS", "bigint"),
        ([20000], "DATE", "bigint"),
        ([{"n": 1.5}], "STRUCT<n: INT>", "struct<n:double>"),
        ([{"n": 20000}], "STRUCT<n: DATE>", "struct<n:bigint>"),
        ([[1767225600000]], "ARRAY<TIMESTAMP>", "array<bigint>"),
        ([_WALL_TIME.date(), None], "TIMESTAMP", "date"),
        ([_WALL_TIME, None], "DATE", "timestamp_ntz"),
        ([{"n": _WALL_TIME}], "STRUCT<n: TIMESTAMP>", "struct<n:timestamp_ntz>"),
        ([_WALL_TIME.astimezone(dt.timezone.utc)], "TIMESTAMP_NTZ", "timestamp"),
        ([[_WALL_TIME.astimezone(dt.timezone.utc)]], "ARRAY<TIMESTAMP_NTZ>", "array<timestamp>"),
        ([True], "INT", "boolean"),
        ([True, None], "INT", "boolean"),
        ([1], "BOOLEAN", "bigint"),
        (["text"], "BINARY", "string"),
        ([b"text"], "STRING", "binary"),
        ([1e39], "FLOAT", "double"),
    ],
)
def test_a_pandas_column_is_not_converted_where_that_changes_a_value(
    spark: SparkSession, values: list[Any], kind: str, found: str
) -> None:
    codec = JsonCodec(f"x {kind}")
    columns = [pd.Series(values, dtype=object)]
    if not isinstance(values[0], dt.datetime | dict | list):
        columns.append(pd.Series(values))
    for column in columns:
        with pytest.raises(ConfigError, match=f"'x' is {found}, declared as"):
            check_output_schema(to_frame(spark, pd.DataFrame({"x": column}), codec), codec, "target")


def test_times_without_a_zone_are_those_of_the_session_in_every_pandas_column(spark: SparkSession) -> None:
    codec = JsonCodec("a TIMESTAMP, b TIMESTAMP")
    made = pd.DataFrame({"a": pd.Series([_WALL_TIME], dtype=object), "b": pd.Series([_WALL_TIME])})
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        frame = to_frame(spark, made, codec)
        check_output_schema(frame, codec, "target")
        expected = '{"a":"2026-01-05T10:30:00.000000-05:00","b":"2026-01-05T10:30:00.000000-05:00"}'
        assert texts(frame, codec) == [expected]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    mixed = pd.DataFrame({"a": pd.Series([_WALL_TIME.astimezone(dt.timezone.utc), _WALL_TIME], dtype=object)})
    with pytest.raises(ConfigError, match="has no single type"):
        to_frame(spark, mixed, JsonCodec("a TIMESTAMP"))


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("'text' as legs", "'legs' is string, declared as array<struct<code:string,n:map<string,int>>>"),
        ("array(named_struct('code', 1, 'n', map('a', 1))) as legs", "'legs' is array<struct<code:int,"),
        ("array(named_struct('code', 'x')) as legs", "'legs' is array<struct<code:string>>, declared"),
        ("array(named_struct('code', 'x', 'n', map('a', 1L))) as legs", "'legs' is array<struct<"),
        ("array(named_struct('n', map('a', 1), 'code', 'x')) as legs", None),
        ("array() as legs", None),
        ("null as legs", None),
    ],
)
def test_types_inside_of_an_output_are_compared(spark: SparkSession, sql: str, problem: str | None) -> None:
    codec = JsonCodec("legs ARRAY<STRUCT<code: VARCHAR(3), n: MAP<STRING, INT>>>")
    frame = spark.sql(f"select {sql}")
    if problem is None:
        check_output_schema(frame, codec, "target")
        return
    with pytest.raises(ConfigError) as caught:
        check_output_schema(frame, codec, "target")
    assert problem.replace("code:string,n", "code:varchar(3),n") in str(caught.value)


def test_an_arrow_table_keeps_its_map(spark: SparkSession) -> None:
    table = pa.table({"m": pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64()))})
    frame = to_frame(spark, table, JsonCodec())
    assert (
        frame.select(encoded_value(JsonCodec(), frame.schema).cast("string")).collect()[0][0]
        == '{"m":{"a":1,"b":null}}'
    )

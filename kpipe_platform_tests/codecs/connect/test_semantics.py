"""The semantic types in Python and in Spark, which must agree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.connect.semantics import SEMANTICS, UnfitError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = [T.TimestampType(), T.TimestampNTZType()]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def number(value: int) -> bytes:
    return value.to_bytes(17, "big", signed=True)[1:]


UNSCALED = [
    *(number(sign * n) for sign in (1, -1) for n in (0, 1, 12345, 99999, 10**10, 2**63, 2**64, 10**34 + 7, 10**38 - 1)),
    number(10**38),
    number(-(10**38)),
    number(2**127 - 1),
    number(-(2**127)),
    b"",
    b"\x00" * 17,
    b"\xff",
    b"\x80",
    b"\x7f",
]
EDGES: list[tuple[str, list[T.DataType], list[Any]]] = [
    ("io.debezium.time.Date", [T.DateType()], [0, -1, -719162, -719163, 2932896, 2932897, 2**31 - 1, -(2**31)]),
    ("io.debezium.time.Time", [T.StringType()], [0, 1, 86_399_999, 86_400_000, 86_400_001, -1]),
    ("io.debezium.time.MicroTime", [T.StringType()], [0, 14_711_789_000, 86_399_999_999]),
    ("io.debezium.time.NanoTime", [T.StringType()], [123_456_789, 86_399_999_999_999]),
    (
        "io.debezium.time.Timestamp",
        TIMES,
        [0, -1, 1559033904863, 253402300799999, 253402300800000, -62135596800000, -62135596800001, 2**63 - 1, -(2**63)],
    ),
    (
        "io.debezium.time.MicroTimestamp",
        TIMES,
        # The last two are PostgreSQL's infinity and -infinity.
        [0, -1, 1529507596945104, 253402300799999999, 253402300800000000, 9223372036825200000, -9223372036832400000],
    ),
    ("io.debezium.time.NanoTimestamp", TIMES, [0, -1, -1000, -1001, 1529507596945104999, 2**63 - 1, -(2**63)]),
    ("io.debezium.time.IsoDate", [T.DateType()], ["2017-09-15Z", "2017-09-15", "2017-02-30Z", "0000-01-01Z", "x"]),
    (
        "io.debezium.time.IsoTimestamp",
        TIMES,
        [
            "2019-07-09T02:28:57.123456Z",
            "2019-07-09T02:28:57.123456789Z",
            "2019-07-09T02:28:57+02:00",
            "2019-07-09T02:28Z",
            "0001-01-01T00:00:00+01:00",
            "9999-12-31T23:59:59.9-01:00",
            "1800-01-01T00:00:00+18:00",
            "2019-02-30T00:00:00Z",
            "2019-07-09 02:28:57Z",
            "2019-07-09T02:28:57.1",
            "2019-07-09T02:28:57Z\n",
        ],
    ),
    ("io.debezium.time.ZonedTimestamp", TIMES[:1], ["2019-07-09T02:28:57.1Z", "5", ""]),
    (
        "org.apache.kafka.connect.data.Decimal",
        [T.DecimalType(38, 0), T.DecimalType(10, 2), T.DecimalType(38, 38), T.DecimalType(5, 5)],
        UNSCALED,
    ),
    (
        "io.debezium.data.VariableScaleDecimal",
        [T.DecimalType(38, 0), T.DecimalType(10, 2)],
        [
            *(
                {"scale": scale, "value": number(n)}
                for scale in (0, 1, 3, -2, 100, -100, 101, 37)
                for n in (0, 1, -120, 1000, 12345)
            ),
            {"scale": None, "value": b"1"},
            {"scale": 1, "value": None},
        ],
    ),
]


def in_python(name: str, kind: T.DataType, value: Any) -> Any:
    try:
        return SEMANTICS[name].from_record(value, kind)
    except UnfitError:
        return None


def in_spark(session: SparkSession, name: str, kind: T.DataType, values: list[Any]) -> list[Any]:
    semantic = SEMANTICS[name]
    frame = session.createDataFrame([(one,) for one in values], T.StructType().add("v", semantic.physical(kind)))
    column = semantic.column(F.col("v"), kind)
    if isinstance(kind, T.TimestampType):
        # Python's own conversion fails for the last hours of the calendar in some time zones.
        numbers = [row[0] for row in frame.select(F.unix_micros(column)).collect()]
        return [None if n is None else EPOCH + dt.timedelta(microseconds=n) for n in numbers]
    return list(frame.select(column.alias("v")).toArrow()["v"].to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize(("name", "kind", "values"), [(n, k, v) for n, kinds, v in EDGES for k in kinds])
def test_spark_and_python_agree(spark: SparkSession, name: str, kind: T.DataType, values: list[Any]) -> None:
    expected = [in_python(name, kind, value) for value in values]
    assert in_spark(spark, name, kind, values) == expected
    assert any(one is not None for one in expected)


PRICE = T.DecimalType(10, 2)
FAR = st.integers(-(2**63), 2**63 - 1)
MADE: list[tuple[str, T.DataType, Callable[[], st.SearchStrategy[Any]]]] = [
    ("io.debezium.time.Date", T.DateType(), lambda: st.integers(-(2**31), 2**31 - 1)),
    ("io.debezium.time.Timestamp", T.TimestampNTZType(), lambda: FAR | st.integers(-(10**14), 10**15)),
    ("io.debezium.time.MicroTimestamp", T.TimestampType(), lambda: FAR | st.integers(-(10**17), 10**18)),
    ("io.debezium.time.NanoTimestamp", T.TimestampNTZType(), lambda: FAR),
    ("io.debezium.time.MicroTime", T.StringType(), lambda: st.integers(-1, 86_400_000_001)),
    ("org.apache.kafka.connect.data.Decimal", T.DecimalType(38, 9), lambda: st.binary(max_size=17)),
    ("org.apache.kafka.connect.data.Decimal", PRICE, lambda: st.binary(max_size=6)),
    (
        "io.debezium.data.VariableScaleDecimal",
        PRICE,
        lambda: st.fixed_dictionaries({"scale": st.integers(-12, 12), "value": st.binary(min_size=1, max_size=6)}),
    ),
]


@pytest.mark.spark
@pytest.mark.parametrize(("name", "kind", "values"), MADE)
@hypothesis.settings(max_examples=3, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_spark_and_python_agree_on_any_value(
    spark: SparkSession, name: str, kind: T.DataType, values: Callable[[], st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    made = data.draw(st.lists(values(), min_size=100, max_size=200))
    assert in_spark(spark, name, kind, made) == [in_python(name, kind, value) for value in made]


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("io.debezium.time.Date", T.DateType(), dt.date(1, 1, 1)),
        ("io.debezium.time.Time", T.StringType(), "04:05:11.789"),
        ("io.debezium.time.NanoTime", T.StringType(), "23:59:59.999999999"),
        ("io.debezium.time.Timestamp", T.TimestampNTZType(), dt.datetime.fromisoformat("9999-12-31T23:59:59.999")),
        ("io.debezium.time.MicroTimestamp", T.TimestampType(), EPOCH - dt.timedelta(microseconds=1)),
        ("io.debezium.time.ZonedTimestamp", T.TimestampType(), EPOCH),
        ("io.debezium.time.IsoDate", T.DateType(), dt.date(9999, 12, 31)),
        ("org.apache.kafka.connect.data.Decimal", PRICE, Decimal("-12345678.90")),
        ("io.debezium.data.VariableScaleDecimal", PRICE, Decimal("0.01")),
        ("STRING", PRICE, Decimal("1E+3")),
        ("FLOAT64", PRICE, Decimal("1.5")),
    ],
)
def test_a_value_leaves_as_it_came(name: str, kind: T.DataType, value: Any) -> None:
    semantic = SEMANTICS[name]
    assert semantic.from_record(semantic.to_record(value, kind), kind) == value


@pytest.mark.parametrize(
    ("name", "kind", "value", "message"),
    [
        ("io.debezium.time.Date", T.DateType(), "2020-01-01", "str is not a date"),
        ("io.debezium.time.Time", T.StringType(), "25:00:00", "'25:00:00' is not a time of day"),
        ("io.debezium.time.Timestamp", T.TimestampType(), 5, "int is not a date and time"),
        ("org.apache.kafka.connect.data.Decimal", PRICE, Decimal("0.001"), "0.001 has more than 2 digits after"),
        ("org.apache.kafka.connect.data.Decimal", PRICE, Decimal("NaN"), "NaN has more than 2 digits after"),
        ("STRING", PRICE, 1.5, "float is not a decimal"),
    ],
)
def test_what_a_record_cannot_represent(name: str, kind: T.DataType, value: Any, message: str) -> None:
    with pytest.raises(UnfitError, match=message):
        SEMANTICS[name].to_record(value, kind)

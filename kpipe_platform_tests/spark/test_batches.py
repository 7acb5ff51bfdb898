"""Codecs that convert Arrow batches, in Spark."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, RawCodec, TextCodec
from kpipe_platform.spark.columns import encoded_value, misfit_of
from kpipe_platform.spark.source.reader import _SOURCE_COLUMNS, empty_rows
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs, decode_rows
from kpipe_platform_tests.codecs.careless import LongCodec, TypedCodec
from kpipe_platform_tests.codecs.conformance import CASES

from .conftest import NOON

pytestmark = pytest.mark.spark

TYPED = [TypedCodec().encode(value) for value in CASES["typed"].values]
TOO_WIDE = b'["1e30","2026-01-05T10:00:00+00:00",null,null,null,null,null,null]'


def frames(spark: SparkSession, *values: bytes | None) -> SliceFrames:
    rows = [(b"\0" * 8, value, "t", 0, number, NOON, 0, None) for number, value in enumerate(values)]
    frame = spark.createDataFrame(rows, _SOURCE_COLUMNS)
    return decode_rows(frame, TopicCodecs(LongCodec(), TypedCodec()), src=F.lit(0), only_range=0, small=True)


def python_calls(frame: DataFrame) -> int:
    """Number of Python functions that a plan evaluates for each row."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain("formatted")
    lines = [line for line in text.getvalue().splitlines() if line.startswith("Arguments: [")]
    return sum(line.count("decode(") + line.count("encode(") for line in lines)


@pytest.mark.parametrize(
    "read",
    [
        lambda source: source.good,
        lambda source: source.good.where("price > 1"),
        lambda source: source.faults(),
        lambda source: source.counts(),
        lambda source: source.decoded.where("bad is null").where("v.price > 1"),
    ],
    ids=["good", "filtered", "faults", "counts", "decoded"],
)
def test_a_record_is_decoded_once(spark: SparkSession, read: Callable[[SliceFrames], DataFrame]) -> None:
    frame = read(frames(spark, *TYPED, b"bad", None))
    assert python_calls(frame) == 2  # the key and the value
    assert frame.count() > 0


def test_a_record_is_encoded_once(spark: SparkSession) -> None:
    good = frames(spark, *TYPED, None).good
    codec = TypedCodec()
    misfit = misfit_of(codec, good.schema)
    assert misfit is not None
    written = good.select(encoded_value(codec, good.schema).alias("value"), misfit.alias("misfit"))
    assert python_calls(written) == 3
    assert [(bytes(row[0] or b""), row[1]) for row in written.collect()] == [
        *((value, None) for value in TYPED),
        (b"", None),
    ]


def test_a_value_that_its_type_cannot_hold_is_a_fault(spark: SparkSession) -> None:
    rows = frames(spark, TOO_WIDE, TYPED[0])
    assert [bytes(row["value"]) for row in rows.faults().collect()] == [TOO_WIDE]
    assert "cannot hold" in TypedCodec().explain(TOO_WIDE).message


def test_no_rows(spark: SparkSession) -> None:
    rows = frames(spark)
    assert rows.good.toArrow().num_rows == 0
    assert rows.good.schema["legs"].dataType == T.ArrayType(
        T.StructType().add("code", "string").add("stops", T.ArrayType(T.IntegerType()))
    )


def test_a_column_of_another_codec_has_no_key_bytes(spark: SparkSession) -> None:
    raw = decode_rows(empty_rows(spark), TopicCodecs(RawCodec(), RawCodec()), src=F.lit(0))
    assert "key_bytes" not in raw.good.schema["_kafka"].dataType.names  # type: ignore[attr-defined]
    assert "key_bytes" in frames(spark).good.schema["_kafka"].dataType.names  # type: ignore[attr-defined]


class LosingCodec(TextCodec):
    """Its expression is null for some values."""

    misfit = Codec.misfit

    def write(self, value: Column, kind: T.DataType) -> Column:
        return F.when(value != "lost", value).cast("binary")


def test_a_value_that_an_expression_encodes_to_null_does_not_fit(spark: SparkSession) -> None:
    output = spark.createDataFrame([("kept",), ("lost",), (None,)], "value string")
    misfit = misfit_of(LosingCodec(), output.schema)
    assert misfit is not None
    found = [row[0] for row in output.select(misfit).collect()]
    assert found == [None, "LosingCodec encoded this value to null", None]

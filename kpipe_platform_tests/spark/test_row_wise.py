"""Stages that make what they make of each record alone: all of it in one pass, with what they make nothing of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kpipe_platform import JsonCodec, TextCodec
from kpipe_platform.spark.frames import SliceFrames, TopicCodecs, decode_rows
from kpipe_platform.spark.reader import _SOURCE_COLUMNS
from kpipe_platform.spark.row_wise import BAD, MADE, SRC, row_wise
from kpipe_platform_tests.spark.conftest import NOON

pytestmark = pytest.mark.spark

Stage = Callable[[DataFrame], DataFrame]
SCHEMA = "id BIGINT NOT NULL, note STRING, amount DOUBLE"

# Every third does not decode, one is a tombstone, and one has a key that is no text.
GOOD = [json.dumps({"id": n, "note": f"n{n}" if n % 2 else None, "amount": n / 2}).encode() for n in range(9)]
VALUES = [b"not json" if n % 3 == 2 else None if n == 4 else GOOD[n] for n in range(9)]
KEYS = [b"\xff" if n == 6 else b"k%d" % n for n in range(9)]
BAD_ONES = {2, 5, 6, 8}


@pytest.fixture
def source(spark: SparkSession) -> SliceFrames:
    rows = [
        (key, value, "orders", 0, offset, NOON, 0, [("h", b"\xff")])
        for offset, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]
    frame = spark.createDataFrame(rows, _SOURCE_COLUMNS).coalesce(1)
    return decode_rows(frame, TopicCodecs(TextCodec(), JsonCodec(SCHEMA)), src=F.lit(7))


def plain(value: Any) -> Any:
    return tuple(map(plain, value)) if isinstance(value, tuple | list) else value


def check(source: SliceFrames, stage: Stage) -> list[Row]:
    """The stage's own output, in its order, with the rest of the records beside it."""
    output = stage(source.good)
    made = row_wise(output, source)
    assert made is not None
    assert made.columns == [*output.columns, SRC, BAD, MADE]
    rows = made.collect()
    wanted = [plain(row) for row in output.collect()]
    assert [plain(row)[:-3] for row in rows if row[MADE]] == wanted
    assert len(rows) == len(VALUES)
    assert {row[SRC] for row in rows} == {7}
    assert [row[BAD]["offset"] for row in rows if row[BAD] is not None] == sorted(BAD_ONES)
    assert not any(row[MADE] for row in rows if row[BAD] is not None)
    return rows


def more(df: DataFrame) -> DataFrame:
    return df.withColumn("more", F.col("amount") * 2).withColumn("note", F.upper("note")).drop("_kafka")


def renamed(df: DataFrame) -> DataFrame:
    return df.alias("o").withColumnRenamed("amount", "sum").select("o.*", F.col("o.id").alias("key"), "_kafka.offset")


def fixed(df: DataFrame) -> DataFrame:
    """A column that is never null, passed on by a select above it."""
    first = df.select(F.lit("fixed").alias("fixed"), F.lit(5).alias("five"), F.coalesce("note", F.lit("-")).alias("n"))
    return first.select("fixed", (F.col("five") + 1).alias("six"), "n", F.struct("five", "n").alias("both"))


def filtered(df: DataFrame) -> DataFrame:
    return df.where("amount > 0.5").select("id", (1 / F.col("amount")).alias("part")).where("part < 1").select("part")


def null_condition(df: DataFrame) -> DataFrame:
    return df.where(F.col("note") != "n1")


def same_names(df: DataFrame) -> DataFrame:
    return df.select("id", F.col("amount").alias("id"), F.col("_kafka.key"), F.lit(1).alias("key"))


def nested(df: DataFrame) -> DataFrame:
    items = F.transform(F.array("id", F.length("note")), lambda each: each + 1)
    return df.select(
        items.alias("items"), F.when(F.col("id") > 3, F.lit("late")).alias("when"), F.struct("*").alias("all")
    )


def sql(df: DataFrame) -> DataFrame:
    return df.selectExpr("id AS n", "CASE WHEN id % 2 = 0 THEN 'even' ELSE note END AS kind", "_kafka")


@pytest.mark.parametrize(
    "stage", [more, renamed, fixed, filtered, null_condition, same_names, nested, sql, lambda df: df]
)
def test_what_is_made_of_each_record(source: SliceFrames, stage: Stage) -> None:
    check(source, stage)


def test_what_is_filtered_out_is_there_without_an_output(source: SliceFrames) -> None:
    rows = check(source, lambda df: df.where("id >= 3").select("id", "note"))
    silent = [row for row in rows if not row[MADE] and row[BAD] is None]
    assert len(silent) == len(VALUES) - len(BAD_ONES) - sum(row[MADE] for row in rows)
    assert all(row["id"] is not None for row in rows if row[MADE])


def test_a_record_that_does_not_decode_never_meets_the_stage(source: SliceFrames) -> None:
    """An expression that fails on its nulls would fail the slice for a record that is a dead letter."""
    strange = F.col("id").isNull() & ~F.col("_kafka.tombstone")
    check(source, lambda df: df.select((F.lit(1) / F.when(strange, 0).otherwise(1)).alias("part"), "note"))
    check(source, lambda df: df.where(F.lit(1) / F.when(strange, 0).otherwise(1) > 0).select("id"))


def test_what_is_filtered_out_never_meets_what_comes_after_the_filter(source: SliceFrames) -> None:
    check(source, lambda df: df.where("id > 0").select((F.lit(1) / F.col("id")).alias("part")))
    check(source, lambda df: df.where("id > 0").where(F.lit(1) / F.col("id") < 1))


def joined(df: DataFrame) -> DataFrame:
    return df.join(df.select("id"), "id")


def with_python(df: DataFrame) -> DataFrame:
    return df.withColumn("note", F.udf(lambda note: note, "string")("note"))


def with_query(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("row_wise_orders")
    return df.sparkSession.sql("SELECT id FROM row_wise_orders WHERE id > (SELECT min(id) FROM row_wise_orders)")


def with_window(df: DataFrame) -> DataFrame:
    return df.withColumn("n", F.row_number().over(Window.orderBy("id")))


def by_chance(df: DataFrame) -> DataFrame:
    return df.withColumn("r", F.rand(1))


OTHERS: Sequence[Stage] = [
    joined,
    with_python,
    with_query,
    with_window,
    by_chance,
    lambda df: df.where(F.rand(1) > 0.5),
    lambda df: df.groupBy("note").count(),
    lambda df: df.select("id", F.explode(F.array("id", "amount")).alias("x")),
    lambda df: df.union(df),
    lambda df: df.limit(3),
    lambda df: df.distinct(),
    lambda df: df.orderBy("id"),
    lambda df: df.repartition(2),
    lambda df: df.sample(0.5),
    lambda df: df.dropDuplicates(["note"]),
    lambda df: df.sparkSession.range(3).toDF("id"),
    lambda df: df.withColumn("p", F.spark_partition_id()),
]


@pytest.mark.parametrize("stage", OTHERS)
def test_what_is_not_made_of_each_record_alone(source: SliceFrames, stage: Stage) -> None:
    assert row_wise(stage(source.good), source) is None

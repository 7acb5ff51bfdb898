"""Stages that are written in a single pass, and stages that are not, for both of Spark's engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kpipe_platform import JsonCodec, RawCodec, TextCodec
from kpipe_platform.spark.sink.single_pass import BAD, MADE, SRC, rows_per_record
from kpipe_platform.spark.source.reader import _SOURCE_COLUMNS
from kpipe_platform.spark.source.rows import SliceFrames, TopicCodecs, decode_rows
from kpipe_platform_tests.spark.conftest import NOON

Stage = Callable[[DataFrame], DataFrame]
SCHEMA = "id BIGINT NOT NULL, note STRING, amount DOUBLE"

# Every third does not decode, one is a tombstone, and one has a key that is no text.
GOOD = [json.dumps({"id": n, "note": f"n{n}" if n % 2 else None, "amount": n / 2}).encode() for n in range(9)]
VALUES = [b"not json" if n % 3 == 2 else None if n == 4 else GOOD[n] for n in range(9)]
KEYS = [b"\xff" if n == 6 else b"k%d" % n for n in range(9)]
BAD_ONES = {2, 5, 6, 8}


def source_of(spark: SparkSession, codecs: TopicCodecs | None = None) -> SliceFrames:
    """The records, decoded; without codecs as JSON."""
    rows = [
        (key, value, "orders", 0, offset, NOON, 0, [("h", b"\xff")])
        for offset, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]
    frame = spark.createDataFrame(rows, _SOURCE_COLUMNS).coalesce(1)
    return decode_rows(frame, codecs or TopicCodecs(TextCodec(), JsonCodec(SCHEMA)), src=F.lit(7))


def plain(value: Any) -> Any:
    return tuple(map(plain, value)) if isinstance(value, tuple | list) else value


def check(source: SliceFrames, stage: Stage) -> list[Row]:
    """The stage's own output, in its order, with the rest of the records beside it."""
    output = stage(source.good)
    single = rows_per_record(output, source)
    assert single is not None
    assert not single.is_copy
    assert single.frame.columns == [*output.columns, SRC, BAD, MADE]
    made = single.frame.where(MADE).collect()
    # Without the columns of the source: a key that is no text cannot leave a Connect server as text.
    rows = [*made, *single.frame.where(~F.col(MADE)).select(SRC, BAD, MADE).collect()]
    assert [plain(row)[:-3] for row in made] == [plain(row) for row in output.collect()]
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


def by_the_frame(df: DataFrame) -> DataFrame:
    """Columns that are taken from a DataFrame, of which a client writes down an id."""
    some = df.where(df.id > 1)
    return some.select(df["id"], (some.amount * 2).alias("twice"), df["_kafka.offset"]).withColumnRenamed("id", "n")


def everything(df: DataFrame) -> DataFrame:
    return df.select("*", (F.col("amount") * 2).alias("twice")).where("upper(note) IN ('N1', 'N3') AND id < 9")


STAGES: Sequence[Stage] = [
    more,
    fixed,
    filtered,
    null_condition,
    by_the_frame,
    everything,
    lambda df: df.where(F.col("note").isNotNull() & ~F.col("id").between(2, 5)).drop("amount"),
    lambda df: df,
]
ONLY_CLASSIC: Sequence[Stage] = [renamed, same_names, nested, sql]
"""Stages of which a Connect client's plan says too little: they take the general path there."""


def joined(df: DataFrame) -> DataFrame:
    return df.join(df.select("id"), "id")


def with_python(df: DataFrame) -> DataFrame:
    return df.withColumn("note", F.udf(lambda note: note, "string")("note"))


def with_query(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("single_pass_orders")
    return df.sparkSession.sql("SELECT id FROM single_pass_orders WHERE id > (SELECT min(id) FROM single_pass_orders)")


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
    lambda df: df.withColumn("w", F.window("_kafka.timestamp", "10 minutes", "5 minutes")),
    lambda df: df.withColumn("x", F.explode(F.array("id", "amount"))),
    lambda df: df.where("id > (SELECT 3)"),
    lambda df: df.where("id IN (VALUES 3, 4)"),
    lambda df: df.where("id > 3 + 4 * uuid()"),
    lambda df: df.withColumn("x", F.expr("reflect('java.util.UUID', 'randomUUID')")),
    lambda df: df.withColumn("x", F.input_file_name()),
]


def copies(df: DataFrame) -> DataFrame:
    return df.select("_kafka.key", "value", F.col("_kafka.offset").alias("at")).select("at", "key", "value")


def check_copies(spark: SparkSession) -> None:
    """Stages that copy columns of raw records, and some that nearly do."""
    source = source_of(spark, TopicCodecs(RawCodec(), RawCodec()))
    for copy in (source.good, copies(source.good)):
        single = rows_per_record(copy, source)
        assert single is not None
        assert single.is_copy
        assert [plain(row)[:-3] for row in single.frame.collect()] == [plain(row) for row in copy.collect()]
    good = source.good
    made: list[DataFrame] = [
        good.where("_kafka.offset > 0"),
        good.withColumn("value", F.reverse("value")),
        good.select(F.lit(b"x").alias("value")),
        good.where("_kafka.offset > 0").select("value"),
    ]
    for other in made:
        single = rows_per_record(other, source)
        assert single is None or not single.is_copy, other
    for other in (good.union(good), good.limit(1), good.repartition(2), good.select(F.explode(F.array("value")))):
        assert rows_per_record(other, source) is None, other


# Spark has no function of these names. In SQL, they can precede a parenthesis; or `pyspark.sql.functions` has the name.
FREE_NAMES = ("my_own", "then", "else", "try_cast", "lit", "col", "column", "expr", "sys", "product", "years")
# Spark's own functions, called by SQL text and by the client. A user's function may have the same names.
TAKEN_NAMES = ("upper", "coalesce", "+", "when")
ORDER, PATH = "spark.sql.functionResolution.sessionOrder", "spark.sql.path.enabled"


@contextmanager
def registered(spark: SparkSession, names: Sequence[str]) -> Iterator[None]:
    """Python functions of these names."""
    for name in names:
        spark.udf.register(name, lambda *args: f"{args[0]}!", "string")
    try:
        yield
    finally:
        for name in names:
            spark.sql(f"DROP TEMPORARY FUNCTION `{name}`")


def built_in(df: DataFrame) -> DataFrame:
    return df.select(
        "id", F.upper("note").alias("note"), F.expr("upper(_kafka.topic)").alias("topic"), (F.col("id") + 1).alias("n")
    )


def check_names(spark: SparkSession) -> None:
    """A Python function is not taken for one of Spark's, whatever its name."""
    source = source_of(spark)
    with registered(spark, FREE_NAMES):
        every = source.good.select(*(F.expr(f"{name}(id)").alias(name) for name in FREE_NAMES))
        assert set(every.where("my_own = '1!'").collect()[0]) == {"1!"}
        for name in FREE_NAMES:
            called = F.expr(f"concat('a', {name.upper()} (id))"), F.call_udf(name, "id")
            outputs = [source.good.where(f"{name}(id) = '1!'"), *(source.good.withColumn("x", each) for each in called)]
            assert [rows_per_record(output, source) for output in outputs] == [None, None, None], name
    with registered(spark, TAKEN_NAMES):
        check(source, built_in)
        spark.conf.set(ORDER, "first")
        try:
            for output in (built_in(source.good), source.good.withColumn("x", F.col("id") + 1)):
                assert rows_per_record(output, source) is None
        finally:
            spark.conf.unset(ORDER)
        spark.conf.set(PATH, "true")
        try:
            spark.sql("SET PATH = system.session, system.builtin")
            assert rows_per_record(built_in(source.good), source) is None
            spark.sql("SET PATH = DEFAULT_PATH")
        finally:
            spark.conf.unset(PATH)
        check(source, built_in)

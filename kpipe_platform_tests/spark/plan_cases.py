"""What ``spark.plans`` sees of a plan, for a session of this process and for one on a Connect server."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform.spark.plans import copied_columns, reads_only


def files(spark: SparkSession, folder: Path, rows: int = 3) -> DataFrame:
    """Rows that are read from files; columns: id (bigint)."""
    spark.range(rows).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def check(spark: SparkSession, folder: Path) -> None:
    """Frames of one source, and frames that read something else too."""
    source, other = files(spark, folder / "source"), files(spark, folder / "other")
    staged = source.where("id > 0").withColumn("twice", F.col("id") * 2)
    held = spark.createDataFrame([(1, "a")], "id BIGINT, name STRING")
    assert reads_only(source, [source])
    assert reads_only(staged.unionByName(staged), [source])
    assert reads_only(staged.alias("a").join(source.alias("b"), "id").groupBy("id").count(), [source])
    assert reads_only(staged.join(other, "id"), [source, other])
    assert not reads_only(staged.join(other, "id"), [source])
    assert not reads_only(source.select("id").union(other), [source])
    # Rows of the driver's, which a classic session may hold in a form that does not say so.
    assert reads_only(staged.join(held, "id"), [source, held])


def check_copies(spark: SparkSession) -> None:
    """Frames that copy another, and some that nearly do."""
    source = spark.range(3).select("id", F.struct(F.col("id").alias("n"), F.lit("x").alias("s")).alias("_kafka"))
    assert copied_columns(source, source) == [("id", ("id",)), ("_kafka", ("_kafka",))]
    copy = source.select(F.col("_kafka.n").alias("number"), "id", "_kafka.s")
    assert copied_columns(copy, source) == [("number", ("_kafka", "n")), ("id", ("id",)), ("s", ("_kafka", "s"))]
    again = copy.select("s", F.col("number").alias("id"))
    assert copied_columns(again, source) == [("s", ("_kafka", "s")), ("id", ("_kafka", "n"))]
    fewer, more = source.where("id > 0"), source.union(source)
    once = [fewer, more, source.limit(1), source.distinct(), source.orderBy("id"), source.repartition(2)]
    made = [source.withColumn("id", F.col("id") + 1), source.select(F.lit(1).alias("a")), source.groupBy("id").count()]
    many = [source.select("id", F.explode(F.array("id"))), source.join(source.select("id"), "id"), source.sample(0.5)]
    for other in (*once, *made, *many, fewer.select("id"), spark.range(3)):
        assert copied_columns(other, source) is None, other

"""What ``spark.plans`` sees of a plan, for a session of this process and for one on a Connect server."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform.spark.sink.plans import reads_only


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

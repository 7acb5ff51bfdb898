"""Stages that make what they make of each record alone: all of it in one pass, with what they make nothing of.

The single pass reads plans of one Spark version, which ``spark/test_compat.py`` names.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F

from kpipe_platform.spark.sink import single_pass
from kpipe_platform.spark.sink.single_pass import BAD, MADE, rows_per_record
from kpipe_platform.spark.source.rows import SliceFrames
from kpipe_platform_tests.spark.single_pass_cases import (
    BAD_ONES,
    ONLY_CLASSIC,
    OTHERS,
    STAGES,
    VALUES,
    Stage,
    check,
    check_copies,
    check_names,
    source_of,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def source(spark: SparkSession) -> SliceFrames:
    return source_of(spark)


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_made_of_each_record(source: SliceFrames, stage: Stage) -> None:
    check(source, stage)


@pytest.mark.parametrize("stage", ONLY_CLASSIC)
def test_what_only_a_session_of_this_process_sees(source: SliceFrames, stage: Stage) -> None:
    if is_remote():
        assert rows_per_record(stage(source.good), source) is None
    else:
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
    # An element that is not there is an error, also of a field inside of it.
    check(source, lambda df: df.where("id > 100").select(F.array(F.struct("id"))[5]["id"].alias("sixth")))
    check(
        source,
        lambda df: df.select("id", F.array("id").alias("ids")).where("id > 100").select(F.col("ids")[5].alias("n")),
    )


@pytest.mark.parametrize("stage", OTHERS)
def test_what_is_not_made_of_each_record_alone(source: SliceFrames, stage: Stage) -> None:
    assert rows_per_record(stage(source.good), source) is None


def test_a_function_of_the_user_is_not_taken_for_one_of_sparks(spark: SparkSession) -> None:
    check_names(spark)


def test_every_function_of_spark_that_is_not_deterministic_is_refused(spark: SparkSession) -> None:
    """On Connect, only their names say so. A new version of Spark may have more of them."""
    if is_remote():
        pytest.skip("asks the JVM of this process")
    spark_jvm: Any = spark._jvm.org.apache.spark  # type: ignore[union-attr]
    catalyst, load = spark_jvm.sql.catalyst, spark_jvm.util.Utils.classForName
    kinds = [f"{catalyst.expressions._fqn}.{kind}" for kind in ("Nondeterministic", "ExpressionWithRandomSeed")]
    functions, none = catalyst.analysis.FunctionRegistry.expressions(), [True, False]
    bases = [load(kind, *none) for kind in kinds]
    found = set()
    for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if functions.contains(row[0]):
            expression = load(functions.apply(row[0])._1().getClassName(), *none)
            if any(base.isAssignableFrom(expression) for base in bases):
                found.add(row[0])
    assert found
    assert found <= single_pass._REFUSED


def test_what_copies_its_records(spark: SparkSession) -> None:
    check_copies(spark)


def test_a_surprise_in_a_plan_leads_to_the_general_path(source: SliceFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprised(output: DataFrame, source: SliceFrames) -> None:
        raise AttributeError("a plan of another version")

    monkeypatch.setattr(single_pass, "_classic", surprised)
    monkeypatch.setattr(single_pass, "_connect", surprised)
    assert rows_per_record(source.good, source) is None

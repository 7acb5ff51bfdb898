"""The assets of the flights demo."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    ExecutionMode,
    FaultAction,
    JsonCodec,
    KafkaTopic,
    PartitionScaling,
    SparkEngine,
    TextCodec,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.demo import data
from kpipe_platform.demo.topics import ENRICHED, ENRICHED_FLIGHT, FLIGHT, FLIGHTS, KEPT_FOREVER, PARTITIONS

GROUP = "flights"

# Airlines count a flight as late from 15 minutes on.
_LATE_MINUTES = 15
_VERY_LATE_MINUTES = 60

# Each slice costs a second or two besides its records: a plan, Spark jobs, a transaction. 100,000 flights take several
# times as long as that, and a slice of each partition still fits into Spark's default memory.
_SLICE = 100_000

flights = kafka_topic_asset(
    FLIGHTS,
    value_codec=JsonCodec(FLIGHT),
    key_codec=TextCodec(),
    partitions=PARTITIONS,
    group_name=GROUP,
    description="Every flight that left New York City in 2013, keyed by tail number, in time order.",
)


@dg.asset(group_name=GROUP, io_manager_key="tables", kinds={"spark", "parquet"})
def planes(spark: SparkEngine) -> DataFrame:
    """Planes by tail number."""
    return _table(spark, pa.Table.from_pandas(data.planes(), preserve_index=False))


@dg.asset(group_name=GROUP, io_manager_key="tables", kinds={"spark", "parquet"})
def airlines(spark: SparkEngine) -> DataFrame:
    """Names of the airlines by their two-character codes."""
    return _table(spark, pa.Table.from_pandas(data.airlines(), preserve_index=False))


@kafka_asset(
    source=flights,
    topic=KafkaTopic(
        ENRICHED,
        key_column="tailnum",
        value_codec=JsonCodec(ENRICHED_FLIGHT),
        key_codec=TextCodec(),
        # Output records keep the timestamp of the flight, instead of the processing time.
        timestamp_column="_kafka.timestamp",
        create=KEPT_FOREVER,
    ),
    on_fault=FaultAction.DEAD_LETTER,
    scaling=PartitionScaling(max_records=_SLICE, execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS),
    # A backfill over several partitions is one run, with a Spark job and a transaction for each partition.
    backfill_policy=dg.BackfillPolicy.single_run(),
    group_name=GROUP,
)
def flights_enriched(flights: DataFrame, planes: DataFrame, airlines: DataFrame) -> DataFrame:
    """Flights with their plane, airline, delay class and speed.

    Flights that never departed have no ``dep_time``, which the schema requires: they become dead letters.
    """
    plane = planes.select("tailnum", "manufacturer", "model", _int("seats"), _int("year").alias("built"))
    airline = airlines.select("carrier", F.col("name").alias("airline"))
    joined = flights.join(F.broadcast(plane), "tailnum", "left").join(F.broadcast(airline), "carrier", "left")
    return joined.select(
        *flights.drop("_kafka").columns,
        *("airline", "manufacturer", "model", "seats", "built"),
        _delay_class(F.col("arr_delay")).alias("delay_class"),
        # In Spark's ANSI mode, a division by zero is an error.
        F.round(F.try_divide(F.col("distance") * F.lit(60.0), F.col("air_time")), 1).alias("speed_mph"),
        "_kafka",
    )


@kafka_asset(
    source=flights_enriched,
    partitioned=False,
    io_manager_key="charted_tables",
    scaling=PartitionScaling(max_records=_SLICE, execution_mode=ExecutionMode.PARALLELIZE_ACROSS_PARTITIONS),
    group_name=GROUP,
    kinds={"kafka", "spark", "parquet"},
)
def carrier_delays(flights_enriched: DataFrame) -> DataFrame:
    """Delays by carrier, one row per flight. The chart in the metadata shows the medians of all rows so far."""
    return flights_enriched.select("time_hour", "carrier", "airline", "origin", "dep_delay", "arr_delay", "delay_class")


ALL: list[dg.AssetsDefinition] = [flights, planes, airlines, flights_enriched, carrier_delays]


def _table(spark: SparkEngine, table: pa.Table) -> DataFrame:
    frame: DataFrame = spark.spark_session.createDataFrame(table)
    return frame


def _int(name: str) -> Column:
    return F.col(name).cast("int").alias(name)


def _delay_class(minutes: Column) -> Column:
    return (
        F.when(minutes.isNull(), "unknown")
        .when(minutes < _LATE_MINUTES, "on_time")
        .when(minutes < _VERY_LATE_MINUTES, "late")
        .otherwise("very_late")
    )

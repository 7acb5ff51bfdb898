"""A process of its own that materializes one partition, to be killed by a test. Arguments: servers, source, target,
group prefix, parts of a slice at once. On the engine at KPIPE_SPARK_REMOTE where that is set."""

import os
import sys

import dagster as dg
from dagster._utils.interrupts import setup_interrupt_handlers
from pyspark.sql import functions as F

from kpipe_platform import (
    ExecutionMode,
    FaultAction,
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    PartitionScaling,
    SparkEngine,
    TextCodec,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform_tests.io_managers.conftest import ORDER

# As in the tests' own session: the second compiler takes more than it wins back.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

# As Dagster's own run workers do: SIGTERM interrupts.
setup_interrupt_handlers()
servers, source, target, prefix, parts = sys.argv[1:]
remote = os.environ.get("KPIPE_SPARK_REMOTE")
relaxed = PartitionScaling(
    execution_mode=ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION, max_in_flight_per_partition=int(parts)
)
connection = KafkaConnection(bootstrap_servers=servers)
orders = kafka_topic_asset(source, value_codec=JsonCodec(ORDER), key_codec=TextCodec(), partitions=1, name="orders")


@kafka_asset(
    source=orders,
    topic=KafkaTopic(target, value_codec=JsonCodec()),
    on_fault=FaultAction.DEAD_LETTER,
    scaling=relaxed if int(parts) > 1 else None,
)
def enriched(orders):  # type: ignore[no-untyped-def]
    poison = F.raise_error(F.concat(F.lit("poison "), F.col("id"))).cast("string")
    return orders.withColumn("note", F.when(F.col("note") == "poison", poison).otherwise(F.col("note")))


dg.materialize(
    [orders, enriched],
    selection=[enriched],
    partition_key="0",
    resources={
        "kafka_io_manager": KafkaIOManager(
            source=KafkaSource(connection=connection, group_prefix=prefix),
            destination=KafkaDestination(connection=connection),
            dead_letter=KafkaDeadLetterDestination(connection=connection, create_topic=True),
            spark=SparkEngine(remote=remote) if remote else SparkEngine(master="local[2]", spark_config=QUICK),
        )
    },
)

"""A process of its own that follows one partition, to be ended by a test. Arguments: servers, source, target, group
prefix, folder of the Dagster instance."""

import logging
import sys
from contextlib import suppress

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._utils.interrupts import setup_interrupt_handlers

from kpipe_platform import (
    JsonCodec,
    KafkaConnection,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
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
logging.basicConfig(level=logging.INFO)
servers, source, target, prefix, folder = sys.argv[1:]
connection = KafkaConnection(bootstrap_servers=servers)
orders = kafka_topic_asset(source, value_codec=JsonCodec(ORDER), key_codec=TextCodec(), partitions=1, name="orders")


@kafka_asset(source=orders, topic=KafkaTopic(target, value_codec=JsonCodec()), max_slices=None, linger_s=600)
def enriched(orders):  # type: ignore[no-untyped-def]
    return orders


with dg.DagsterInstance.local_temp(folder) as instance, suppress(DagsterExecutionInterruptedError, KeyboardInterrupt):
    dg.materialize(
        [orders, enriched],
        selection=[enriched],
        partition_key="0",
        instance=instance,
        resources={
            "kafka_io_manager": KafkaIOManager(
                source=KafkaSource(connection=connection, group_prefix=prefix),
                destination=KafkaDestination(connection=connection),
                spark=SparkEngine(master="local[2]", spark_config=QUICK),
            )
        },
    )

"""Definitions to load with `dagster dev -m examples.orders.definitions`; needs KAFKA_BOOTSTRAP_SERVERS."""

import dagster as dg

from examples.orders.assets import orders, orders_large, orders_priced
from kpipe_platform import (
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    SparkEngine,
)

connection = KafkaConnection(bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS"))

defs = dg.Definitions(
    assets=[orders, orders_priced, orders_large],
    resources={
        "kafka_io_manager": KafkaIOManager(
            source=KafkaSource(connection=connection, group_prefix="shop"),
            destination=KafkaDestination(connection=connection),
            dead_letter=KafkaDeadLetterDestination(connection=connection, create_topic=True),
            spark=SparkEngine(),
        ),
    },
    # With another executor, each step would start its own Spark.
    executor=dg.in_process_executor,
)

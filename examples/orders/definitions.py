"""What Dagster loads: `dagster dev -m examples.orders.definitions`, with KAFKA_BOOTSTRAP_SERVERS set."""

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
            connection=connection,
            source=KafkaSource(group_prefix="shop"),
            destination=KafkaDestination(),
            dead_letters=KafkaDeadLetterDestination(create_topic=True),
            spark=SparkEngine(),
        ),
    },
    # A step in a process of its own would start Spark anew.
    executor=dg.in_process_executor,
)

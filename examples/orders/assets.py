"""Orders from a Kafka topic: add prices, dead-letter invalid orders, and select large ones."""

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import FaultAction, JsonCodec, KafkaTopic, TextCodec, TopicSpec, kafka_asset, kafka_topic_asset

ORDER = "order_id STRING NOT NULL, customer STRING NOT NULL, quantity INT NOT NULL, unit_price DOUBLE NOT NULL"
PRICED = f"{ORDER}, total DOUBLE"

orders = kafka_topic_asset("orders", value_codec=JsonCodec(ORDER), key_codec=TextCodec(), partitions=2)


@kafka_asset(
    source=orders,
    topic=KafkaTopic(
        "orders.priced", key_column="customer", value_codec=JsonCodec(PRICED), create=TopicSpec(partitions=2)
    ),
    on_fault=FaultAction.DEAD_LETTER,
)
def orders_priced(orders: DataFrame) -> DataFrame:
    """Each order with its total. An order that is not JSON, or lacks a field, goes to orders.dlq."""
    return orders.withColumn("total", F.round(F.col("quantity") * F.col("unit_price"), 2))


@dg.asset(
    io_manager_key="kafka_io_manager",
    partitions_def=orders.partitions_def,
    metadata=KafkaTopic("orders.large", value_codec=JsonCodec(PRICED), create=TopicSpec(partitions=2)).as_metadata(),
)
def orders_large(orders_priced: DataFrame) -> DataFrame:
    """Orders of 1,000 and more. Its key and headers are those of orders.priced, because it keeps `_kafka`."""
    return orders_priced.where("total >= 1000")

"""Assets of kpipe, as a user would make them in a loop."""

from __future__ import annotations

import dagster as dg
from pyspark.sql import DataFrame

import kpipe_platform as kp
from benchmarks.locations import ASSETS_A_TOPIC, PARTITIONS, topics_of

FIELDS = "order_id BIGINT, customer STRING, amount DOUBLE"


def definitions(assets: int) -> dg.Definitions:
    """So many assets, and the topics that they read."""
    topics = [_topic(number) for number in range(topics_of(assets))]
    copies = [_copy(topics[number // ASSETS_A_TOPIC], f"copied_{number}") for number in range(assets)]
    connection = kp.KafkaConnection(bootstrap_servers="localhost:9092")
    manager = kp.KafkaIOManager(
        source=kp.KafkaSource(connection=connection),
        destination=kp.KafkaDestination(connection=connection),
        spark=kp.SparkEngine(),
    )
    return dg.Definitions(assets=[*topics, *copies], resources={"kafka_io_manager": manager})


def _topic(number: int) -> dg.AssetsDefinition:
    topic = f"orders_{number}"
    value = kp.JsonCodec(FIELDS)
    return kp.kafka_topic_asset(topic, key_prefix=topic, name="orders", value_codec=value, partitions=PARTITIONS)


def _copy(topic: dg.AssetsDefinition, name: str) -> dg.AssetsDefinition:
    @kp.kafka_asset(source=topic, topic=kp.KafkaTopic(name, key_column="customer"), name=name)
    def copied(orders: DataFrame) -> DataFrame:
        return orders

    return copied

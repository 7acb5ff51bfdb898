"""A process whose Spark session has no Kafka connector, and which materializes an asset with it. Arguments: servers,
source topic, target topic, the class of dagster-pyspark that provides the session."""

import sys

import dagster as dg
import dagster_pyspark

from kpipe_platform import JsonCodec, KafkaConnection, KafkaIOManager, KafkaTopic, kafka_asset, kafka_topic_asset
from kpipe_platform_tests.io_managers.conftest import ORDER

servers, source, target, provider = sys.argv[1:]
orders = kafka_topic_asset(source, value_codec=JsonCodec(ORDER), partitions=1, name="orders")


@kafka_asset(source=orders, topic=KafkaTopic(target, value_codec=JsonCodec()), name="enriched")
def enriched(orders):  # type: ignore[no-untyped-def]
    return orders


config = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
spark = getattr(dagster_pyspark, provider)(spark_config=config)
manager = KafkaIOManager(connection=KafkaConnection(bootstrap_servers=servers), spark=spark)
try:
    dg.materialize([orders, enriched], selection=[enriched], partition_key="0", resources={"kafka_io_manager": manager})
except Exception as error:  # noqa: BLE001  # the test reads which
    print(f"{type(error).__name__}: {error}")  # noqa: T201

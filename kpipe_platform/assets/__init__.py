"""Assets over Kafka topics."""

from kpipe_platform.assets.dead_letters import dead_letter_asset
from kpipe_platform.assets.kafka_asset import kafka_asset
from kpipe_platform.assets.kafka_multi_asset import kafka_multi_asset
from kpipe_platform.assets.table import table_input
from kpipe_platform.assets.topic_asset import kafka_topic_asset

__all__ = ["dead_letter_asset", "kafka_asset", "kafka_multi_asset", "kafka_topic_asset", "table_input"]

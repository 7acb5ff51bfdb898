"""Sensors of Kafka assets and topics."""

from kpipe_platform.sensors.backpressure import Backpressure
from kpipe_platform.sensors.offset_sensor import kafka_offset_sensor
from kpipe_platform.sensors.partition_sensor import kafka_partition_sensor

__all__ = ["Backpressure", "kafka_offset_sensor", "kafka_partition_sensor"]

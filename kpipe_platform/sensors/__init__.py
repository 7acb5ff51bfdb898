"""Sensors for Kafka assets and topics."""

from kpipe_platform.sensors.offset_sensor import kafka_offset_sensor
from kpipe_platform.sensors.partition_sensor import kafka_partition_sensor
from kpipe_platform.sensors.tick.backpressure import Backpressure

__all__ = ["Backpressure", "kafka_offset_sensor", "kafka_partition_sensor"]

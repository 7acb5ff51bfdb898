"""kpipe platform: Dagster assets over Apache Kafka topics, run on Spark, exactly once.

Everything that users need is here; names load when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kpipe_platform.assets import dead_letter_asset, kafka_topic_asset, table_input

    # From its own module, which has its name: mypy would take the one for the other.
    from kpipe_platform.assets.kafka_asset import kafka_asset
    from kpipe_platform.checks import (
        CheckOptions,
        dead_letter_ratio_check,
        lag_check,
        offset_contiguity_check,
        retention_check,
        rule_checks,
    )
    from kpipe_platform.codecs import JsonCodec, RawCodec, TextCodec
    from kpipe_platform.codecs.topic import KafkaTopic
    from kpipe_platform.errors import KpipeError
    from kpipe_platform.io_managers import KafkaIOManager, OffsetCommittingIOManager, current_slice
    from kpipe_platform.jobs import PauseConfig, RedriveConfig, pause_job, redrive_job
    from kpipe_platform.kafka.offsets import OffsetRange
    from kpipe_platform.kafka.ownership.owner import ConsumerGroupOwnership
    from kpipe_platform.kafka.records import KafkaRecord
    from kpipe_platform.kafka.topics import TopicSpec
    from kpipe_platform.observability import PartitionEvent, PartitionEventKind
    from kpipe_platform.partitions import kafka_partitions, register_kafka_partitions
    from kpipe_platform.partitions.coordinator import KafkaRunCoordinator
    from kpipe_platform.partitions.pools import kafka_pool
    from kpipe_platform.partitions.state import PartitionState, partition_states
    from kpipe_platform.policies.components import FaultPolicies, FaultPolicy
    from kpipe_platform.policies.faults import FaultAction
    from kpipe_platform.policies.retry import RecordRetryPolicy
    from kpipe_platform.resources.connection import KafkaConnection
    from kpipe_platform.resources.destination import KafkaDeadLetterDestination, KafkaDestination
    from kpipe_platform.resources.ownership import PartitionOwnership
    from kpipe_platform.resources.scaling import ExecutionMode, PartitionScaling, RebalanceMode
    from kpipe_platform.resources.source import KafkaSource
    from kpipe_platform.resources.spark import SparkEngine
    from kpipe_platform.sensors import Backpressure, kafka_offset_sensor, kafka_partition_sensor
    from kpipe_platform.spark.row_functions import map_records
    from kpipe_platform.spark.rules import Rule, expect, expect_all

_HOMES = {
    "Backpressure": "sensors",
    "CheckOptions": "checks",
    "ConsumerGroupOwnership": "kafka.ownership.owner",
    "ExecutionMode": "resources.scaling",
    "FaultAction": "policies.faults",
    "FaultPolicies": "policies.components",
    "FaultPolicy": "policies.components",
    "JsonCodec": "codecs",
    "KafkaConnection": "resources.connection",
    "KafkaDeadLetterDestination": "resources.destination",
    "KafkaDestination": "resources.destination",
    "KafkaIOManager": "io_managers",
    "KafkaRecord": "kafka.records",
    "KafkaRunCoordinator": "partitions.coordinator",
    "KafkaSource": "resources.source",
    "KafkaTopic": "codecs.topic",
    "KpipeError": "errors",
    "OffsetCommittingIOManager": "io_managers",
    "OffsetRange": "kafka.offsets",
    "PartitionEvent": "observability",
    "PartitionEventKind": "observability",
    "PartitionOwnership": "resources.ownership",
    "PartitionScaling": "resources.scaling",
    "PartitionState": "partitions.state",
    "PauseConfig": "jobs",
    "RawCodec": "codecs",
    "RebalanceMode": "resources.scaling",
    "RecordRetryPolicy": "policies.retry",
    "RedriveConfig": "jobs",
    "Rule": "spark.rules",
    "SparkEngine": "resources.spark",
    "TextCodec": "codecs",
    "TopicSpec": "kafka.topics",
    "current_slice": "io_managers",
    "dead_letter_asset": "assets",
    "dead_letter_ratio_check": "checks",
    "expect": "spark.rules",
    "expect_all": "spark.rules",
    "kafka_asset": "assets",
    "kafka_offset_sensor": "sensors",
    "kafka_partition_sensor": "sensors",
    "kafka_partitions": "partitions",
    "kafka_pool": "partitions.pools",
    "kafka_topic_asset": "assets",
    "lag_check": "checks",
    "map_records": "spark.row_functions",
    "offset_contiguity_check": "checks",
    "partition_states": "partitions.state",
    "pause_job": "jobs",
    "redrive_job": "jobs",
    "register_kafka_partitions": "partitions",
    "retention_check": "checks",
    "rule_checks": "checks",
    "table_input": "assets",
}

__all__ = [
    "Backpressure",
    "CheckOptions",
    "ConsumerGroupOwnership",
    "ExecutionMode",
    "FaultAction",
    "FaultPolicies",
    "FaultPolicy",
    "JsonCodec",
    "KafkaConnection",
    "KafkaDeadLetterDestination",
    "KafkaDestination",
    "KafkaIOManager",
    "KafkaRecord",
    "KafkaRunCoordinator",
    "KafkaSource",
    "KafkaTopic",
    "KpipeError",
    "OffsetCommittingIOManager",
    "OffsetRange",
    "PartitionEvent",
    "PartitionEventKind",
    "PartitionOwnership",
    "PartitionScaling",
    "PartitionState",
    "PauseConfig",
    "RawCodec",
    "RebalanceMode",
    "RecordRetryPolicy",
    "RedriveConfig",
    "Rule",
    "SparkEngine",
    "TextCodec",
    "TopicSpec",
    "__version__",
    "current_slice",
    "dead_letter_asset",
    "dead_letter_ratio_check",
    "expect",
    "expect_all",
    "kafka_asset",
    "kafka_offset_sensor",
    "kafka_partition_sensor",
    "kafka_partitions",
    "kafka_pool",
    "kafka_topic_asset",
    "lag_check",
    "map_records",
    "offset_contiguity_check",
    "partition_states",
    "pause_job",
    "redrive_job",
    "register_kafka_partitions",
    "retention_check",
    "rule_checks",
    "table_input",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

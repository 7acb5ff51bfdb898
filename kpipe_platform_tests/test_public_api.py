"""The public names are pinned: a change here is a change for users."""

from __future__ import annotations

import subprocess
import sys

import kpipe_platform

PUBLIC = {
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
    "PartitionOwnership",
    "PartitionEvent",
    "PartitionEventKind",
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
}


def test_names_are_pinned() -> None:
    assert set(kpipe_platform.__all__) == PUBLIC
    assert set(dir(kpipe_platform)) == PUBLIC


def test_every_name_is_there() -> None:
    for name in kpipe_platform.__all__:
        assert getattr(kpipe_platform, name) is not None


def test_importing_the_package_imports_neither_spark_nor_dagster_nor_kafka() -> None:
    code = (
        "import sys, kpipe_platform; "
        "print([m for m in ('dagster', 'pyspark', 'confluent_kafka', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

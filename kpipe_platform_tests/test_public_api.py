"""The public names are pinned: a change here is a change for users."""

from __future__ import annotations

import subprocess
import sys

import kpipe_platform

PUBLIC = {
    "FaultAction",
    "JsonCodec",
    "KafkaConnection",
    "KafkaDeadLetterDestination",
    "KafkaDestination",
    "KafkaIOManager",
    "KafkaRecord",
    "KafkaSource",
    "KafkaTopic",
    "KpipeError",
    "OffsetCommittingIOManager",
    "OffsetRange",
    "PartitionScaling",
    "RawCodec",
    "SparkEngine",
    "TextCodec",
    "TopicSpec",
    "__version__",
    "current_slice",
    "kafka_asset",
    "kafka_partitions",
    "kafka_topic_asset",
    "register_kafka_partitions",
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

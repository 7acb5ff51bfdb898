"""The public names are pinned: a change here is a change for users."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Callable

import pytest

import kpipe_platform
from kpipe_platform import (
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    PartitionOwnership,
    PartitionScaling,
    RedriveConfig,
    SparkEngine,
)
from kpipe_platform.errors import ConfigError

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


def _takes_keywords(name: str) -> bool:
    cls = getattr(kpipe_platform, name)
    # Errors hold any facts.
    return isinstance(cls, type) and not issubclass(cls, enum.Enum | kpipe_platform.KpipeError)


@pytest.mark.parametrize("name", sorted(filter(_takes_keywords, kpipe_platform.__all__)))
def test_no_class_takes_a_name_that_it_does_not_know(name: str) -> None:
    with pytest.raises((ConfigError, TypeError), match="mistyped_name"):
        getattr(kpipe_platform, name)(mistyped_name="x")


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda: KafkaConnection(bootstrap_servers="x:1", security_protocl="SASL_SSL"), "security_protocol"),
        (lambda: KafkaConnection.configure_at_launch(bootstrap_server="x:1"), "bootstrap_servers"),
        (lambda: KafkaSource(strat="latest"), "start"),
        (lambda: KafkaSource(connection={"bootstrap_servers": "x:1"}, scaling={"max_record": 5}), "max_records"),
        (lambda: KafkaDestination(delivry="at_least_once"), "delivery"),
        (lambda: KafkaDeadLetterDestination(max_ration=0.1), "max_ratio"),
        (lambda: KafkaIOManager(onfault="skip"), "on_fault"),
        (lambda: PartitionScaling(max_record=5), "max_records"),
        (lambda: PartitionOwnership(sesion_timeout_s=5), "session_timeout_s"),
        (lambda: RedriveConfig(topic="t.dlq", exception=["ValueError"]), "exceptions"),
        (lambda: SparkEngine(mastr="local[2]"), "master"),
    ],
)
def test_a_mistyped_setting_is_refused_with_the_one_that_was_meant(make: Callable[[], object], known: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{known}'"):
        make()


def test_importing_the_package_imports_neither_spark_nor_dagster_nor_kafka() -> None:
    code = (
        "import sys, kpipe_platform; "
        "print([m for m in ('dagster', 'pyspark', 'confluent_kafka', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

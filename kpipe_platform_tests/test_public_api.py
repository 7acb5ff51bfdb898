"""The public names are pinned: a change here is a change for users."""

from __future__ import annotations

import enum
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

import kpipe_platform
from kpipe_platform import (
    Backpressure,
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    PartitionOwnership,
    PartitionScaling,
    RedriveConfig,
    SparkEngine,
    kafka_asset,
    kafka_offset_sensor,
    kafka_partition_sensor,
    kafka_topic_asset,
    lag_check,
    retention_check,
)
from kpipe_platform.errors import ConfigError

from . import public_api


def test_the_public_api_is_pinned() -> None:
    """Names, parameters with their defaults, methods, and the members of enums."""
    message = "the public API changed: run python -m kpipe_platform_tests.public_api, and tell users in CHANGELOG.md"
    assert public_api.render() == public_api.FILE.read_text(), message


def test_every_name_is_listed() -> None:
    assert {*dir(kpipe_platform), "__version__"} == set(kpipe_platform.__all__)


def test_every_name_is_there() -> None:
    for name in kpipe_platform.__all__:
        assert getattr(kpipe_platform, name) is not None


def _takes_keywords(name: str) -> bool:
    cls = getattr(kpipe_platform, name)
    # Errors hold any facts, and an abstract class cannot be made.
    is_made = isinstance(cls, type) and not inspect.isabstract(cls)
    return is_made and not issubclass(cls, enum.Enum | kpipe_platform.KpipeError)


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
        (
            lambda: KafkaSource(connection=KafkaConnection(bootstrap_servers="x:1"), scaling={"max_record": 5}),
            "max_records",
        ),
        (lambda: KafkaDestination(delivry="at_least_once"), "delivery"),
        (lambda: KafkaDeadLetterDestination(max_dead_leter_ratio=0.1), "max_dead_letter_ratio"),
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


SOURCE = kafka_topic_asset("orders", value_codec=JsonCodec("id BIGINT"), partitions=1)
GROWING = kafka_topic_asset("growing", value_codec=JsonCodec("id BIGINT"))
ASSET = kafka_asset(source=SOURCE, topic=KafkaTopic("priced"), name="priced")(lambda orders: orders)


def _asset(**options: Any) -> Callable[[float], object]:
    """Declares an asset with one bad value and what else it needs."""
    return lambda bad: kafka_asset(
        source=SOURCE,
        topic=KafkaTopic("o"),
        **{name: bad if value is ... else value for name, value in options.items()},
    )


SECONDS: dict[str, Callable[[float], object]] = {
    "linger_s": _asset(linger_s=..., max_slices=None),
    "max_duration_s": _asset(max_duration_s=...),
    "kafka_offset_sensor: deadline_s": lambda bad: kafka_offset_sensor(ASSET, deadline_s=bad),
    "max_wait_s": lambda bad: kafka_offset_sensor(ASSET, max_wait_s=bad),
    "retry_max_delay_s": lambda bad: kafka_offset_sensor(ASSET, retry_max_delay_s=bad),
    "kafka_partition_sensor: deadline_s": lambda bad: kafka_partition_sensor(GROWING, deadline_s=bad),
    "max_age_s": lambda bad: lag_check(ASSET, max_age_s=bad),
    "min_time_to_loss_s": lambda bad: retention_check(ASSET, min_time_to_loss_s=bad),
}
COUNTS: dict[str, Callable[[Any], object]] = {
    "max_slices": _asset(max_slices=...),
    "max_lag": lambda bad: lag_check(ASSET, max_lag=bad),
    "min_records": lambda bad: kafka_offset_sensor(ASSET, min_records=bad),
    "failed records": _asset(max_dead_letter_ratio=0.5, min_dead_letters=...),
    "backpressure": lambda bad: Backpressure.of("priced", bad),
}


@pytest.mark.parametrize("option", SECONDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0, -1, True])
def test_seconds_are_a_finite_number_above_zero(option: str, bad: float) -> None:
    with pytest.raises(ConfigError, match=re.escape(option)):
        SECONDS[option](bad)


@pytest.mark.parametrize("option", COUNTS)
@pytest.mark.parametrize("bad", [math.nan, 2.5, -1, True])
def test_counts_are_whole_numbers(option: str, bad: float) -> None:
    with pytest.raises(ConfigError, match=option):
        COUNTS[option](bad)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: kafka_topic_asset("t", value_codec=JsonCodec("id BIGINT"), readers="priced"), r"readers=\['priced'\]"),
        (lambda: kafka_topic_asset("t", value_codec=JsonCodec("id BIGINT"), groups="x"), r"groups=\['x'\]"),
        (lambda: KafkaTopic("t", key_column=["a"]), "key_column is \\['a'\\]"),
        (lambda: KafkaTopic("t", key_column=""), "key_column is ''"),
        (lambda: KafkaTopic("t", timestamp_column=""), "timestamp_column is ''"),
        (lambda: _asset(check_specs=[dg.AssetCheckSpec("c", asset="o")])(0), "rule_checks"),
        (lambda: _asset(partitioned=False, partitions_def=dg.StaticPartitionsDefinition(["0"]))(0), "partitions_def"),
    ],
)
def test_what_would_be_ignored_or_fail_in_the_run_is_refused(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


def test_importing_the_package_imports_neither_spark_nor_dagster_nor_kafka() -> None:
    code = (
        "import sys, kpipe_platform; "
        "print([m for m in ('dagster', 'pyspark', 'confluent_kafka', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Declarations of assets that write several topics. What they do is in ``io_managers/test_several_topics_e2e.py``."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from kpipe_platform import (
    Backpressure,
    JsonCodec,
    KafkaConnection,
    KafkaIOManager,
    KafkaTopic,
    KafkaTopics,
    OffsetCommittingIOManager,
    SparkEngine,
    kafka_asset,
    kafka_multi_asset,
    kafka_offset_sensor,
    kafka_pool,
    kafka_topic_asset,
    lag_check,
    rule_checks,
)
from kpipe_platform.assets.topics_read import topics_read
from kpipe_platform.errors import ConfigError
from kpipe_platform.io_managers.results import outputs_by_name
from kpipe_platform.io_managers.step import destination_of
from kpipe_platform.partitions.groups import leading_key, outputs_of
from kpipe_platform.sensors.tick.candidates import Candidate, Target
from kpipe_platform.sensors.tick.requests import run_request
from kpipe_platform.slices.plan.ranges import PlanPolicy

ORDERS = kafka_topic_asset("orders", value_codec=JsonCodec("id INT"), partitions=2)
EU, US = KafkaTopic("orders.eu", value_codec=JsonCodec("id INT")), KafkaTopic("orders.us", key_expression="id + 1")


def split(**how: Any) -> dg.AssetsDefinition:
    @kafka_multi_asset(**{"source": ORDERS, "outs": {"eu": EU, "us": US}, **how})
    def both(orders: Any) -> dict[str, Any]:
        """Orders of both regions."""
        return {"us": orders, "eu": [*orders, 1]}

    return both


def test_a_multi_asset_has_an_asset_for_each_output() -> None:
    made = split(key_prefix="shop", owners=["team:shop"], group_name="sales", metadata={"mine": 1})
    eu, us = dg.AssetKey(["shop", "eu"]), dg.AssetKey(["shop", "us"])
    assert outputs_of(made) == {"eu": eu, "us": us}
    assert (leading_key(made), made.op.pool) == (eu, kafka_pool(eu))
    specs = {key: made.get_asset_spec(key) for key in (eu, us)}
    assert [spec.metadata["kpipe/topic"] for spec in specs.values()] == ["orders.eu", "orders.us"]
    for spec in specs.values():
        assert (spec.owners, spec.group_name, spec.metadata["mine"]) == (["team:shop"], "sales", 1)
    assert made.partitions_def == ORDERS.partitions_def
    assert made.op.description == "Orders of both regions."


def test_its_function_is_called_with_rows() -> None:
    assert split()([0]) == ([0, 1], [0])
    with pytest.raises(ConfigError, match="has no output 'us'"):
        kafka_multi_asset(source=ORDERS, outs={"eu": EU, "us": US}, name="x")(wrong)([0])


def wrong(orders: Any) -> dict[str, Any]:
    return {"eu": orders}


def test_results_by_name_and_by_position() -> None:
    names = ("eu", "us")
    assert outputs_by_name((1, 2), names, "a") == {"eu": 1, "us": 2}
    assert outputs_by_name(namedtuple("Both", ["us", "eu"])(1, 2), names, "a") == {"eu": 2, "us": 1}
    mistakes = {
        "returned list instead of the rows of its 2 outputs": [1, 2],
        "returned a tuple of 3 instead of the rows of its 2 outputs": (1, 2, 3),
        "has an unknown output 'uk'": {"eu": 1, "us": 2, "uk": 3},
    }
    for message, result in mistakes.items():
        with pytest.raises(ConfigError, match=message):
            outputs_by_name(result, names, "a")


def test_sensors_and_checks_take_all_outputs_or_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = split()
    sensor = kafka_offset_sensor(made)
    assert sensor.name == "eu_offsets"
    selection = sensor.asset_selection
    assert selection is not None
    assert selection.resolve([ORDERS, made]) == set(made.keys)
    assert Backpressure.of(made, 5).asset == dg.AssetKey("eu")
    check = lag_check(made, max_lag=5)
    (rule,) = rule_checks(made, ["positive"])
    assert {spec.asset_key for one in (check, rule) for spec in one.check_specs} == {dg.AssetKey("eu")}
    definitions = dg.Definitions(
        [ORDERS, made],
        asset_checks=[check, rule],
        sensors=[sensor],
        resources={"kafka_io_manager": manager()},
    )
    dg.Definitions.validate_loadable(definitions)
    assert topics_read(made, definitions.get_repository_def()) == ("orders",)
    target = Target(dg.AssetKey("eu"), "g", PlanPolicy("g"), ("orders",), tuple(outputs_of(made).values()))
    with dg.DagsterInstance.ephemeral() as instance:
        request = run_request(instance, target, [Candidate(0, ())])
    assert request.asset_selection == [dg.AssetKey("eu"), dg.AssetKey("us")]
    assert request.tags["kpipe/multi_asset"] == "eu"


def manager() -> KafkaIOManager:
    return KafkaIOManager(connection=KafkaConnection(bootstrap_servers="localhost:1"), spark=SparkEngine())


def test_topics_by_column_come_back_the_same() -> None:
    topics = KafkaTopics("region", {"eu": EU, "us": US})
    metadata = {name: dg.MetadataValue.json(value) for name, value in topics.as_metadata().items()}
    found = destination_of(metadata, dg.AssetKey("a"))
    assert (found.by, found.names, found.topics) == ("region", ("eu", "us"), (EU, US))
    assert KafkaTopics("region", [EU, US]).by_value == {"orders.eu": EU, "orders.us": US}
    with pytest.raises(ConfigError, match="declares both kpipe/topic and kpipe/topics"):
        destination_of({**EU.as_metadata(), **topics.as_metadata()}, dg.AssetKey("a"))
    with pytest.raises(ConfigError, match="does not declare topics"):
        destination_of({"kpipe/topics": {"by": "x"}}, dg.AssetKey("a"))


def by_region() -> dg.AssetsDefinition:
    return kafka_asset(source=ORDERS, topic=KafkaTopics("region", [EU, US]), name="split")(wrong)


def committing() -> dg.AssetsDefinition:
    return kafka_asset(
        source=ORDERS,
        topic=KafkaTopics("region", [EU, US]),
        io_manager_def=OffsetCommittingIOManager(inner=dg.FilesystemIOManager()),
    )(wrong)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: split(outs={}), "has no topic"),
        (lambda: split(outs=[EU, US]), "expected a topic for each output"),
        (lambda: split(outs={"a": EU, "b": EU}), "topic 'orders.eu' more than once"),
        (lambda: split(can_subset=True), "can_subset=True"),
        (lambda: split(check_specs=[dg.AssetCheckSpec("c", asset="eu")]), "cannot return check results"),
        (lambda: split(metadata={"kpipe/topic": "x"}, source=[]), "@kafka_multi_asset has no source"),
        (lambda: split(metadata={"kpipe/unknown": 1}), "unknown metadata"),
        (lambda: split(metadata={"kpipe/topic": "x"}), "has 'kpipe/topic', which another argument declares"),
        (lambda: split(outs={"orders-eu": EU}), "'orders-eu' is not a name for an output"),
        (lambda: split(linger_s=5), "@kafka_multi_asset\\(linger_s=5\\)"),
        (lambda: split(source=split()), "must define exactly one asset(.|\\n)*get_asset_spec"),
        (lambda: split(source=by_region()), "writes several topics, so it cannot be read as one"),
        (committing, "declares a destination topic"),
        (lambda: KafkaTopics("", [EU]), "expected the name of a column"),
        (lambda: KafkaTopics("by", []), "has no topic"),
        (lambda: KafkaTopics("by", [EU, EU]), "topics is"),
        (lambda: KafkaTopics("by", {"a": EU, "b": EU}), "more than once"),
        (lambda: KafkaTopics("by", {"a": "orders.eu"}), "topics is"),  # type: ignore[dict-item]
        (lambda: KafkaTopics("by", "orders.eu"), "topics is"),  # type: ignore[arg-type]
        (lambda: KafkaTopic("t", key_column="a", key_expression="b"), "has both key_column='a' and key_expression='b'"),
        (lambda: KafkaTopic("t", key_expression=" "), "key_expression is ' '"),
        (lambda: KafkaTopic("t", headers_column=""), "headers_column is ''"),
        (lambda: KafkaTopic("t", partition_column=3), "partition_column is 3"),  # type: ignore[arg-type]
    ],
)
def test_mistakes(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare()

"""``kafka_topic_asset`` as Dagster sees it: its attributes in the asset graph, its runs, and what is refused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import dagster as dg
import pytest
from dagster._check import CheckError
from dagster._core.definitions.observe import observe

from kpipe_platform import (
    JsonCodec,
    KafkaTopic,
    TextCodec,
    dead_letter_asset,
    kafka_asset,
    kafka_partition_sensor,
    kafka_partitions,
    kafka_topic_asset,
    lag_check,
)
from kpipe_platform.errors import ConfigError
from kpipe_platform_tests.io_managers.conftest import ORDER, Orders, order

RANGE = {"dagster/asset_partition_range_start": "1", "dagster/asset_partition_range_end": "2"}


def topic(of: str = "orders", /, **how: Any) -> dg.AssetsDefinition:
    return kafka_topic_asset(of, value_codec=JsonCodec("id BIGINT NOT NULL"), **how)


def definitions(*assets: Any, **how: Any) -> dg.Definitions:
    managers = dict.fromkeys(("kafka_io_manager", "other"), dg.InMemoryIOManager())
    return dg.Definitions(assets=assets, resources=managers, **how)


def node_of(*assets: Any) -> Any:
    """The first asset in the asset graph."""
    return definitions(*assets).resolve_asset_graph().get(assets[0].key)


def over(source: Any, **how: Any) -> dg.AssetsDefinition:
    return kafka_asset(source=source, topic=KafkaTopic("priced"), name="priced", **how)(lambda orders: orders)


class TestAttributes:
    def test_all_of_them_are_in_the_asset_graph(self) -> None:
        condition = dg.AutomationCondition.cron_tick_passed("@hourly")
        made = topic(
            "shop.orders",
            key_codec=TextCodec(),
            partitions=2,
            key_prefix=["shop"],
            name="orders",
            group_name="shop",
            description="Orders of the shop.",
            metadata={"runbook": "https://example.org/orders"},
            owners=["team:shop", "ada@example.org"],
            tags={"domain": "sales"},
            kinds={"kafka", "json"},
            automation_condition=condition,
        )
        node = node_of(made)
        assert node.key == dg.AssetKey(["shop", "orders"])
        assert (node.is_observable, node.is_materializable, node.is_external) == (True, False, True)
        assert (node.group_name, node.description) == ("shop", "Orders of the shop.")
        assert node.owners == ["team:shop", "ada@example.org"]
        assert node.tags["domain"] == "sales"
        assert node.kinds == {"kafka", "json"}
        assert node.automation_condition == condition
        assert node.partitions_def == dg.StaticPartitionsDefinition(["0", "1"])
        shown = {key: node.metadata[key] for key in ("kpipe/topic", "kpipe/value_codec", "kpipe/key_codec", "runbook")}
        assert shown == {
            "kpipe/topic": "shop.orders",
            "kpipe/value_codec": "json: id BIGINT NOT NULL",
            "kpipe/key_codec": "text",
            "runbook": "https://example.org/orders",
        }
        assert made.get_io_manager_key_for_asset_key(made.key) == "kafka_io_manager"

    def test_defaults(self) -> None:
        node = node_of(topic("click-stream"))
        assert node.key == dg.AssetKey("click_stream")
        assert (node.description, node.kinds, list(node.owners)) == ("Kafka topic click-stream.", {"kafka"}, [])
        assert node.partitions_def == kafka_partitions("click-stream")

    def test_some_of_the_partitions(self) -> None:
        some = dg.StaticPartitionsDefinition(["0", "3"])
        made = topic(partitions_def=some)
        assert node_of(made).partitions_def == some
        assert over(made).partitions_def == some
        assert topic(partitions_def=kafka_partitions("orders")).partitions_def == kafka_partitions("orders")

    def test_its_spec_is_the_asset_without_observations(self) -> None:
        made = topic(partitions=2, owners=["team:shop"], io_manager_key="other")
        spec = made.get_asset_spec()
        node = node_of(spec, over(spec))
        assert (node.is_observable, node.owners, node.kinds) == (False, ["team:shop"], {"kafka"})
        assert node.partitions_def == made.partitions_def
        assert node.assets_def.get_io_manager_key_for_asset_key(spec.key) == "other"

    def test_several_topics_are_observed_by_one_job(self) -> None:
        topics = [topic(name, partitions=1) for name in ("orders", "payments")]
        job = dg.define_asset_job("observe_topics", selection=topics)
        assert len(definitions(*topics, jobs=[job]).resolve_job_def("observe_topics").nodes) == 2

    def test_another_io_manager_is_refused_with_the_way_out(self) -> None:
        # A KafkaSource is no way out: at this key, Dagster accepts only IO managers.
        message = (
            r"topic 'orders' needs a KafkaIOManager, but resource 'kafka_io_manager' is InMemoryIOManager\n"
            r".*\{\"kafka_io_manager\": KafkaIOManager\(\.\.\.\)\}\), or change kafka_topic_asset\(io_manager_key="
        )
        with pytest.raises(ConfigError, match=message):
            observe([topic(partitions=1)], resources={"kafka_io_manager": dg.InMemoryIOManager()}, partition_key="0")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"owners": "team:shop"}, "owners='team:shop'): expected several values, not a string.*owners=['team:shop']"),
        ({"kinds": "kafka"}, "kinds='kafka'): expected several values, not a string.*kinds={'kafka'}"),
        ({"readers": "priced"}, "readers='priced'): expected several values, not a string.*readers=['priced']"),
        ({"name": "input"}, "cannot have the key input: .*is not a valid name.*kafka_topic_asset(name=...)"),
        ({"partitions": 0}, "count is 0"),
        ({"partitions": 2, "partitions_def": kafka_partitions("orders", 2)}, "partitions=2 and partitions_def="),
        ({"partitions_def": kafka_partitions("payments")}, "does not list partitions of the topic"),
        ({"partitions_def": dg.DailyPartitionsDefinition("2026-01-01")}, "does not list partitions of the topic"),
        (
            {"partitions_def": dg.StaticPartitionsDefinition(["0", "01"])},
            "partition '01' of partitions_def= is not a Kafka partition number",
        ),
        (
            {"partitions_def": dg.StaticPartitionsDefinition(["eu"])},
            "partition 'eu' of partitions_def= is not a Kafka partition number",
        ),
    ],
)
def test_a_bad_value_is_refused_with_the_way_out(how: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says).replace(r"\.\*", "(?s:.*)")):
        topic(**how)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"owners": ["shop"]}, "Invalid owner 'shop'"),
        ({"group_name": "no spaces"}, "no spaces"),
        ({"tags": {"no spaces": "x"}}, "no spaces"),
        ({"automation_condition": "eager"}, "automation_condition"),
    ],
)
def test_dagster_refuses_its_own(how: dict[str, Any], says: str) -> None:
    with pytest.raises((dg.DagsterInvalidDefinitionError, CheckError), match=says):
        topic(**how)


TWO = dg.multi_asset(name="two_assets", specs=[dg.AssetSpec("one"), dg.AssetSpec("two")])(lambda: None)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("orders", "a source must be an asset definition, but 'orders' is str"),
        (["orders"], "'orders' is str"),
        (dg.AssetKey("orders"), "is AssetKey"),
        ({"orders": topic()}, "is dict"),
        (KafkaTopic("orders"), "is KafkaTopic"),
        (None, "None is NoneType"),
        ([topic(), topic], "is function"),
        (TWO, "this definition has the assets: one, two"),
    ],
)
def test_what_is_not_a_source_is_refused_everywhere(source: Any, says: str) -> None:
    for use in (over, lambda one: lag_check(over(topic()), max_lag=1, source=one)):
        if use is not over and source is None:
            continue
        with pytest.raises(ConfigError, match=re.escape(says)) as caught:
            use(source)
        assert ("get_asset_spec" if source is TWO else "kafka_topic_asset(...)") in str(caught.value)
    if not isinstance(source, list):
        for alone in (dead_letter_asset, kafka_partition_sensor):
            with pytest.raises(ConfigError, match=re.escape(says)):
                alone(source)


def test_a_source_without_a_readable_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="asset orders does not declare a topic"):
        over(dg.AssetSpec("orders"))
    with pytest.raises(ConfigError, match=r"topic 'orders' cannot be read: its JsonCodec\(\) has no schema"):
        over(dg.AssetSpec("orders", metadata=KafkaTopic("orders").as_metadata()))


@pytest.mark.broker
@pytest.mark.spark
class TestRuns:
    def test_of_a_topic_and_the_asset_that_reads_it(self, make_orders: Callable[..., Orders]) -> None:
        """Dagster's automation puts both into one run when both are due."""
        orders = make_orders(2)
        orders.send(*(order(n, partition=n % 2) for n in range(4)))
        topic, asset = orders.topic_asset, orders.asset()
        for time in (1, 2):
            result = dg.materialize(
                [topic, asset],
                selection=[topic, asset],
                partition_key="0",
                resources={"kafka_io_manager": orders.manager},
                instance=orders.instance,
            )
            (seen,) = result.get_asset_observation_events()
            observation = seen.asset_observation_data.asset_observation
            assert (observation.partition, observation.data_version) == ("0", str(2 * time))
            (read,) = result.asset_materializations_for_node("enriched")
            assert read.metadata["kpipe/records_read"].value == 2
            orders.send(*(order(n, partition=0) for n in (4, 6)))

    def test_without_a_selection_materialize_assets_only(self, orders: Orders) -> None:
        orders.send(order(1))
        result = dg.materialize(
            [orders.topic_asset, orders.asset()],
            partition_key="0",
            resources={"kafka_io_manager": orders.manager},
            instance=orders.instance,
        )
        assert result.get_asset_observation_events() == []
        assert orders.ids() == [1]

    def test_over_a_spec_are_those_over_the_topic(self, orders: Orders) -> None:
        """Twice: the offsets are those of the same group and topic."""
        orders.topic_asset = dg.AssetSpec(
            "orders",
            metadata=KafkaTopic(orders.source, value_codec=JsonCodec(ORDER), key_codec=TextCodec()).as_metadata(),
            partitions_def=kafka_partitions(orders.source, 1),
        ).with_io_manager_key("kafka_io_manager")
        asset = orders.asset()
        for number in (1, 2):
            orders.send(order(number))
            assert orders.metadata(orders.run(asset))["records_read"] == 1
        assert orders.ids() == [1, 2]

    def test_of_a_range_observe_its_partitions(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(4)
        topic = kafka_topic_asset(orders.source, value_codec=JsonCodec(ORDER), name="orders", partitions=4)
        result = observe(
            [topic], resources={"kafka_io_manager": orders.manager}, instance=orders.instance, tags=dict(RANGE)
        )
        found = [e.asset_observation_data.asset_observation.partition for e in result.get_asset_observation_events()]
        assert sorted(found) == ["1", "2"]

    def test_some_partitions_are_observed(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(3)
        some = dg.StaticPartitionsDefinition(["0", "2"])
        topic = kafka_topic_asset(orders.source, value_codec=JsonCodec(ORDER), name="orders", partitions_def=some)
        result = observe([topic], resources={"kafka_io_manager": orders.manager}, instance=orders.instance)
        found = [e.asset_observation_data.asset_observation.partition for e in result.get_asset_observation_events()]
        assert sorted(found) == ["0", "2"]


def test_a_topic_that_assets_write_has_them_upstream() -> None:
    source = topic(partitions=4)
    writer = over(source)
    dep = dg.AssetDep("planes", partition_mapping=dg.IdentityPartitionMapping())
    written = kafka_topic_asset(
        "written", value_codec=JsonCodec("id INT"), partitions=2, deps=[writer, "airlines", dep]
    )
    graph = definitions(source, writer, written).resolve_asset_graph()
    assert graph.get(written.key).parent_keys == {writer.key, dg.AssetKey("airlines"), dg.AssetKey("planes")}
    mappings = [each.partition_mapping for each in written.get_asset_spec().deps]
    every = dg.AllPartitionMapping()
    assert mappings == [every, every, dg.IdentityPartitionMapping()]


def test_an_automation_condition_requests_the_observation_of_each_partition() -> None:
    made = topic(partitions=2, automation_condition=dg.AutomationCondition.on_cron("*/5 * * * *"))
    began = datetime(2026, 1, 1, 12, 1, tzinfo=timezone.utc)
    cursor, requested = None, []
    with dg.DagsterInstance.ephemeral() as instance:
        for minutes in (0, 2, 5):
            result = dg.evaluate_automation_conditions(
                definitions(made), instance, evaluation_time=began + timedelta(minutes=minutes), cursor=cursor
            )
            cursor = result.cursor
            requested.append(set(result.get_requested_partitions(made.key)))
    assert requested == [set(), set(), {"0", "1"}]


def test_no_warning_of_dagster_reaches_the_user() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = topic(partitions=2, owners=["team:shop"], automation_condition=dg.AutomationCondition.eager())
        dg.Definitions.validate_loadable(definitions(made, over(made)))

"""What ``@kafka_asset`` makes of a declaration, and what it refuses; no broker, no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from kpipe_platform import JsonCodec, KafkaTopic, kafka_asset, kafka_topic_asset, table_input
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def source(key: str) -> dg.AssetSpec:
    topic = kafka_topic_asset("t", value_codec=JsonCodec("id BIGINT"), partitions=1)
    return topic.get_asset_spec().replace_attributes(key=key.split("/"))


def stage_with(*parameters: str) -> Any:
    """A stage with parameters of these names."""
    return eval(f"lambda {', '.join(parameters)}: None")


def declared(keys: list[str], *parameters: str, **how: Any) -> dg.AssetsDefinition:
    made = kafka_asset(source=[source(key) for key in keys], topic=KafkaTopic("out"), name="joined", **how)
    return made(stage_with(*parameters))


@pytest.mark.parametrize(
    "parameters",
    [
        {"orders": "orders", "payments": "payments"},
        {"orders": "eu/orders"},
        {"click_stream": "click-stream"},
        {"eu_orders": "eu/orders", "us_orders": "us/orders"},
        {"eu_orders": "eu/orders", "us_orders": "us/orders", "payments": "eu/payments"},
        {"eu_click_stream": "eu/click-stream", "click_stream": "click_stream"},
    ],
)
def test_each_source_has_a_parameter_of_its_own(parameters: dict[str, str]) -> None:
    made = declared(list(parameters.values()), *parameters)
    assert made.keys_by_input_name == {name: dg.AssetKey(key.split("/")) for name, key in parameters.items()}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            ["click-stream", "click_stream"],
            "click-stream and click_stream have the same parameter name, 'click_stream'",
        ),
        (["orders", "orders"], "orders and orders have the same parameter name"),
        (["eu/orders", "us/orders", "eu_orders"], "have the same parameter name, 'eu_orders'"),
        (["2024"], "the parameter of source 2024 would be named"),
        (["class"], "the parameter of source class would be named"),
        (["context"], "the parameter of source context would be named"),
        (["config"], "the parameter of source config would be named"),
    ],
)
def test_sources_that_cannot_have_one_are_refused(keys: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=r"kafka_topic_asset\(name=\.\.\.\)") as caught:
        declared(keys, "orders", "click_stream")
    assert says in str(caught.value)


def test_another_input_beside_a_source_has_a_name_of_its_own() -> None:
    with pytest.raises(ConfigError, match="input 'orders' has the same name as the parameter of source eu/orders"):
        declared(["eu/orders"], "orders", ins={"orders": table_input("customers")})
    again = table_input(dg.AssetKey(["eu", "orders"]))
    with pytest.raises(ConfigError, match="input 'all_orders' is asset eu/orders, which is already a source"):
        declared(["eu/orders"], "orders", "all_orders", ins={"all_orders": again})
    table = declared(["eu/orders"], "orders", "customers", ins={"customers": table_input()})
    assert set(table.keys_by_input_name) == {"orders", "customers"}


def test_an_annotation_that_exists_for_type_checkers_only() -> None:
    def stage(orders: DataFrame) -> DataFrame:
        return orders

    with pytest.raises(ConfigError, match=r"stage: name 'DataFrame' .*\n.*outside `if TYPE_CHECKING") as e:
        kafka_asset(source=source("orders"), topic=KafkaTopic("out"))(stage)
    assert isinstance(e.value.__cause__, NameError)


def test_one_decorator_for_two_functions() -> None:
    made = kafka_asset(
        source=source("orders"), topic=KafkaTopic("out"), description="ours", kinds={"kafka"}, io_manager_key="own"
    )

    def first(orders: Any) -> Any:
        return orders

    def second(orders: Any) -> Any:
        return orders

    for asset in (made(first), made(second)):
        (spec,) = asset.specs
        assert (spec.description, spec.kinds) == ("ours", {"kafka"})
        assert asset.get_io_manager_key_for_asset_key(spec.key) == "own"


@pytest.mark.parametrize("name", ["kpipe/onfault", "kpipe/read", "kpipe/ranges"])
def test_metadata_of_kpipes_that_there_is_not(name: str) -> None:
    with pytest.raises(ConfigError, match=f"@kafka_asset has unknown metadata '{name}'.*\n.*use one of kpipe/topic"):
        declared(["orders"], "orders", metadata={name: "skip"})
    with pytest.raises(ConfigError, match=f"has unknown metadata '{name}'"):
        kafka_topic_asset("t", value_codec=JsonCodec("id BIGINT"), metadata={name: "skip"})
    declared(["orders"], "orders", metadata={"kpipe/on_fault": "skip", "team": "kpipe"})


@pytest.mark.parametrize("metadata", [{"kpipe/read": "Table"}, {"kpipe/reads": "table"}])
def test_an_input_that_is_to_be_read_in_another_way(metadata: dict[str, str]) -> None:
    given = dg.AssetIn("customers", metadata=metadata)
    with pytest.raises(ConfigError, match=r"input 'customers' has (unknown )?metadata"):
        declared(["orders"], "orders", "customers", ins={"customers": given})

"""What an asset reads, from the name that an operator gives and from Dagster's records."""

from __future__ import annotations

import json
from collections.abc import Iterator

import dagster as dg
import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.partitions.groups import Reads, all_reads, known_reads, parse_asset, reads_of

KEY = dg.AssetKey(["shop", "orders_priced"])


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def materialized(instance: dg.DagsterInstance, key: dg.AssetKey, group: str, *topics: str) -> None:
    ranges = [{"topic": topic, "partition": 0, "start": 0, "end": 5, "topic_id": "id"} for topic in topics]
    metadata = {"kpipe/consumer_group": group, "kpipe/ranges": dg.MetadataValue.json(ranges)}
    instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata))


def run_of(instance: dg.DagsterInstance, key: dg.AssetKey, **tags: str) -> None:
    @dg.asset(key=key)
    def made() -> None: ...

    job = dg.Definitions([made]).resolve_implicit_global_asset_job_def()
    instance.create_run_for_job(job, asset_selection={key}, tags={f"kpipe/{k}": v for k, v in tags.items()})


@pytest.mark.parametrize("text", ["shop/orders_priced", " shop/orders_priced\n"])
def test_an_asset_is_named_as_in_the_ui(text: str) -> None:
    assert parse_asset(text) == KEY


@pytest.mark.parametrize("text", ["", "/", "shop/", "a//b"])
def test_an_empty_part_of_a_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an asset key"):
        parse_asset(text)


def test_the_last_run_of_a_sensor_comes_before_the_last_materialization(instance: dg.DagsterInstance) -> None:
    assert reads_of(instance, KEY) is None
    materialized(instance, KEY, "kpipe.shop.orders_priced", "orders")
    assert reads_of(instance, KEY) == Reads("kpipe.shop.orders_priced", ("orders",))
    run_of(
        instance, KEY, group="new.shop.orders_priced", ranges=json.dumps({"orders": {"0": [0, 1]}, "b": {"0": [0, 1]}})
    )
    assert reads_of(instance, KEY) == Reads("new.shop.orders_priced", ("orders", "b"))
    # Nobody requested this run by its offsets, so the last materialization counts.
    run_of(instance, KEY)
    assert reads_of(instance, KEY) == Reads("kpipe.shop.orders_priced", ("orders",))


def test_an_asset_without_a_materialization_is_known_by_its_run(instance: dg.DagsterInstance) -> None:
    run_of(instance, KEY, group="kpipe.shop.orders_priced", ranges=json.dumps({"orders": {"0": [0, 1]}}))
    assert known_reads(instance, KEY, fix="") == Reads("kpipe.shop.orders_priced", ("orders",))


def test_a_multi_asset_without_a_materialization_too(instance: dg.DagsterInstance) -> None:
    first, second = dg.AssetKey("eu"), dg.AssetKey("us")

    split = dg.multi_asset(specs=[dg.AssetSpec(first), dg.AssetSpec(second)], name="split")(lambda: None)

    job = dg.Definitions([split]).resolve_implicit_global_asset_job_def()
    tags = {"kpipe/group": "g", "kpipe/ranges": '{"orders":{"0":[0,1]}}', "kpipe/multi_asset": "eu"}
    instance.create_run_for_job(job, asset_selection={first, second}, tags=tags)
    assert [reads_of(instance, key) for key in (first, second)] == [Reads("g", ("orders",), first)] * 2


def test_assets_that_read_no_topic_are_not_listed(instance: dg.DagsterInstance) -> None:
    materialized(instance, KEY, "kpipe.shop.orders_priced", "orders")
    materialized(instance, dg.AssetKey("late"), "kpipe.late", "orders")
    instance.report_runless_asset_event(dg.AssetMaterialization("planes"))
    assert [key.to_user_string() for key, _ in all_reads(instance)] == ["late", "shop/orders_priced"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("shop/order_priced", "; similar names: shop/orders_priced\n"),
        ("orders_priced", "; similar names: shop/orders_priced\n"),
        ("nothing", "'nothing' does not exist in Dagster\n"),
        ("defined_elsewhere_", "; similar names: defined_elsewhere\n"),
    ],
)
def test_an_unknown_asset_is_refused_with_similar_names(instance: dg.DagsterInstance, name: str, near: str) -> None:
    materialized(instance, KEY, "kpipe.shop.orders_priced", "orders")
    with pytest.raises(ConfigError, match="does not exist in Dagster") as caught:
        known_reads(instance, parse_asset(name), fix="or run it", also=[dg.AssetKey("defined_elsewhere")])
    assert near in str(caught.value)
    assert "correct the name; or run it" in str(caught.value)


def test_an_asset_that_read_no_topic_is_refused(instance: dg.DagsterInstance) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization("planes"))
    with pytest.raises(ConfigError, match="no record of a topic that asset planes has read"):
        known_reads(instance, dg.AssetKey("planes"), fix="")

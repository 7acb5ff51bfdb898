"""Pausing by a job in the UI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from kpipe_platform import JsonCodec, KafkaTopic, kafka_asset, kafka_topic_asset
from kpipe_platform.errors import ConfigError
from kpipe_platform.jobs import PauseConfig, pause_job
from kpipe_platform.partitions.pauses import paused

orders = kafka_topic_asset("orders", value_codec=JsonCodec("id LONG"), partitions=2)
payments = kafka_topic_asset("payments", value_codec=JsonCodec("id LONG"))


@kafka_asset(source=orders, topic=KafkaTopic("orders.priced", value_codec=JsonCodec()), key_prefix="shop")
def orders_priced(orders: Any) -> Any:
    return orders


@kafka_asset(source=payments, topic=KafkaTopic("payments.booked", value_codec=JsonCodec()))
def payments_booked(payments: Any) -> Any:
    return payments


@dg.asset
def planes() -> None: ...


defs = dg.Definitions(
    assets=[orders, payments, orders_priced, payments_booked, planes],
    jobs=[pause_job()],
    # The job uses no resource; the definitions must have those of the assets.
    resources={"kafka_io_manager": dg.mem_io_manager},
)
PRICED = dg.AssetKey(["shop", "orders_priced"])


@pytest.fixture
def instance(tmp_path: Any) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def run(instance: dg.DagsterInstance, asset: str, **values: Any) -> str | None:
    """Run the job as a code location does, with its definitions; returns the error, if the run fails."""
    job = ReconstructableRepository.for_file(__file__, "defs").get_reconstructable_job("pause_partitions")
    # In this process: another one for each step would take seconds.
    config = dg.RunConfig(ops={"pause": PauseConfig(asset=asset, **values)}, execution={"config": {"in_process": {}}})
    with dg.execute_job(job, instance, run_config=config.to_config_dict()) as result:
        failures = result.filter_events(lambda event: event.is_step_failure)
        return failures[0].step_failure_data.error.to_string() if failures else None


def test_an_asset_that_has_never_run_is_known_by_its_definition(instance: dg.DagsterInstance) -> None:
    run(instance, "shop/orders_priced", partitions=[0, 1], reason="broken")
    assert {number: each.reason for number, each in paused(instance, PRICED).items()} == {0: "broken", 1: "broken"}
    run(instance, "shop/orders_priced", partitions=[1], action="resume")
    assert list(paused(instance, PRICED)) == [0]


@pytest.mark.parametrize(
    ("asset", "partitions", "message"),
    [
        ("shop/orders_priced", [], "has no partitions"),
        ("shop/orders_priced", [0, 2], "has no partition 2"),
        ("shop/orders_priced", [-1], "has no partition -1"),
        ("payments_booked", [-1], "has no partition -1"),
        ("orders_priced", [0], "asset 'orders_priced' does not exist in Dagster; similar names: shop/orders_priced"),
        ("payment_booked", [0], "similar names: payments_booked"),
        ("planes", [0], "does not read slices of a Kafka topic"),
        ("shop/", [0], "not an asset key"),
    ],
)
def test_a_wrong_asset_or_partition_is_refused_before_anything_is_paused(
    instance: dg.DagsterInstance, asset: str, partitions: list[int], message: str
) -> None:
    assert message in str(run(instance, asset, partitions=partitions))
    assert paused(instance, PRICED) == {}


def test_dynamic_partitions_are_checked_once_they_are_registered(instance: dg.DagsterInstance) -> None:
    run(instance, "payments_booked", partitions=[5])
    instance.add_dynamic_partitions("kafka.payments", ["0", "1"])
    assert "has no partition 6" in str(run(instance, "payments_booked", partitions=[6]))
    # What is paused can be resumed, although the topic turned out to have fewer partitions.
    run(instance, "payments_booked", partitions=[5], action="resume")
    assert paused(instance, dg.AssetKey("payments_booked")) == {}


def test_an_asset_of_another_code_location_is_known_by_its_records(instance: dg.DagsterInstance) -> None:
    key = dg.AssetKey("elsewhere")
    name = "kpipe/paused/kpipe.elsewhere/orders"
    instance.daemon_cursor_storage.set_cursor_values({f"{name}/3": '{"since_ms": 1000, "reason": "then"}'})
    instance.add_dynamic_partitions(name, ["3"])
    assert "asset 'elsewhere' does not exist" in str(run(instance, "elsewhere", partitions=[1]))
    ranges = [{"topic": "orders", "partition": 0, "start": 0, "end": 5, "topic_id": "id"}]
    metadata = {"kpipe/consumer_group": "kpipe.elsewhere", "kpipe/ranges": dg.MetadataValue.json(ranges)}
    instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata))
    run(instance, "elsewhere", partitions=[1])
    # Version 0.1 stored the pause of partition 3 for the asset's group.
    assert list(paused(instance, key)) == [1, 3]
    run(instance, "elsewhere", partitions=[3], action="resume")
    assert list(paused(instance, key)) == [1]


def test_without_definitions_the_records_count() -> None:
    config = dg.RunConfig(ops={"pause": PauseConfig(asset="shop/orders_priced", partitions=[0])})
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(ConfigError, match="does not exist in Dagster"):
        pause_job().execute_in_process(config, instance=instance)

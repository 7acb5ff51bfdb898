"""Every partition of what is read is somebody's: assets over Kafka assets, fixed partitions, several sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import (
    JsonCodec,
    KafkaTopic,
    TopicSpec,
    kafka_asset,
    kafka_offset_sensor,
    kafka_partition_sensor,
    kafka_topic_asset,
    register_kafka_partitions,
)
from kpipe_platform.errors import ConfigError

from .conftest import ORDER, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS = 12


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that a sensor context takes: not an ephemeral one."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


class Chain:
    """An asset ``middle`` that writes a topic of 3 partitions, and ``last`` over it."""

    def __init__(self, orders: Orders, partitions: int | None, **how: Any) -> None:
        self.orders = orders
        self.between = f"{orders.target}.between"
        self.source = kafka_topic_asset(
            orders.source, value_codec=JsonCodec(ORDER), partitions=partitions, name="orders"
        )

        @kafka_asset(
            source=self.source,
            topic=KafkaTopic(self.between, value_codec=JsonCodec(ORDER), create=TopicSpec(partitions=3)),
        )
        def middle(orders: DataFrame) -> DataFrame:
            return orders

        @kafka_asset(source=middle, topic=KafkaTopic(orders.target), **how)
        def last(middle: DataFrame) -> DataFrame:
            return middle

        self.middle, self.last = middle, last

    def run(self, asset: dg.AssetsDefinition, key: str | None) -> None:
        dg.materialize(
            [self.source, self.middle, self.last],
            selection=[asset],
            resources={"kafka_io_manager": self.orders.manager},
            partition_key=key,
            instance=self.orders.instance,
        )

    def fill(self, partitions: int) -> None:
        """Have the first asset write all records of the source."""
        for number in range(partitions):
            each = range(number, RECORDS, partitions)
            self.orders.send(*({**order(n), "partition": number} for n in each))
            self.run(self.middle, str(number))
        read = self.orders.manager.source.watermarks(self.between)
        assert all(marks.end for marks in read.values())


def tick(
    orders: Orders, stored: dg.DagsterInstance, sensor: dg.SensorDefinition, *assets: Any
) -> tuple[dict[str, list[str]], str]:
    """What a tick registers, by the name of the partitions, and why it skips."""
    resources = {"kafka_io_manager": orders.manager}
    with dg.build_sensor_context(
        instance=stored,
        instance_ref=stored.get_ref(),
        definitions=dg.Definitions(assets=assets, resources=resources),
        resources=resources,
    ) as context:
        made = sensor.evaluate_tick(context)
    requests = made.dynamic_partitions_requests or []
    return {each.partitions_def_name: list(each.partition_keys) for each in requests}, str(made.skip_message)


def keys(asset: dg.AssetsDefinition) -> list[str]:
    assert asset.partitions_def is not None
    return list(asset.partitions_def.get_partition_keys())


def test_an_asset_over_another_has_the_partitions_of_what_it_reads(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(2)
    chain = Chain(orders, 2)
    chain.fill(2)
    assert keys(chain.last) == ["0", "1", "2"]
    for key in keys(chain.last):
        chain.run(chain.last, key)
    assert sorted(orders.ids()) == list(range(RECORDS))


def test_dynamic_partitions_are_those_of_the_topic_that_is_read(
    make_orders: Callable[..., Orders], stored: dg.DagsterInstance
) -> None:
    orders = make_orders(2)
    chain = Chain(orders, None)
    for instance in (orders.instance, stored):
        register_kafka_partitions(instance, orders.source, range(2))
    chain.fill(2)
    for sensor in (kafka_offset_sensor(chain.last), kafka_partition_sensor(chain.middle)):
        registered, _ = tick(orders, stored, sensor, chain.source, chain.middle, chain.last)
        assert registered == {f"kafka.{chain.between}": ["0", "1", "2"]}
    register_kafka_partitions(orders.instance, chain.between, range(3))
    for key in ("0", "1", "2"):
        chain.run(chain.last, key)
    assert sorted(orders.ids()) == list(range(RECORDS))


def test_no_sensor_registers_partitions_of_another_topic(
    make_orders: Callable[..., Orders], stored: dg.DagsterInstance
) -> None:
    """A plain asset may be given those: its sensor leaves them alone and says what is not read."""
    orders, other = make_orders(2), make_orders(3)
    topic = kafka_topic_asset(other.source, value_codec=JsonCodec(ORDER), name="other")

    @dg.asset(
        io_manager_key="kafka_io_manager",
        partitions_def=dg.DynamicPartitionsDefinition(name=f"kafka.{orders.source}"),
        metadata=KafkaTopic(orders.target).as_metadata(),
    )
    def plain(other: DataFrame) -> DataFrame:
        return other

    register_kafka_partitions(stored, orders.source, range(2))
    registered, said = tick(orders, stored, kafka_offset_sensor(plain), topic, plain)
    assert not registered
    assert f"{other.source}/2 has no Dagster partition" in said


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_names_the_partitions_that_nobody_reads(make_orders: Callable[..., Orders], plain: bool) -> None:
    orders = make_orders(3)
    orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec(ORDER), partitions=2, name="orders")

    def enriched(orders: DataFrame) -> DataFrame:
        return orders

    asset = orders.asset(enriched)
    if plain:
        metadata = KafkaTopic(orders.target).as_metadata()
        asset = dg.asset(
            partitions_def=orders.topic_asset.partitions_def, io_manager_key="kafka_io_manager", metadata=metadata
        )(enriched)
    orders.send({**order(1), "partition": 2})
    run = orders.run(asset)
    said = [entry.user_message for entry in orders.instance.all_logs(run.run_id) if entry.level == logging.WARNING]
    assert len(said) == 1
    assert (
        f"topic {orders.source}: no run reads partition(s) 2, because asset enriched has no Dagster partitions"
        in said[0]
    )


class TestSources:
    """Several sources, of which a run takes the same partition."""

    @staticmethod
    def over(*sources: Any, **how: Any) -> dg.AssetsDefinition:
        @kafka_asset(source=sources, topic=KafkaTopic("out"), **how)
        def joined(one: DataFrame, two: DataFrame) -> DataFrame:
            return one.unionByName(two)

        return joined

    @staticmethod
    def topics(first: Orders, second: Orders, *counts: int | None) -> list[Any]:
        return [
            kafka_topic_asset(orders.source, value_codec=JsonCodec(ORDER), partitions=count, name=name)
            for orders, count, name in zip((first, second), counts, ("one", "two"), strict=True)
        ]

    def test_different_fixed_numbers_are_refused_when_declared(self, make_orders: Callable[..., Orders]) -> None:
        topics = self.topics(make_orders(), make_orders(), 2, 4)
        with pytest.raises(ConfigError, match=r"differ in partitions: one has 2, two has 4\n.*partitioned=False"):
            self.over(*topics)
        self.over(*topics, partitioned=False)

    def test_different_numbers_are_refused_by_the_run_and_by_the_tick(
        self, make_orders: Callable[..., Orders], stored: dg.DagsterInstance
    ) -> None:
        first, second = make_orders(1), make_orders(2)
        topics = self.topics(first, second, 1, None)
        first.send(order(1))
        joined = self.over(*topics)
        register_kafka_partitions(first.instance, second.source, range(2))
        says = f"differ in partitions: .*{first.source} has 1"
        with pytest.raises(ConfigError, match=says):
            dg.materialize(
                [*topics, joined],
                selection=[joined],
                resources={"kafka_io_manager": first.manager},
                partition_key="0",
                instance=first.instance,
            )
        group = f"{first.manager.source.group_prefix}.joined"
        assert first.manager.source.committed(group, first.source)[0] is None
        with pytest.raises(ConfigError, match=says):
            tick(first, stored, kafka_offset_sensor(joined), *topics, joined)

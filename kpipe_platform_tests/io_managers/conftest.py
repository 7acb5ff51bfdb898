"""A small JSON topic and what to do with it: used by every IO manager test."""

from __future__ import annotations

import json
import random
import string
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    TextCodec,
    TopicSpec,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.testing.messages import ConsumedRecord
from kpipe_platform.testing.plugin import Consume, Produce, TopicFactory
from kpipe_platform.testing.topics import create_topic
from kpipe_platform_tests.metadata import plain_metadata

ORDER = "id BIGINT NOT NULL, amount DOUBLE, note STRING"


# Tests that differ only in the writer. Those without transactions take minutes together.
DELIVERIES = ("exactly_once", pytest.param("at_least_once", marks=pytest.mark.slow))


def order(number: int, **changes: Any) -> dict[str, Any]:
    """A record of the orders topic."""
    value = {"id": number, "amount": number * 1.5, "note": f"n{number}"}
    return {"key": f"k{number}", "value": json.dumps({**value, **changes.pop("value", {})}).encode(), **changes}


def incompressible(characters: int) -> str:
    """A text that lz4 makes no shorter, the same each time."""
    return "".join(random.Random(characters).choices(string.ascii_letters + string.digits, k=characters))


BAD = {"key": "bad", "value": b'{"id": "seven"}'}
CACHED = 6_000
"""So many records that a slice of them is cached, and need not be read again to be written."""
ENDS = 1
"""Rows that Spark reads for a slice beside its records: in a transaction, one that tells the writer the end."""


@dataclass
class Orders:
    """An orders topic, an asset over it, and its Dagster instance."""

    source: str
    target: str
    topic_asset: Any
    manager: KafkaIOManager
    instance: dg.DagsterInstance
    produce: Produce
    consume: Consume

    @property
    def group(self) -> str:
        return f"{self.manager.source.group_prefix}.enriched"

    def send(self, *records: Any, **how: Any) -> None:
        self.produce(self.source, records, **how)

    def asset(self, stage: Callable[..., Any] | None = None, **how: Any) -> dg.AssetsDefinition:
        """A ``@kafka_asset`` named enriched, over this topic; the default stage keeps every row."""
        how.setdefault("topic", KafkaTopic(self.target, value_codec=JsonCodec()))
        how.setdefault("on_fault", FaultAction.DEAD_LETTER)

        def keep(orders):  # type: ignore[no-untyped-def]
            return orders

        return kafka_asset(source=self.topic_asset, name="enriched", **how)(stage or keep)

    def run(
        self, asset: Any, partition: str | None = "0", *, manager: KafkaIOManager | None = None, **how: Any
    ) -> dg.ExecuteInProcessResult:
        """Materialize once; raises the asset's own error."""
        extra = how.pop("resources", {})
        others = how.pop("others", [])
        return dg.materialize(
            [self.topic_asset, asset, *others],
            selection=[asset, *others],
            resources={"kafka_io_manager": manager or self.manager, **extra},
            partition_key=partition,
            instance=self.instance,
            **how,
        )

    def metadata(self, result: dg.ExecuteInProcessResult) -> dict[str, Any]:
        """Metadata of the run's only materialization of the asset, as plain values, by keys without kpipe/."""
        events = [
            e.materialization
            for e in result.get_asset_materialization_events()
            if e.materialization.asset_key == dg.AssetKey("enriched")
        ]
        assert len(events) == 1
        return plain_metadata(events[0].metadata)

    def outputs(self, *, settled: bool = True, **how: Any) -> list[ConsumedRecord]:
        if settled:
            self._await_markers(self.target)
        return self.consume(self.target, **how)

    def _await_markers(self, topic: str) -> None:
        """A commit is answered before its markers are in every partition; until then readers stop before them."""
        connection = self.manager.source.connection
        committed, all_ = (
            KafkaSource(connection=connection, isolation=level) for level in ("read_committed", "read_uncommitted")
        )
        end = time.monotonic() + 30
        while committed.watermarks(topic) != all_.watermarks(topic):
            assert time.monotonic() < end, f"{topic} has an open transaction"
            time.sleep(0.05)

    def letters(self) -> list[ConsumedRecord]:
        self._await_markers(f"{self.source}.dlq")
        return self.consume(f"{self.source}.dlq")

    def ids(self) -> list[int]:
        """Ids in the target topic, in order of partition and offset, read committed."""
        return [record.json()["id"] for record in sorted(self.outputs(), key=lambda r: (r.partition, r.offset))]

    def committed(self, partition: int = 0) -> int | None:
        found = self.manager.source.committed(self.group, self.source)[partition]
        return None if found is None else found.offset

    def lag(self) -> int:
        return sum(self.manager.source.lag(self.group, self.source).values())


def manager_at(servers: str, orders: Orders, *, request_timeout_s: float = 5) -> KafkaIOManager:
    """The IO manager of a broker of its own, with these topics made there; it gives up soon when that goes away."""
    for name in (orders.source, orders.target):
        create_topic(servers, name)
    connection = KafkaConnection(bootstrap_servers=servers, request_timeout_s=request_timeout_s)
    return KafkaIOManager(
        source=KafkaSource(connection=connection, group_prefix=orders.manager.source.group_prefix),
        destination=KafkaDestination(connection=connection, delivery_timeout_s=5),
        dead_letter=KafkaDeadLetterDestination(connection=connection, create_topic=True),
        spark=orders.manager.spark,
    )


@pytest.fixture
def rows_read(spark: SparkSession) -> Callable[[], int]:
    """Tells how many rows Spark's tasks have read since the last call, or the test's start.

    A record counts as often as it is read from Kafka; rows that come out of a cache count by blocks of 10,000.
    """
    context = spark.sparkContext._jsc.sc()
    none = spark.sparkContext._gateway.new_array(spark.sparkContext._jvm.double, 0)
    after = -1

    def read() -> int:
        nonlocal after
        context.listenerBus().waitUntilEmpty()
        stages = context.statusStore().stageList(None, False, False, none, None)
        found = [stages.apply(number) for number in range(stages.size())]
        new = [stage for stage in found if stage.stageId() > after]
        after = max([after, *(stage.stageId() for stage in new)])
        return sum(stage.inputRecords() for stage in new)

    read()
    return read


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def make_orders(
    kafka_topic: TopicFactory,
    kafka_io_manager: KafkaIOManager,
    instance: dg.DagsterInstance,
    produce: Produce,
    consume: Consume,
) -> Callable[..., Orders]:
    def make(
        partitions: int = 1, *, config: dict[str, str] | None = None, target: dict[str, Any] | None = None
    ) -> Orders:
        source = kafka_topic("orders", partitions=partitions, config=config)
        asset = kafka_topic_asset(
            source, value_codec=JsonCodec(ORDER), key_codec=TextCodec(), partitions=partitions, name="orders"
        )
        return Orders(
            source, kafka_topic("enriched", **(target or {})), asset, kafka_io_manager, instance, produce, consume
        )

    return make


@pytest.fixture
def orders(make_orders: Callable[..., Orders]) -> Orders:
    return make_orders()


__all__ = ["BAD", "ORDER", "Orders", "TopicSpec", "incompressible", "manager_at", "order"]

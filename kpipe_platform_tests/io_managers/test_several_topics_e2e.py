"""One asset that writes several topics: by a column, and with one topic an output."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaDestination,
    KafkaRecord,
    KafkaTopic,
    KafkaTopics,
    TextCodec,
    TopicSpec,
    kafka_asset,
    kafka_multi_asset,
)
from kpipe_platform.errors import ConfigError, DestinationRejectedError, EngineUnavailableError
from kpipe_platform.partitions.groups import leading_key, reads_of
from kpipe_platform.testing.messages import ConsumedRecord
from kpipe_platform.testing.plugin import TopicFactory
from kpipe_platform_tests.metadata import plain_metadata

from .conftest import BAD, Orders, order
from .killing import writers_at
from .test_assets_e2e import plain
from .test_lanes_e2e import RELAXED, manager_with

pytestmark = [pytest.mark.broker, pytest.mark.spark]

AMOUNTS = "id BIGINT NOT NULL, amount DOUBLE"


@dataclass
class Split:
    """Orders, and two topics for them."""

    orders: Orders
    eu: str
    us: str

    def records(self, topic: str, **how: Any) -> list[ConsumedRecord]:
        if not how:
            self.orders._await_markers(topic)
        return sorted(self.orders.consume(topic, **how), key=lambda r: (r.partition, r.offset))

    def ids(self, **how: Any) -> tuple[list[int], list[int]]:
        eu, us = ([r.json()["id"] for r in self.records(topic, **how) if r.value] for topic in (self.eu, self.us))
        return eu, us

    def by_column(self, **changes: Any) -> KafkaTopics:
        eu = KafkaTopic(self.eu, value_codec=JsonCodec(AMOUNTS), key_expression="upper(note)")
        return KafkaTopics("region", {"eu": eu, "us": KafkaTopic(self.us, **changes)})

    def multi(self, stage: Callable[..., Any], **how: Any) -> dg.AssetsDefinition:
        outs = {
            "eu": KafkaTopic(self.eu, value_codec=JsonCodec(AMOUNTS), key_column="id"),
            "us": KafkaTopic(self.us, value_codec=TextCodec()),
        }
        how = {
            "source": self.orders.topic_asset,
            "on_fault": FaultAction.DEAD_LETTER,
            "outs": outs,
            "name": "split",
            **how,
        }
        return kafka_multi_asset(**how)(stage)

    @property
    def group(self) -> str:
        return f"{self.orders.manager.source.group_prefix}.eu"

    def run(self, asset: dg.AssetsDefinition, **how: Any) -> dict[str, dict[str, Any]]:
        """Materialize once; returns the metadata of each asset."""
        events = self.orders.run(asset, **how).get_asset_materialization_events()
        keys = [event.asset_key for event in events]
        assert len(keys) == len(set(keys)) == len(asset.keys)
        return {event.asset_key.path[-1]: plain_metadata(event.materialization.metadata) for event in events}


@pytest.fixture
def split(orders: Orders, kafka_topic: TopicFactory) -> Split:
    return Split(orders, kafka_topic("eu"), kafka_topic("us"))


def by_id(orders: DataFrame) -> DataFrame:
    """Even ids go to eu, odd ones to us, 8 has no region and 9 one that nobody declared."""
    region = F.when(F.col("id") == 9, "mars").when(F.col("id") != 8, F.when(F.col("id") % 2 == 0, "eu").otherwise("us"))
    return orders.withColumn("region", F.coalesce(region, F.when(F.col("_kafka.tombstone"), "us")))


TOMBSTONE = {"key": "gone", "value": None}


@pytest.mark.parametrize(
    "how",
    [
        "one pass",
        "sorted",
        *(pytest.param(how, marks=pytest.mark.slow) for how in ("pandas", "at least once", "lanes", "plain")),
    ],
)
def test_a_column_names_the_topic(split: Split, how: str) -> None:
    orders = split.orders
    count = 4_000 if how == "lanes" else 8
    orders.send(*(order(n) for n in range(10)), BAD, TOMBSTONE, *(order(n) for n in range(10, count + 2)))

    def sorted_(orders: DataFrame) -> DataFrame:
        return by_id(orders).sort("id")

    def pandas(orders: pd.DataFrame) -> pd.DataFrame:
        region = [{8: None, 9: "mars"}.get(n, "us" if n != n or n % 2 else "eu") for n in orders["id"].astype(float)]
        return orders.assign(region=region)

    stage = {"sorted": sorted_, "pandas": pandas}.get(how, by_id)
    manager = orders.manager
    if how == "at least once":
        connection = manager.source.connection
        manager = manager_with(orders, destination=KafkaDestination(connection=connection, delivery="at_least_once"))
    topics = split.by_column(key_column="id", value_codec=JsonCodec())
    if how == "plain":

        def enriched(orders: DataFrame) -> DataFrame:
            return by_id(orders)

        asset = plain(orders, enriched, metadata={**topics.as_metadata(), "kpipe/on_fault": "dead_letter"})
    else:
        asset = orders.asset(stage, topic=topics, **({"scaling": RELAXED} if how == "lanes" else {}))
    found = split.run(asset, manager=manager)["enriched"]
    written = count + 1
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (count + 4, written, 3)
    halves = {split.eu: count // 2, split.us: count // 2 + 1}
    assert {row.data["topic"]: row.data["written"] for row in found["records_by_topic"].records} == halves
    wanted = [n for n in range(count + 2) if n not in (8, 9)]
    eu, us = split.ids()
    if how in ("at least once", "lanes"):
        eu, us = sorted(eu), sorted(us)
    assert (eu, us) == ([n for n in wanted if n % 2 == 0], [n for n in wanted if n % 2])
    first = next(r for r in split.records(split.eu) if r.json()["id"] == 0)
    # The region names the topic and is not data; the note is no field of this topic, but makes the key.
    assert (first.key, first.json()) == (b"N0", {"id": 0, "amount": 0.0})
    assert dict(first.headers)["kpipe.source"] == f"{orders.source}/0/0".encode()
    others = {r.key: r for r in split.records(split.us)}
    assert others[b"1"].json() == {"id": 1, "amount": 1.5, "note": "n1"}
    assert others[b"gone"].value is None
    reasons = {letter.json()["fault"]["kind"]: letter.json()["fault"]["message"] for letter in orders.letters()}
    assert set(reasons) == {"wrong_type", "topic"}
    shown = found["dead_letter_reasons"].replace("\\", "")
    assert "column 'region' is 'mars', which is none of its topics: 'eu', 'us'" in shown
    assert orders.committed() == count + 4
    orders.send(order(10_000))
    assert split.run(asset, manager=manager)["enriched"]["records_written"] == 1
    assert 10_000 in split.ids()[0]


def test_a_row_without_a_topic_stops_the_run_if_that_is_the_policy(split: Split) -> None:
    split.orders.send(*(order(n) for n in range(10)))
    asset = split.orders.asset(by_id, topic=split.by_column(), on_fault=FaultAction.STOP)
    with pytest.raises(DestinationRejectedError, match="column 'region' is null, which is none of its topics"):
        split.run(asset)
    assert (split.ids(), split.orders.committed()) == (([], []), None)


def without_source(orders: DataFrame) -> DataFrame:
    return orders.select("id", F.lit("mars").alias("region"))


def records(orders: list[KafkaRecord]) -> list[KafkaRecord]:
    return orders


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (lambda orders: orders, "column 'region' is not in the stage's output"),
        (records, "the stage returned list\\[KafkaRecord\\], but column 'region' names the topic of each row"),
        (
            lambda orders: by_id(orders).withColumnRenamed("note", "text"),
            "key_expression='upper\\(note\\)' does not fit",
        ),
        (lambda orders: by_id(orders).drop("amount"), "'amount' is declared but not returned"),
    ],
)
def test_outputs_that_fit_no_topic(split: Split, stage: Callable[..., Any], message: str) -> None:
    split.orders.send(order(1))
    topics = split.by_column(value_codec=JsonCodec())
    with pytest.raises(ConfigError, match=message):
        split.run(split.orders.asset(stage, topic=topics))
    assert split.orders.committed() is None


def test_a_row_without_source_or_topic_is_dead_lettered_itself(split: Split) -> None:
    split.orders.send(order(1))
    topics = KafkaTopics("region", {"eu": KafkaTopic(split.eu), "us": KafkaTopic(split.us)})
    split.run(split.orders.asset(without_source, topic=topics))
    (letter,) = split.orders.letters()
    assert letter.json()["fault"]["kind"] == "topic"
    assert base64.b64decode(letter.json()["original"]["value_base64"]) == b'{"id":1}'


# ----------------------------------------------------------------------------------- one topic an output


def both(orders: DataFrame) -> dict[str, DataFrame]:
    """Amounts as JSON; notes as text, in the topic of us, for odd ids only."""
    notes = orders.where(F.col("id") % 2 == 1).select(F.col("note").alias("value"), "_kafka")
    return {"eu": orders.select("id", "amount", "_kafka"), "us": notes}


def as_pandas(orders: pd.DataFrame) -> dict[str, pd.DataFrame]:
    odd = orders[orders["id"] % 2 == 1]
    return {
        "eu": orders[["id", "amount", "_kafka"]],
        "us": odd.assign(value=odd["note"])[["value", "_kafka"]],
    }


def as_records(orders: list[KafkaRecord]) -> dict[str, list[KafkaRecord]]:
    eu = [
        KafkaRecord(
            r.topic, r.partition, r.offset, key=str(r.value["id"]), value={k: r.value[k] for k in ("id", "amount")}
        )
        for r in orders
    ]
    us = [
        KafkaRecord(r.topic, r.partition, r.offset, key=r.key, value=r.value["note"])
        for r in orders
        if r.value["id"] % 2
    ]
    return {"eu": eu, "us": us}


@pytest.mark.parametrize(
    "stage",
    [
        both,
        *(pytest.param(stage, marks=pytest.mark.slow) for stage in (as_pandas, as_records, "at least once", "lanes")),
    ],
)
def test_each_output_has_its_topic(split: Split, stage: Any) -> None:
    orders, how = split.orders, stage if isinstance(stage, str) else ""
    count = 4_000 if how == "lanes" else 10
    orders.send(*(order(n) for n in range(count)), BAD)
    manager = orders.manager
    if how == "at least once":
        connection = manager.source.connection
        manager = manager_with(orders, destination=KafkaDestination(connection=connection, delivery="at_least_once"))
    asset = split.multi(both if how else stage, **({"scaling": RELAXED} if how == "lanes" else {}))
    found = split.run(asset, manager=manager)
    assert {name: each["dagster/row_count"] for name, each in found.items()} == {"eu": count, "us": count // 2}
    assert {each["records_read"] for each in found.values()} == {count + 1}
    assert {each["dead_letters"] for each in found.values()} == {1}
    assert {each["multi_asset"] for each in found.values()} == {"eu"}
    assert "record 5" in found["eu"]["preview"]
    assert "n9" not in found["eu"]["preview"]
    eu, us = split.records(split.eu), split.records(split.us)
    order_of = sorted if how else list
    assert order_of(r.json()["id"] for r in eu) == list(range(count))
    assert {r.key for r in eu[:10]} <= {str(n).encode() for n in range(count)}
    assert sorted((r.key, r.value) for r in us) == sorted(
        (f"k{n}".encode(), f"n{n}".encode()) for n in range(1, count, 2)
    )
    assert len(orders.letters()) == 1
    reads = reads_of(orders.instance, dg.AssetKey("us"))
    assert reads is not None
    assert (reads.group, reads.first, leading_key(asset)) == (split.group, dg.AssetKey("eu"), dg.AssetKey("eu"))
    orders.send(order(count + 1))
    assert {n: each["dagster/row_count"] for n, each in split.run(asset, manager=manager).items()} == {"eu": 1, "us": 1}


def test_a_record_has_all_of_its_outputs_or_none(split: Split) -> None:
    """An amount that does not fit one topic is no reason to write the note of its record to the other one."""

    def stage(context: dg.AssetExecutionContext, orders: DataFrame) -> dict[str, DataFrame]:
        context.add_output_metadata({"columns": 2}, output_name="us")
        context.add_output_metadata({"both": 1})
        made = both(orders)
        bad = F.when(F.col("id") != 3, F.col("id")).alias("id")
        return {**made, "eu": made["eu"].select(bad, "amount", "_kafka")}

    split.orders.send(*(order(n) for n in range(6)))
    asset = split.multi(stage)
    found = split.run(asset)
    assert {name: each["dagster/row_count"] for name, each in found.items()} == {"eu": 5, "us": 2}
    assert [(name, each.get("columns"), each["both"]) for name, each in found.items()] == [
        ("eu", None, 1),
        ("us", 2, 1),
    ]
    assert [r.value for r in split.records(split.us)] == [b"n1", b"n5"]
    (letter,) = split.orders.letters()
    assert letter.json()["fault"]["message"].endswith(f"topic {split.eu!r}: 'id' is null, declared NOT NULL")

    def poisoned(orders: DataFrame) -> dict[str, DataFrame]:
        poison = F.when(F.col("id") == 8, F.raise_error(F.lit("no")).cast("double")).otherwise(F.col("amount"))
        return both(orders.withColumn("amount", poison))

    isolated = split.multi(poisoned)
    split.orders.send(*(order(n) for n in range(6, 10)))
    found = split.run(isolated)
    assert {name: each["dagster/row_count"] for name, each in found.items()} == {"eu": 3, "us": 2}
    assert found["us"]["isolation"].records[0].data["records"] == 1


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda made: {"eu": made["eu"]}, "has no output 'us'"),
        (lambda made: {**made, "us": None}, "eu, output 'us' returned None instead of rows"),
        (
            lambda _: dg.AssetExecutionContext.get().add_output_metadata({}, output_name="uk"),
            "an output 'uk', which it does not have",
        ),
    ],
)
def test_results_that_are_not_the_outputs(split: Split, result: Callable[..., Any], message: str) -> None:
    split.orders.send(order(1))
    with pytest.raises(ConfigError, match=message):
        split.run(split.multi(lambda orders: result(both(orders)), isolate=False))
    assert split.orders.manager.source.committed(split.group, split.orders.source)[0] is None


def test_all_or_nothing_and_exactly_once(split: Split, spark: SparkSession, tmp_path: Path) -> None:
    """A writer dies between the flush and the commit, and the next one hears no answer to its commit."""
    orders = split.orders
    orders.send(*(order(n) for n in range(50)), BAD)
    asset = split.multi(both)
    with writers_at("hang_before_commit", spark, tmp_path, killed=True), pytest.raises(EngineUnavailableError):
        split.run(asset)
    unread = [len(split.records(topic, isolation="read_uncommitted")) for topic in (split.eu, split.us)]
    assert (unread[0] >= 50, unread[1] >= 25) == (True, True)
    assert [split.records(topic, settle_s=0) for topic in (split.eu, split.us)] == [[], []]
    with writers_at("lose_answer", spark, tmp_path):
        found = split.run(asset)
    # The brokers know how many records were committed, but not how many to each topic.
    assert {"records_written" in each or "dagster/row_count" in each for each in found.values()} == {False}
    assert {each["records_read"] for each in found.values()} == {51}
    eu, us = split.records(split.eu), split.records(split.us)
    assert ([r.json()["id"] for r in eu], len(us), len(orders.letters())) == (list(range(50)), 25, 1)
    assert split.run(asset)["us"]["dagster/row_count"] == 0
    assert orders.manager.source.committed(split.group, orders.source)[0].offset == 51  # type: ignore[union-attr]


def test_several_partitions_in_one_run_and_topics_that_are_made(
    make_orders: Callable[..., Orders], kafka_topic: TopicFactory
) -> None:
    orders = make_orders(2)
    name = kafka_topic("unused")
    split = Split(orders, f"{name}.eu", f"{name}.us")
    outs = {each: KafkaTopic(f"{name}.{each}", create=TopicSpec(partitions=2)) for each in ("eu", "us")}
    for number in range(2):
        orders.send(*(order(n, partition=number) for n in range(3 + number)))
    policy = dg.BackfillPolicy.single_run()
    asset = split.multi(lambda orders: (orders, orders), outs=outs, backfill_policy=policy)
    tags = {"dagster/asset_partition_range_start": "0", "dagster/asset_partition_range_end": "1"}
    events = orders.run(asset, None, tags=tags).get_asset_materialization_events()
    counts = {
        (e.asset_key.path[-1], e.partition): plain_metadata(e.materialization.metadata)["records_written"]
        for e in events
    }
    assert counts == {("eu", "0"): 3, ("us", "0"): 3, ("eu", "1"): 4, ("us", "1"): 4}
    assert len(split.records(split.us)) == 7


def test_an_output_is_the_source_of_another_asset(split: Split) -> None:
    split.orders.send(*(order(n) for n in range(3)))
    asset = split.multi(both)
    spec = asset.get_asset_spec(dg.AssetKey("eu"))
    assert spec.metadata["kpipe/topic"] == split.eu
    split.run(asset)

    def copy(eu: DataFrame) -> DataFrame:
        return eu

    copied = kafka_asset(source=spec, topic=KafkaTopic(split.orders.target))(copy)
    orders = split.orders
    dg.materialize(
        [orders.topic_asset, asset, copied],
        selection=[copied],
        resources={"kafka_io_manager": orders.manager},
        partition_key="0",
        instance=orders.instance,
    )
    assert orders.ids() == [0, 1, 2]

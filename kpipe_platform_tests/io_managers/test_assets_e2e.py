"""Every way to declare an asset: plain and Kafka assets, forms by annotation, partitions, other stores."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster._core.definitions.observe import observe
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaRecord,
    KafkaTopic,
    OffsetCommittingIOManager,
    PartitionScaling,
    TopicSpec,
    current_slice,
    kafka_asset,
    kafka_partitions,
    kafka_topic_asset,
    table_input,
)
from kpipe_platform.errors import ConfigError, OffsetsNotStoredError, PartitionsFailedError, TopicNotFoundError

from .conftest import BAD, ORDER, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class FolderIOManager(dg.ConfigurableIOManager):
    """Another store: one JSON file a slice, named after its ranges."""

    folder: str
    fail: bool = False

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        if self.fail:
            raise OSError("the store is full")
        slice_ = current_slice()
        name = str(slice_).replace("/", "_") if slice_ else context.asset_key.path[-1]
        rows = [row.asDict(recursive=True) for row in obj.drop("_kafka").collect()]
        (Path(self.folder) / f"{name}.json").write_text(json.dumps(rows))

    def load_input(self, context: dg.InputContext) -> list[Any]:
        return self.rows()

    def rows(self) -> list[Any]:
        return [row for path in sorted(Path(self.folder).glob("*.json")) for row in json.loads(path.read_text())]


def plain(orders: Orders, function: Callable[..., Any], **how: Any) -> dg.AssetsDefinition:
    """A plain ``@dg.asset`` over the orders topic."""
    how.setdefault("metadata", KafkaTopic(orders.target, value_codec=JsonCodec()).as_metadata())
    how.setdefault("io_manager_key", "kafka_io_manager")
    how.setdefault("partitions_def", orders.topic_asset.partitions_def)
    return dg.asset(name="enriched", **how)(function)


class TestPlainAssets:
    def test_materialized_twice(self, orders: Orders) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            return orders.where("id % 2 = 0")

        asset = plain(orders, enriched)
        for batch in (range(10), range(10, 16)):
            orders.send(*(order(n) for n in batch))
            found = orders.metadata(orders.run(asset))
            assert found["records_read"] == len(batch)
            assert found["records_written"] == len(batch) // 2
        assert orders.ids() == list(range(0, 16, 2))
        assert orders.lag() == 0

    def test_an_empty_slice_gives_the_columns_and_writes_nothing(self, orders: Orders) -> None:
        seen = []

        def enriched(orders: DataFrame) -> DataFrame:
            seen.append(orders.columns)
            return orders

        asset = plain(orders, enriched)
        assert orders.metadata(orders.run(asset))["records_read"] == 0
        assert seen == [["id", "amount", "note", "_kafka"]]

    def test_faults_by_the_assets_metadata(self, orders: Orders) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            return orders

        topic = KafkaTopic(orders.target, value_codec=JsonCodec()).as_metadata()
        asset = plain(orders, enriched, metadata={**topic, "kpipe/on_fault": "dead_letter"})
        orders.send(order(1), BAD)
        assert orders.metadata(orders.run(asset))["dead_letters"] == 1
        wrong = plain(orders, enriched, metadata={**topic, "kpipe/on_fault": "ignore"})
        with pytest.raises(ConfigError, match="'ignore', which is not one of stop"):
            orders.run(wrong)

    def test_offsets_that_nothing_would_store_are_refused_before_work(self, orders: Orders, tmp_path: Path) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            raise AssertionError("work began")

        asset = plain(orders, enriched, io_manager_key="folder")
        with pytest.raises(OffsetsNotStoredError, match=r"IO manager 'folder' does not store offsets"):
            orders.run(asset, resources={"folder": FolderIOManager(folder=str(tmp_path))})
        nothing = dg.asset(name="enriched", partitions_def=orders.topic_asset.partitions_def)(returns_nothing)
        with pytest.raises(OffsetsNotStoredError):
            orders.run(nothing)

    @pytest.mark.parametrize("annotation", [None, dg.MaterializeResult, Any])
    def test_what_it_returns_must_be_known_before_work(self, orders: Orders, annotation: Any) -> None:
        """Dagster calls no IO manager for a MaterializeResult without a value: a success that moves no offset."""
        called = []

        def enriched(orders: DataFrame):  # type: ignore[no-untyped-def]
            called.append(orders.count())
            return dg.MaterializeResult(metadata={"rows": called[-1]})

        if annotation is not None:
            enriched.__annotations__["return"] = annotation
        orders.send(order(1))
        for key in ("kafka_io_manager", "committing"):
            resources = {"committing": OffsetCommittingIOManager(inner=FolderIOManager(folder="/nowhere"))}
            metadata = {} if key == "committing" else KafkaTopic(orders.target).as_metadata()
            with pytest.raises(OffsetsNotStoredError, match="annotate the return type"):
                orders.run(plain(orders, enriched, io_manager_key=key, metadata=metadata), resources=resources)
        assert called == []

    @pytest.mark.parametrize("name", ["kpipe/onfault", "kpipe/read"])
    def test_metadata_that_would_be_ignored_is_refused_before_work(self, orders: Orders, name: str) -> None:
        """An input read as "Table" would be taken as a slice, and move offsets."""

        def enriched(orders: DataFrame) -> DataFrame:
            raise AssertionError("work began")

        orders.send(order(1))
        topic = KafkaTopic(orders.target).as_metadata()
        if name == "kpipe/read":
            asset = plain(orders, enriched, ins={"orders": dg.AssetIn(metadata={name: "Table"})})
        else:
            asset = plain(orders, enriched, metadata={**topic, name: "skip"})
        with pytest.raises(ConfigError, match=f"has (unknown )?metadata '?{name}"):
            orders.run(asset)
        assert orders.committed() is None

    def test_a_result_has_a_value(self, orders: Orders, tmp_path: Path) -> None:
        def enriched(orders: DataFrame) -> dg.MaterializeResult[DataFrame]:
            return dg.MaterializeResult(metadata={"mine": 1})

        def anything(orders: DataFrame) -> object:
            return dg.MaterializeResult(metadata={"mine": 1})

        def right(orders: DataFrame) -> dg.MaterializeResult[DataFrame]:
            return dg.MaterializeResult(value=orders, metadata={"mine": 1})

        orders.send(order(1))
        with pytest.raises(dg.DagsterTypeCheckDidNotPass, match='expected type "DataFrame"'):
            orders.run(plain(orders, enriched))
        with pytest.raises(ConfigError, match="returned a MaterializeResult, which contains no rows"):
            orders.run(plain(orders, anything))
        inner = FolderIOManager(folder=str(tmp_path))
        with pytest.raises(ConfigError, match="returned a MaterializeResult, which contains no rows"):
            orders.run(
                plain(orders, anything, io_manager_key="committing", metadata={}),
                resources={"committing": OffsetCommittingIOManager(inner=inner)},
            )
        assert orders.committed() is None
        found = orders.metadata(orders.run(plain(orders, right)))
        assert (found["records_written"], found["mine"]) == (1, 1)
        assert orders.lag() == 0

    def test_an_asset_without_a_kafka_input_writes_to_a_topic(self, orders: Orders, spark: SparkSession) -> None:
        def enriched() -> DataFrame:
            return spark.createDataFrame([(1,), (2,)], "id bigint")

        found = orders.metadata(orders.run(plain(orders, enriched, partitions_def=None), None))
        assert (found["records_read"], found["records_written"]) == (0, 2)
        assert sorted(orders.ids()) == [1, 2]

    def test_a_range_run_is_refused_with_the_way_out(self, make_orders: Callable[..., Orders]) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            return orders

        orders = make_orders(2)
        with pytest.raises(ConfigError, match="@kafka_asset"):
            orders.run(plain(orders, enriched), None, tags=whole_range(2))


def returns_nothing(orders: DataFrame) -> None:
    raise AssertionError("work began")


def whole_range(partitions: int) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": "0",
        "dagster/asset_partition_range_end": str(partitions - 1),
    }


class TestForms:
    """Loads by annotation, stores by type; each materialized twice, with a bad record in between."""

    def twice(self, orders: Orders, asset: dg.AssetsDefinition) -> None:
        orders.send(order(1, headers=[("h", b"1")]), BAD, {"key": None, "value": order(2)["value"]})
        first = orders.metadata(orders.run(asset))
        assert (first["records_read"], first["records_written"], first["dead_letters"]) == (3, 2, 1)
        orders.send(order(3))
        second = orders.metadata(orders.run(asset))
        assert (second["records_read"], second["records_written"]) == (1, 1)
        assert orders.ids() == [10, 20, 30]
        one, two, _ = sorted(orders.outputs(), key=lambda r: r.offset)
        assert (one.key, two.key) == (b"k1", None)
        assert one.headers == (
            ("h", b"1"),
            ("correlation-id", f"{orders.source}-0-0".encode()),
            ("kpipe.instance", first["instance"].encode()),
            ("kpipe.worker", first["worker"].encode()),
            ("kpipe.source", f"{orders.source}/0/0".encode()),
        )
        assert first["worker"] == f"pid-{os.getpid()}"
        [letter, *_] = orders.letters()
        distribution = letter.json()["distribution"]
        assert (distribution["instance"], distribution["worker"]) == (first["instance"], first["worker"])

    def test_pandas(self, orders: Orders) -> None:
        def stage(orders: pd.DataFrame) -> pd.DataFrame:
            assert isinstance(orders, pd.DataFrame)
            return orders.assign(id=orders["id"] * 10)

        self.twice(orders, orders.asset(stage))

    def test_pyarrow(self, orders: Orders) -> None:
        def stage(orders: pa.Table) -> pa.Table:
            import pyarrow.compute as pc

            return orders.set_column(0, "id", pc.multiply(orders["id"], 10))

        self.twice(orders, orders.asset(stage))

    def test_polars(self, orders: Orders) -> None:
        def stage(orders: pl.DataFrame) -> pl.DataFrame:
            return orders.with_columns(pl.col("id") * 10)

        self.twice(orders, orders.asset(stage))

    def test_records(self, orders: Orders) -> None:
        from dataclasses import replace

        def stage(orders: list[KafkaRecord]) -> list[KafkaRecord]:
            return [replace(record, value={"id": record.value["id"] * 10}) for record in orders]

        orders.send(order(1, headers=[("h", b"1")], timestamp=1_700_000_000_000), BAD)
        asset = orders.asset(stage, topic=KafkaTopic(orders.target, key_column="id", value_codec=JsonCodec()))
        assert orders.metadata(orders.run(asset))["dead_letters"] == 1
        orders.send(order(3))
        orders.run(asset)
        assert orders.ids() == [10, 30]
        first = min(orders.outputs(), key=lambda r: r.offset)
        assert (first.key, first.timestamp_ms) == (b"k1", 1_700_000_000_000)
        assert first.headers[0] == ("h", b"1")

    def test_a_plain_asset_with_pandas(self, orders: Orders) -> None:
        def enriched(orders: pd.DataFrame) -> pd.DataFrame:
            return orders[["id"]] * 10

        orders.send(order(1), order(2))
        orders.run(plain(orders, enriched))
        orders.send(order(3))
        orders.run(plain(orders, enriched))
        assert orders.ids() == [10, 20, 30]

    def test_an_annotation_that_nothing_loads_is_refused_at_definition(self, orders: Orders) -> None:
        def stage(orders: dict[str, int]) -> None: ...

        with pytest.raises(ConfigError, match="cannot be loaded as"):
            orders.asset(stage)

    def test_an_output_that_cannot_be_written(self, orders: Orders) -> None:
        orders.send(order(1))
        with pytest.raises(ConfigError, match="returned str"):
            orders.run(orders.asset(lambda orders: "text"))
        assert orders.committed() is None


class TestOtherStores:
    def test_offsets_follow_the_inner_store(self, orders: Orders, tmp_path: Path) -> None:
        inner = FolderIOManager(folder=str(tmp_path))
        asset = orders.asset(topic=None, io_manager_key="committing")
        resources = {"committing": OffsetCommittingIOManager(inner=inner)}
        for batch in ([order(1), BAD], [order(2)]):
            orders.send(*batch)
            found = orders.metadata(orders.run(asset, resources=resources))
            assert found["records_read"] == len(batch)
        assert sorted(row["id"] for row in inner.rows()) == [1, 2]
        assert len(orders.letters()) == 1
        assert orders.lag() == 0

    def test_a_plain_asset(self, orders: Orders, tmp_path: Path) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            return orders.select("id")

        inner = FolderIOManager(folder=str(tmp_path))
        asset = plain(orders, enriched, io_manager_key="committing", metadata={"kpipe/on_fault": "skip"})
        resources = {"committing": OffsetCommittingIOManager(inner=inner)}
        for batch in ([order(1), BAD], [order(2)]):
            orders.send(*batch)
            orders.run(asset, resources=resources)
        assert sorted(row["id"] for row in inner.rows()) == [1, 2]
        assert orders.lag() == 0

    def test_an_inner_store_that_fails_moves_nothing(self, orders: Orders, tmp_path: Path) -> None:
        asset = orders.asset(topic=None, io_manager_key="committing")
        inner = FolderIOManager(folder=str(tmp_path), fail=True)
        orders.send(order(1), BAD)
        with pytest.raises(OSError, match="the store is full"):
            orders.run(asset, resources={"committing": OffsetCommittingIOManager(inner=inner)})
        assert orders.committed() is None
        assert orders.letters() == []

    @pytest.mark.parametrize("result", [dg.MaterializeResult(value=1), dg.Output(1)])
    def test_dagsters_results_are_not_rows(self, orders: Orders, tmp_path: Path, result: Any) -> None:
        orders.send(order(1))
        inner = FolderIOManager(folder=str(tmp_path))
        with pytest.raises(ConfigError, match="return the rows; to add metadata"):
            orders.run(
                orders.asset(lambda orders: result, topic=None, io_manager_key="committing"),
                resources={"committing": OffsetCommittingIOManager(inner=inner)},
            )
        with pytest.raises(ConfigError, match="return the rows; to add metadata"):
            orders.run(orders.asset(lambda orders: result))
        assert orders.committed() is None

    @pytest.mark.parametrize("is_plain", [False, True])
    @pytest.mark.parametrize("key", ["kafka_io_manager", "committing"])
    def test_none_is_not_rows(self, orders: Orders, tmp_path: Path, key: str, is_plain: bool) -> None:
        """As a stage returns whose `return` was forgotten."""

        def enriched(orders: DataFrame) -> DataFrame | None:
            return None

        orders.send(order(1))
        topic = KafkaTopic(orders.target) if key == "kafka_io_manager" else None
        if is_plain:
            asset = plain(orders, enriched, io_manager_key=key, metadata=topic.as_metadata() if topic else {})
        else:
            asset = orders.asset(enriched, topic=topic, io_manager_key=key)
        inner = FolderIOManager(folder=str(tmp_path))
        with pytest.raises(ConfigError, match="returned None instead of rows"):
            orders.run(asset, resources={"committing": OffsetCommittingIOManager(inner=inner)})
        assert orders.committed() is None

    @pytest.mark.parametrize("memory", [False, True])
    def test_a_store_that_replaces_a_partition_keeps_one_slice(
        self, orders: Orders, tmp_path: Path, memory: bool
    ) -> None:
        def stage(orders: pd.DataFrame) -> pd.DataFrame:
            return orders[["id"]]

        def asset(**how: Any) -> dg.AssetsDefinition:
            how.setdefault("scaling", PartitionScaling(max_records=2))
            return orders.asset(stage, topic=None, io_manager_key="committing", **how)

        inner: Any = dg.InMemoryIOManager() if memory else dg.FilesystemIOManager(base_dir=str(tmp_path))
        resources = {"committing": OffsetCommittingIOManager(inner=inner)}
        orders.send(*(order(n) for n in range(6)))
        for several in ({"max_slices": None}, {"max_slices": 2}, {"max_slices": None, "linger_s": 1.0}):
            with pytest.raises(ConfigError, match="only the last slice would be kept"):
                orders.run(asset(**several), resources=resources)
        assert orders.committed() is None
        run = orders.run(asset(), resources=resources)
        assert orders.committed() == 2
        warnings = [e.user_message for e in orders.instance.all_logs(run.run_id) if e.level == logging.WARNING]
        assert len(warnings) == 1
        assert "only the slice of this run is kept" in warnings[0]

    def test_a_topic_that_would_be_ignored_is_refused_before_work(self, orders: Orders, tmp_path: Path) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            raise AssertionError("work began")

        committing = OffsetCommittingIOManager(inner=FolderIOManager(folder=str(tmp_path)))
        orders.send(order(1))
        for asset in (
            orders.asset(enriched, io_manager_key="committing"),
            plain(orders, enriched, io_manager_key="committing"),
        ):
            with pytest.raises(ConfigError, match="declares a destination topic"):
                orders.run(asset, resources={"committing": committing})
        with pytest.raises(ConfigError, match="declares a destination topic"):
            orders.asset(enriched, io_manager_def=committing)

    def test_an_inner_io_manager_that_stores_offsets_itself(self, orders: Orders) -> None:
        asset = orders.asset(topic=None, io_manager_key="committing")
        orders.send(order(1))
        for inner in (orders.manager, OffsetCommittingIOManager(inner=orders.manager)):
            with pytest.raises(ConfigError, match="which stores offsets itself"):
                orders.run(asset, resources={"committing": OffsetCommittingIOManager(inner=inner)})
        assert orders.committed() is None

    def test_stop_looks_before_it_stores(self, orders: Orders, tmp_path: Path) -> None:
        from kpipe_platform.errors import RecordFaultError

        inner = FolderIOManager(folder=str(tmp_path))
        asset = orders.asset(topic=None, io_manager_key="committing", on_fault=FaultAction.STOP)
        orders.send(order(1), BAD)
        with pytest.raises(RecordFaultError):
            orders.run(asset, resources={"committing": OffsetCommittingIOManager(inner=inner)})
        assert inner.rows() == []
        assert orders.committed() is None

    def test_an_input_of_another_io_manager_beside_the_topic(self, orders: Orders, tmp_path: Path) -> None:
        @dg.asset(io_manager_key="folder")
        def factors() -> DataFrame:
            return orders.manager.spark.spark_session.createDataFrame([(7,)], "factor int")

        def stage(orders: DataFrame, factors: list[Any]) -> DataFrame:
            return orders.withColumn("id", F.col("id") * factors[0]["factor"])

        folder = FolderIOManager(folder=str(tmp_path))
        dg.materialize([factors], resources={"folder": folder}, instance=orders.instance)
        orders.send(order(2))
        asset = orders.asset(stage)
        result = dg.materialize(
            [orders.topic_asset, factors, asset],
            selection=[asset],
            resources={"folder": folder, "kafka_io_manager": orders.manager},
            partition_key="0",
            instance=orders.instance,
        )
        assert result.success
        assert orders.ids() == [14]

    def test_two_sources_whose_keys_end_alike(self, make_orders: Callable[..., Orders]) -> None:
        orders, other = make_orders(), make_orders()
        eu, us = (
            kafka_topic_asset(topic, value_codec=JsonCodec(ORDER), partitions=1, name="orders", key_prefix=prefix)
            for topic, prefix in ((orders.source, "eu"), (other.source, "us"))
        )

        @kafka_asset(source=[eu, us], topic=KafkaTopic(orders.target, value_codec=JsonCodec()))
        def enriched(eu_orders: DataFrame, us_orders: DataFrame) -> DataFrame:
            return eu_orders.unionByName(us_orders)

        orders.send(order(1))
        other.send(order(2))
        dg.materialize(
            [eu, us, enriched],
            selection=[enriched],
            resources={"kafka_io_manager": orders.manager},
            partition_key="0",
            instance=orders.instance,
        )
        assert sorted(orders.ids()) == [1, 2]
        committed = [orders.manager.source.committed(orders.group, topic) for topic in (orders.source, other.source)]
        assert [found[0] and found[0].offset for found in committed] == [1, 1]

    def test_a_compacted_topic_as_a_table(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(config={"cleanup.policy": "compact"})
        orders.send(
            {"key": "a", "value": order(1)["value"]},
            {"key": "b", "value": order(2)["value"]},
            {"key": "a", "value": order(3)["value"]},
            {"key": "b", "value": None},
        )
        seen = []

        @dg.asset(ins={"orders": table_input()})
        def enriched(orders: DataFrame) -> None:
            seen.extend(row["id"] for row in orders.collect())

        for _ in range(2):
            orders.run(enriched, None)
        assert seen == [3, 3]
        assert orders.committed() is None

    @pytest.mark.parametrize("config", [{}, {"message.timestamp.type": "LogAppendTime"}], ids=["create", "append"])
    def test_a_key_in_several_partitions_of_a_table(
        self, make_orders: Callable[..., Orders], config: dict[str, str]
    ) -> None:
        """Offsets of several partitions say nothing of each other; within one, only offsets count."""
        orders = make_orders(3, config={"cleanup.policy": "compact", **config})

        def at(seconds: int, partition: int, key: str, number: int | None) -> None:
            value = None if number is None else order(number)["value"]
            timestamp = 1_767_225_600_000 + 1_000 * seconds
            orders.send({"key": key, "value": value, "partition": partition, "timestamp": timestamp})

        for second in range(5):
            at(second, 0, "changed", second)
            at(second, 0, "deleted", second)
            at(second, 2, "back", None)
        at(5, 1, "changed", 100)
        at(5, 1, "deleted", None)
        at(6, 1, "back", 200)
        if not config:
            # The later of two records has the earlier time, as two producers' clocks may have it.
            at(9, 1, "late", 300)
            at(8, 1, "late", 301)
        seen = []

        @dg.asset(ins={"orders": table_input()})
        def enriched(orders: DataFrame) -> None:
            seen.extend(row["id"] for row in orders.collect())

        orders.run(enriched, None)
        assert sorted(seen) == ([100, 200] if config else [100, 200, 301])

    def test_the_rows_of_a_table_are_let_go_at_the_end_of_the_run(
        self, make_orders: Callable[..., Orders], spark: SparkSession, spark_remote: str | None
    ) -> None:
        if spark_remote is not None:
            pytest.skip("a server's cache is not seen from here")
        orders = make_orders(config={"cleanup.policy": "compact"})
        orders.send({"key": "a", "value": order(1)["value"]})
        cache = spark._jsparkSession.sharedState().cacheManager()
        cache.clearCache()  # what stages that other tests call by hand have left
        while_at_work = []

        @dg.asset(ins={"orders": table_input()})
        def enriched(orders: DataFrame) -> None:
            while_at_work.append(cache.isEmpty())
            if len(while_at_work) == 2:
                raise ValueError("the second run fails")

        orders.run(enriched, None)
        assert cache.isEmpty()
        with pytest.raises(ValueError, match="the second run fails"):
            orders.run(enriched, None)
        assert cache.isEmpty()
        assert while_at_work == [False, False]


class TestPartitions:
    def test_a_range_run_reports_each_partition_by_itself(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(3, target={"partitions": 2})
        for number in range(30):
            orders.send(order(number, partition=number % 3))
        asset = orders.asset(backfill_policy=dg.BackfillPolicy.single_run())
        result = orders.run(asset, None, tags=whole_range(3))
        events = {
            e.materialization.partition: e.materialization.metadata for e in result.get_asset_materialization_events()
        }
        assert {p: m["kpipe/records_read"].value for p, m in events.items()} == {"0": 10, "1": 10, "2": 10}
        assert sorted(orders.ids()) == list(range(30))
        assert [orders.committed(p) for p in range(3)] == [10, 10, 10]

    def test_one_failing_partition_does_not_lose_the_others(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(3)
        for number in range(9):
            orders.send(order(number, partition=number % 3))
        orders.send({**BAD, "partition": 1})
        asset = orders.asset(on_fault=FaultAction.STOP, backfill_policy=dg.BackfillPolicy.single_run())
        with pytest.raises(PartitionsFailedError, match=r"1 of 3 partitions failed") as caught:
            orders.run(asset, None, tags=whole_range(3))
        assert list(caught.value.errors) == [1]
        assert [orders.committed(p) for p in range(3)] == [3, None, 3]
        assert orders.instance.get_materialized_partitions(dg.AssetKey("enriched")) == {"0", "2"}

    def test_unpartitioned_takes_a_slice_of_every_partition_in_one_transaction(
        self, make_orders: Callable[..., Orders]
    ) -> None:
        orders = make_orders(3)
        for number in range(9):
            orders.send(order(number, partition=number % 3))
        asset = orders.asset(partitioned=False)
        first = orders.metadata(orders.run(asset, None))
        assert (first["records_read"], len(first["ranges"])) == (9, 3)
        orders.send(order(9, partition=1))
        assert orders.metadata(orders.run(asset, None))["records_read"] == 1
        assert sorted(orders.ids()) == list(range(10))
        assert orders.lag() == 0

    def test_dynamic_partitions_are_registered_by_observing_the_topic(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(2)
        topic = kafka_topic_asset(orders.source, value_codec=JsonCodec("id BIGINT"), name="orders")
        orders.send(order(1, partition=0), order(2, partition=1), order(3, partition=1))
        result = observe([topic], resources={"kafka_io_manager": orders.manager}, instance=orders.instance)
        observed = {
            e.asset_observation_data.asset_observation.partition: e.asset_observation_data.asset_observation
            for e in result.get_asset_observation_events()
        }
        assert {p: o.tags["dagster/data_version"] for p, o in observed.items()} == {"0": "1", "1": "2"}
        assert observed["1"].metadata["kpipe/log_end"].value == 2
        assert orders.instance.get_dynamic_partitions(f"kafka.{orders.source}") == ["0", "1"]
        orders.topic_asset = topic
        assert orders.metadata(orders.run(orders.asset(), "1"))["records_read"] == 2

    def test_a_partition_key_that_is_no_number(self, orders: Orders) -> None:
        orders.topic_asset = kafka_topic_asset(orders.source, value_codec=JsonCodec("id BIGINT"), name="orders")
        asset = orders.asset(partitions_def=dg.StaticPartitionsDefinition(["eu"]), ins={})
        with pytest.raises((ConfigError, dg.DagsterInvariantViolationError)):
            orders.run(asset, "eu")

    def test_a_destination_topic_is_created_where_declared(self, orders: Orders) -> None:
        topic = KafkaTopic(
            f"{orders.target}.made", value_codec=JsonCodec(), create=TopicSpec(2, config={"retention.ms": "-1"})
        )
        orders.send(order(1))
        orders.run(orders.asset(topic=topic))
        orders.send(order(2))
        orders.run(orders.asset(topic=topic))
        assert len(orders.consume(topic.name)) == 2
        assert orders.manager.source.partition_numbers(topic.name) == [0, 1]

    @pytest.mark.parametrize("of", ["kafka_asset", "plain"])
    def test_a_destination_topic_that_is_not_as_declared(self, make_orders: Callable[..., Orders], of: str) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            return orders

        def run(spec: TopicSpec) -> None:
            topic = KafkaTopic(orders.target, value_codec=JsonCodec(), create=spec)
            made = plain(orders, enriched, metadata=topic.as_metadata()) if of == "plain" else orders.asset(topic=topic)
            orders.run(made)

        orders = make_orders(target={"partitions": 2, "config": {"retention.ms": "-1"}})
        orders.send(order(1))
        wrong = TopicSpec(4, config={"retention.ms": "1000", "cleanup.policy": "delete", "retention.mss": "1"})
        with pytest.raises(ConfigError, match="does not match its TopicSpec") as caught:
            run(wrong)
        for says in (
            "it has 2 partition(s), not 4",
            "retention.ms is '-1', not '1000'",
            "there is no topic setting 'retention.mss'",
        ):
            assert says in str(caught.value)
        assert "cleanup.policy" not in str(caught.value)
        assert (orders.committed(), orders.outputs()) == (None, [])
        run(TopicSpec(2, config={"retention.ms": " -1", "min.cleanable.dirty.ratio": "0.50"}))
        assert orders.ids() == [1]

    @pytest.mark.parametrize("partitioned", [True, False])
    def test_a_mistyped_source_leaves_no_destination_behind(self, orders: Orders, partitioned: bool) -> None:
        orders.topic_asset = kafka_topic_asset(
            f"{orders.source}.mistyped", value_codec=JsonCodec("id BIGINT"), name="orders", partitions=1
        )
        topic = KafkaTopic(f"{orders.target}.made", value_codec=JsonCodec(), create=TopicSpec())
        with pytest.raises(TopicNotFoundError, match="mistyped' does not exist"):
            orders.run(orders.asset(topic=topic, partitioned=partitioned), "0" if partitioned else None)
        with pytest.raises(TopicNotFoundError, match="made' does not exist"):
            orders.manager.source.partition_numbers(topic.name)


class TestDefinitions:
    """Refused at definition time, where that can be known."""

    def test_nothing_stores_the_offsets(self, orders: Orders) -> None:
        with pytest.raises(OffsetsNotStoredError, match="nothing would store"):
            kafka_asset(source=orders.topic_asset)
        with pytest.raises(OffsetsNotStoredError, match="FilesystemIOManager"):
            kafka_asset(source=orders.topic_asset, io_manager_def=dg.FilesystemIOManager())

    def test_the_function_lacks_its_source(self, orders: Orders) -> None:
        with pytest.raises(ConfigError, match="has no parameter for its source orders"):
            orders.asset(lambda other: other)

    @pytest.mark.parametrize("arguments", [{"max_slices": 0}, {"max_duration_s": 0}, {"source": []}])
    def test_arguments(self, orders: Orders, arguments: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            kafka_asset(**{"source": orders.topic_asset, "topic": KafkaTopic("t"), **arguments})

    def test_a_json_topic_without_a_schema_cannot_be_read(self) -> None:
        with pytest.raises(ConfigError, match="has no schema"):
            kafka_topic_asset("orders", value_codec=JsonCodec())

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250])
    def test_topic_names(self, name: str) -> None:
        with pytest.raises(ConfigError, match="not a Kafka topic name"):
            KafkaTopic(name)

    def test_counts_and_bounds(self) -> None:
        with pytest.raises(ConfigError):
            kafka_partitions("t", count=0)
        with pytest.raises(ConfigError):
            TopicSpec(partitions=0)
        with pytest.raises(ValueError, match="max_records"):
            PartitionScaling(max_records=0)

    def test_called_by_hand_it_is_the_stage(self, orders: Orders) -> None:
        asset = orders.asset(lambda orders: [*orders, 4])
        assert asset([1, 2, 3]) == [1, 2, 3, 4]

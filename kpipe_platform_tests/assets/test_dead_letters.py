"""Dead letters as an asset: numbers in the metadata, a table for what comes after it, no offsets moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from kpipe_platform import (
    JsonCodec,
    KafkaDeadLetterDestination,
    KafkaIOManager,
    KafkaRecord,
    KafkaTopic,
    RawCodec,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.assets.dead_letters import dead_letter_asset
from kpipe_platform.errors import ConfigError, TopicNotFoundError
from kpipe_platform.testing.topics import create_topic
from kpipe_platform_tests.io_managers.conftest import BAD, ORDER, Orders, order

NO_ID = {"key": "no-id", "value": b'{"amount": 1.0}', "headers": [("correlation-id", b"abc"), ("trace", b"1")]}


def show(orders: Orders, asset: dg.AssetsDefinition, *others: Any, **how: Any) -> dict[str, Any]:
    """Materialize the dead letters, and what comes after them; their metadata by keys without kpipe/."""
    result = orders.run(asset, None, others=list(others), **how)
    assert result.success
    (event,) = [
        e.materialization for e in result.get_asset_materialization_events() if e.materialization.asset_key == asset.key
    ]
    return {key.removeprefix("kpipe/"): value for key, value in event.metadata.items()}


def rows(value: Any) -> list[dict[str, Any]]:
    return [dict(record.data) for record in value.records]


def fill(orders: Orders, topic: str, *records: Any) -> None:
    """Dead letters that no run of kpipe wrote."""
    create_topic(orders.manager.source.connection.settings.bootstrap_servers, topic)
    orders.produce(topic, records)


def with_dead_letter(orders: Orders, **changes: Any) -> KafkaIOManager:
    found = orders.manager.dead_letter
    assert found is not None
    changed = KafkaDeadLetterDestination(connection=found.connection, **changes)
    return KafkaIOManager(
        source=orders.manager.source,
        destination=orders.manager.destination,
        dead_letter=changed,
        spark=orders.manager.spark,
    )


class TestDeclaration:
    FLIGHTS = kafka_topic_asset("flights", value_codec=JsonCodec(ORDER), partitions=2, key_prefix=["air"])

    def test_names_and_dependencies(self) -> None:
        asset = dead_letter_asset(self.FLIGHTS, group_name="air")
        assert asset.key == dg.AssetKey(["air", "flights_dead_letters"])
        assert asset.partitions_def is None
        assert asset.asset_deps[asset.key] == {self.FLIGHTS.key}
        assert asset.group_names_by_key[asset.key] == "air"
        assert asset.metadata_by_key[asset.key]["kpipe/topic"] == "flights.dlq"

    def test_all_of_it_can_be_said(self) -> None:
        other = dg.AssetSpec("other")
        asset = dead_letter_asset(
            self.FLIGHTS, topic="dlq-of-{source_topic}", name="lost", key_prefix="x", deps=[other], metadata={"a": 1}
        )
        assert asset.key == dg.AssetKey(["x", "lost"])
        assert asset.asset_deps[asset.key] == {self.FLIGHTS.key, other.key}
        metadata = asset.metadata_by_key[asset.key]
        assert (metadata["kpipe/topic"], metadata["a"]) == ("dlq-of-flights", 1)

    def test_a_limit_that_makes_no_sense(self) -> None:
        with pytest.raises(ConfigError, match="max_records=0"):
            dead_letter_asset(self.FLIGHTS, max_records=0)

    def test_another_io_manager_is_refused_with_the_way_out(self) -> None:
        with pytest.raises(ConfigError, match="'kafka_io_manager' is InMemoryIOManager"):
            dg.materialize([dead_letter_asset(self.FLIGHTS)], resources={"kafka_io_manager": dg.InMemoryIOManager()})


@pytest.mark.broker
@pytest.mark.spark
class TestOnABroker:
    def test_counts_and_a_table_materialized_twice(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(2)
        frames: list[pd.DataFrame] = []

        @dg.asset
        def reasons(orders_dead_letters: pd.DataFrame) -> None:
            frames.append(orders_dead_letters)

        asset, enriched = dead_letter_asset(orders.topic_asset), orders.asset()
        orders.send(*({**order(n), "partition": 0} for n in range(5)), {**BAD, "partition": 0})
        orders.send({**NO_ID, "partition": 1}, {**BAD, "partition": 1, "value": b"not json"})
        for partition in ("0", "1"):
            orders.run(enriched, partition)
        orders.letters()
        before = [orders.committed(n) for n in range(2)]

        found = show(orders, asset, reasons)
        assert (found["dead_letters"].value, found["dagster/row_count"].value) == (3, 3)
        assert {(r["component"], r["kind"], r["records"]) for r in rows(found["reasons"])} == {
            ("decode_value", "wrong_type", 1),
            ("decode_value", "missing_field", 1),
            ("decode_value", "not_json", 1),
        }
        assert [r["share"] for r in rows(found["reasons"])] == [0.3333] * 3
        assert rows(found["by_partition"]) == [
            {"topic": orders.source, "partition": 0, "records": 1},
            {"topic": orders.source, "partition": 1, "records": 2},
        ]
        assert rows(found["by_asset"]) == [{"asset": "enriched", "records": 3}]
        assert sum(r["records"] for r in rows(found["by_hour"])) == 3
        assert found["oldest"].value <= found["newest"].value
        assert found["reasons_chart"].value.startswith("![Reasons for 3 dead letters](data:image/png;base64,")
        names = [column.name for column in found["dagster/column_schema"].value.columns]
        assert names == list(frames[0].columns)

        (frame,) = frames
        assert len(frame) == 3
        one = frame.set_index("correlation_id").loc["abc"]
        assert (one["source_topic"], one["source_partition"], one["source_offset"]) == (orders.source, 1, 0)
        assert (one["key"], one["value"], one["form"]) == (b"no-id", b'{"amount": 1.0}', "envelope")
        assert [(h["key"], h["value"]) for h in one["headers"]] == [("correlation-id", b"abc"), ("trace", b"1")]
        assert (one["asset"], one["group"], one["redacted"]) == ("enriched", orders.group, False)
        assert {"plan", "write"} <= {segment["name"] for segment in one["segments"]}
        assert one["dead_lettered_at"] >= one["source_timestamp"]
        assert set(frame["correlation_id"]) - {"abc"} == {f"{orders.source}-0-5", f"{orders.source}-1-1"}

        orders.send({**BAD, "partition": 0})
        orders.run(enriched, "0")
        orders.letters()
        assert show(orders, asset, reasons)["dead_letters"].value == 4
        assert len(frames[1]) == 4
        assert [orders.committed(n) for n in range(2)] == [before[0] + 1, before[1]]  # type: ignore[operator]

    def test_every_form_but_records(self, orders: Orders) -> None:
        orders.send(BAD, order(1))
        orders.run(orders.asset())
        seen: dict[str, Any] = {}

        @dg.asset
        def as_spark(orders_dead_letters: DataFrame) -> None:
            seen["spark"] = [row["kind"] for row in orders_dead_letters.where("source_offset = 0").collect()]

        @dg.asset
        def as_arrow(orders_dead_letters: pa.Table) -> None:
            seen["arrow"] = orders_dead_letters.column("kind").to_pylist()

        asset = dead_letter_asset(orders.topic_asset)
        show(orders, asset, as_spark, as_arrow)
        assert seen == {"spark": ["wrong_type"], "arrow": ["wrong_type"]}

        @dg.asset
        def as_records(orders_dead_letters: list[KafkaRecord]) -> None:
            raise AssertionError("it was loaded")

        with pytest.raises(ConfigError, match="orders_dead_letters is a table of dead letters"):
            show(orders, asset, as_records)

    def test_raw_form_and_what_others_wrote(self, orders: Orders) -> None:
        orders.send(BAD, order(1))
        raw = with_dead_letter(orders, form="raw", create_topic=True)
        orders.run(orders.asset(), manager=raw)
        connect = {
            "__connect.errors.topic": orders.source,
            "__connect.errors.partition": "0",
            "__connect.errors.offset": "77",
            "__connect.errors.connector.name": "sink",
            "__connect.errors.exception.class.name": "org.apache.kafka.connect.errors.DataException",
            "__connect.errors.exception.message": "no schema",
        }
        headers = [(name, value.encode()) for name, value in connect.items()]
        orders.produce(f"{orders.source}.dlq", [{"value": b"theirs", "headers": headers}, {"value": b"anybody's"}])
        orders.letters()
        tables: list[pd.DataFrame] = []

        @dg.asset
        def table(orders_dead_letters: pd.DataFrame) -> None:
            tables.append(orders_dead_letters.set_index("value"))

        found = show(orders, dead_letter_asset(orders.topic_asset), table, manager=raw)
        assert found["dead_letters"].value == 3
        assert rows(found["by_partition"]) == [
            {"topic": None, "partition": None, "records": 1},
            {"topic": orders.source, "partition": 0, "records": 2},
        ]
        assert {r["asset"]: r["records"] for r in rows(found["by_asset"])} == {"enriched": 1, "sink": 1, None: 1}
        (frame,) = tables
        assert set(frame["form"]) == {"raw"}
        ours, theirs = frame.loc[BAD["value"]], frame.loc[b"theirs"]
        assert (ours["source_offset"], ours["component"], ours["exception_type"]) == (0, "decode_value", "DecodeFault")
        assert (theirs["source_offset"], theirs["message"], theirs["asset"]) == (77, "no schema", "sink")
        assert frame.loc[b"anybody's"]["source_topic"] is None

    def test_only_the_newest(self, orders: Orders) -> None:
        fill(orders, f"{orders.source}.dlq", *({"value": f"{n}".encode()} for n in range(10)))
        seen: list[list[bytes]] = []

        @dg.asset
        def newest(orders_dead_letters: pd.DataFrame) -> None:
            seen.append(sorted(orders_dead_letters["value"]))

        found = show(orders, dead_letter_asset(orders.topic_asset, max_records=3), newest)
        assert found["dead_letters"].value == 3
        assert rows(found["offsets"]) == [{"partition": 0, "start": 7, "end": 10}]
        assert seen == [[b"7", b"8", b"9"]]

    def test_an_empty_topic_has_the_columns_and_no_dead_letters(self, orders: Orders) -> None:
        orders.send(order(1))
        orders.run(orders.asset())
        seen: list[pd.DataFrame] = []

        @dg.asset
        def table(orders_dead_letters: pd.DataFrame) -> None:
            seen.append(orders_dead_letters)

        found = show(orders, dead_letter_asset(orders.topic_asset), table)
        assert found["dead_letters"].value == 0
        assert not found.keys() & {"reasons", "reasons_chart", "oldest"}
        (frame,) = seen
        assert len(frame) == 0
        assert "source_offset" in frame.columns

    def test_a_topic_that_the_first_run_creates_is_empty_until_then(self, orders: Orders) -> None:
        seen: list[int] = []

        @dg.asset
        def table(orders_dead_letters: DataFrame) -> None:
            seen.append(orders_dead_letters.count())

        found = show(orders, dead_letter_asset(orders.topic_asset), table)
        assert (found["dead_letters"].value, seen) == (0, [0])
        assert "offsets" not in found

    def test_a_topic_that_nobody_creates_is_an_error(self, orders: Orders) -> None:
        with pytest.raises(TopicNotFoundError, match="so the dead letters of topic") as caught:
            show(orders, dead_letter_asset(orders.topic_asset), manager=with_dead_letter(orders))
        assert f"kpipe topics create {orders.source}.dlq" in caught.value.fix
        with pytest.raises(TopicNotFoundError, match="elsewhere"):
            show(orders, dead_letter_asset(orders.topic_asset, topic="elsewhere"))

    def test_the_dead_letters_of_an_assets_own_topic(self, orders: Orders) -> None:
        enriched = orders.asset()
        fill(orders, f"{orders.target}.dlq", {"value": b"v"})
        found = show(orders, dead_letter_asset(enriched))
        assert found["dead_letters"].value == 1

    def test_dead_letters_are_a_topic_that_can_be_read_in_slices_too(self, orders: Orders) -> None:
        dead = dead_letter_asset(orders.topic_asset)
        fill(orders, f"{orders.source}.dlq", {"key": "k", "value": b"v"})

        @kafka_asset(source=dead, topic=KafkaTopic(orders.target, value_codec=RawCodec()), partitioned=False)
        def copied(orders_dead_letters: DataFrame) -> DataFrame:
            return orders_dead_letters

        result = dg.materialize(
            [orders.topic_asset, dead, copied],
            selection=[copied],
            resources={"kafka_io_manager": orders.manager},
            instance=orders.instance,
        )
        assert result.success
        assert [record.value for record in orders.outputs()] == [b"v"]

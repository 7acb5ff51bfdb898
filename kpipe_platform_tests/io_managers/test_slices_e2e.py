"""A slice through the whole house: real broker, real Spark, Dagster in-process."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import FaultAction, JsonCodec, KafkaTopic, PartitionScaling, RawCodec, TextCodec, kafka_topic_asset
from kpipe_platform.codecs import DecodeFault
from kpipe_platform.errors import RecordFaultError, StageFailedError

from .conftest import BAD, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_consecutive_materializations_continue_where_the_last_ended(orders: Orders) -> None:
    asset = orders.asset()
    orders.send(*(order(n) for n in range(10)))
    first = orders.metadata(orders.run(asset))
    orders.send(*(order(n) for n in range(10, 15)))
    second = orders.metadata(orders.run(asset))
    assert orders.ids() == list(range(15))
    assert (first["records_read"], first["records_written"], first["lag"]) == (10, 10, 0)
    assert (second["records_read"], second["records_written"], second["lag"]) == (5, 5, 0)
    assert [item["start"] for item in second["ranges"]] == [10]
    assert orders.committed() == 15
    assert orders.lag() == 0


def test_an_empty_slice_is_a_success_without_a_spark_job(orders: Orders, spark: SparkSession) -> None:
    def jobs() -> set[int]:
        return set(spark.sparkContext.statusTracker().getJobIdsForGroup())

    asset = orders.asset()
    orders.send(order(1))
    before = jobs()
    orders.run(asset)
    filled = jobs()
    assert filled > before
    found = orders.metadata(orders.run(asset))
    assert (found["records_read"], found["lag"]) == (0, 0)
    assert jobs() == filled
    assert orders.ids() == [1]


@pytest.mark.parametrize("linger_s", [None, 0.5])
def test_an_idle_group_keeps_its_offset(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, linger_s: float | None
) -> None:
    """Brokers forget an offset that nothing commits for a week, though the asset runs every hour."""

    def committed_by() -> str:
        found = orders.manager.source.committed(orders.group, orders.source)[0]
        assert found is not None
        assert found.metadata is not None
        return found.metadata.run_id

    asset = orders.asset(max_slices=None, linger_s=linger_s)
    orders.send(order(1))
    first = orders.run(asset)
    orders.run(asset)
    assert committed_by() == first.run_id
    later = SimpleNamespace(**{**vars(time), "time": lambda: time.time() + 2 * 3_600})
    for module in ("slices.plan.planner", "kafka.transactions.slice"):
        monkeypatch.setattr(f"kpipe_platform.{module}.time", later)
    found = orders.run(asset)
    assert orders.metadata(found)["records_read"] == 0
    assert committed_by() == found.run_id
    orders.run(asset)
    assert committed_by() == found.run_id
    assert (orders.committed(), orders.ids()) == (1, [1])


def test_max_records_bounds_a_slice_and_max_slices_takes_several(orders: Orders) -> None:
    orders.send(*(order(n) for n in range(1000)))
    one = orders.asset(scaling=PartitionScaling(max_records=100))
    assert orders.metadata(orders.run(one))["lag"] == 900
    assert orders.committed() == 100
    many = orders.asset(scaling=PartitionScaling(max_records=100), max_slices=3)
    found = orders.metadata(orders.run(many))
    assert (found["records_read"], found["lag"]) == (300, 600)
    assert [record.data["start"] for record in dg_records(found["slices"])] == [100, 200, 300]
    rest = orders.asset(scaling=PartitionScaling(max_records=400), max_slices=None)
    assert orders.metadata(orders.run(rest))["records_read"] == 600
    assert orders.ids() == list(range(1000))


def dg_records(table: Any) -> list[dg.TableRecord]:
    return list(table.records if hasattr(table, "records") else table)


def test_one_bad_record_in_a_thousand_dead_letters_alone(orders: Orders) -> None:
    orders.send(*(order(n) for n in range(500)), {**BAD, "headers": [("h", b"\xff"), ("h", None)]})
    orders.send(*(order(n) for n in range(500, 999)))
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (1000, 999, 1)
    assert orders.ids() == list(range(999))
    [letter] = orders.letters()
    envelope = letter.json()
    assert envelope["original"]["offset"] == 500
    assert base64.b64decode(envelope["original"]["value_base64"]) == b'{"id": "seven"}'
    assert "id" in envelope["fault"]["message"]
    assert envelope["fault"]["field"] == "id"
    assert letter.key == b"bad"
    assert letter.headers[:2] == (("h", b"\xff"), ("h", None))
    assert letter.header("__connect.errors.offset") == b"500"
    assert "dead_letter_reasons" in found


def test_the_reason_names_what_is_wrong(orders: Orders) -> None:
    sent: list[tuple[dict[str, Any], str]] = [
        ({"value": b"not json"}, "not JSON"),
        ({"value": b""}, "empty"),
        ({"value": b'{"amount": 1}'}, '"id"'),
        ({"value": b'{"id": null}'}, '"id"'),
        ({"value": b'{"id": 1, "amount": "much"}'}, '"amount"'),
        ({"value": b"[1]"}, "object"),
        ({"value": b'{"id": 1, "note": "\xff"}'}, "UTF-8"),
        ({"value": b'{"id": 1}', "key": b"\xff"}, "UTF-8"),
    ]
    orders.send(*(record for record, _ in sent), order(2))
    orders.run(orders.asset())
    letters = {letter.json()["original"]["offset"]: letter.json() for letter in orders.letters()}
    assert sorted(letters) == list(range(len(sent)))
    for offset, (record, says) in enumerate(sent):
        assert says in letters[offset]["fault"]["message"]
        assert base64.b64decode(letters[offset]["original"]["value_base64"]) == record["value"]
    assert orders.ids() == [2]


class TestActions:
    def test_stop_is_the_default_and_moves_nothing(self, orders: Orders) -> None:
        orders.send(order(1), BAD, order(3))
        asset = orders.asset(on_fault=None)
        with pytest.raises(RecordFaultError, match=r"orders-\w+/0 offset 1: .*id") as caught:
            orders.run(asset)
        assert caught.value.faults == 1
        assert orders.committed() is None
        assert orders.outputs() == []

    def test_rethrow_raises_the_codecs_own_error(self, orders: Orders) -> None:
        orders.send(BAD)
        with pytest.raises(DecodeFault, match="offset 0"):
            orders.run(orders.asset(on_fault=FaultAction.RETHROW))
        assert orders.committed() is None

    def test_skip_counts_and_goes_on(self, orders: Orders) -> None:
        orders.send(order(1), BAD, order(3))
        found = orders.metadata(orders.run(orders.asset(on_fault=FaultAction.SKIP)))
        assert (found["records_skipped"], found["dead_letters"], found["records_written"]) == (1, 0, 2)
        assert orders.ids() == [1, 3]
        assert orders.committed() == 3

    def test_all_records_bad(self, orders: Orders) -> None:
        orders.send(BAD, BAD, BAD)
        found = orders.metadata(orders.run(orders.asset()))
        assert (found["records_read"], found["records_written"], found["dead_letters"]) == (3, 0, 3)
        assert len(orders.letters()) == 3
        assert orders.committed() == 3


def test_a_stage_that_raises_fails_the_run_with_the_real_reason(orders: Orders) -> None:
    def broken(orders: DataFrame) -> DataFrame:
        return orders.withColumn("id", F.col("note").cast("int"))

    orders.send(order(1))
    with pytest.raises(StageFailedError, match="n1") as caught:
        orders.run(orders.asset(broken, on_fault=FaultAction.STOP))
    assert "CAST_INVALID_INPUT" in str(caught.value)
    assert orders.committed() is None
    assert orders.outputs(isolation="read_uncommitted") == []


class TestRecordParts:
    """Headers in order with duplicates, keys, tombstones and timestamps arrive as they were."""

    def raw(self, orders: Orders, **topic: Any) -> tuple[Any, Any]:
        orders.topic_asset = kafka_topic_asset(orders.source, value_codec=RawCodec(), partitions=1, name="orders")
        return orders.asset(topic=KafkaTopic(orders.target, value_codec=RawCodec(), **topic)), orders

    def test_a_raw_copy_keeps_key_value_and_headers(self, orders: Orders) -> None:
        asset, _ = self.raw(orders)
        sent = [
            {"key": b"\xff\x00", "value": b"\xfe", "headers": [("a", b"1"), ("b", None), ("a", b"\xff"), ("c", b"")]},
            {"key": None, "value": b"", "headers": []},
            {"key": b"", "value": None, "headers": [("x", b"y")]},
        ]
        orders.send(*sent)
        orders.run(asset)
        found = sorted(orders.outputs(), key=lambda r: r.offset)
        assert [(r.key, r.value) for r in found] == [(r["key"], r["value"]) for r in sent]
        for record, given in zip(found, sent, strict=True):
            assert list(record.headers[:-4]) == given["headers"]
            assert record.headers[-4] == ("correlation-id", f"{orders.source}-0-{sent.index(given)}".encode())
            assert record.headers[-1] == ("kpipe.source", f"{orders.source}/0/{sent.index(given)}".encode())

    def test_a_stage_that_drops_kafka_drops_headers_and_key(self, orders: Orders) -> None:
        orders.send(order(1, headers=[("a", b"1")]))
        orders.run(orders.asset(lambda orders: orders.drop("_kafka")))
        [record] = orders.outputs()
        assert (record.key, record.headers) == (None, ())

    def test_a_tombstone_passes_a_json_stage(self, orders: Orders) -> None:
        orders.send(order(1), {"key": "k1", "value": None})
        orders.run(orders.asset())
        last = max(orders.outputs(), key=lambda r: r.offset)
        assert (last.key, last.value) == (b"k1", None)

    def test_timestamps_can_be_set(self, orders: Orders) -> None:
        orders.send(order(1, timestamp=1_357_034_400_000))
        orders.run(
            orders.asset(topic=KafkaTopic(orders.target, value_codec=JsonCodec(), timestamp_column="_kafka.timestamp"))
        )
        [record] = orders.outputs()
        assert record.timestamp_ms == 1_357_034_400_000

    def test_raw_output_columns_are_those_of_sparks_sink(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(target={"partitions": 3})
        orders.send(order(1))

        def stage(orders: DataFrame) -> DataFrame:
            return orders.select(
                F.lit("key").alias("key"),
                F.lit(b"value").alias("value"),
                F.array(F.struct(F.lit("h").alias("key"), F.lit(b"1").alias("value"))).alias("headers"),
                F.lit(2).alias("partition"),
                F.lit(1_357_034_400_000).cast("bigint").alias("timestamp"),
            )

        orders.run(orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=RawCodec())))
        [record] = orders.outputs()
        assert (record.partition, record.key, record.value) == (2, b"key", b"value")
        assert (record.headers, record.timestamp_ms) == ((("h", b"1"),), 1_357_034_400_000)

    def test_text(self, orders: Orders) -> None:
        orders.topic_asset = kafka_topic_asset(
            orders.source, value_codec=TextCodec(), key_codec=TextCodec(), partitions=1, name="orders"
        )
        orders.send({"key": "k", "value": "grüße".encode()}, {"key": "k", "value": b"\xff"})
        stage = lambda orders: orders.withColumn("value", F.upper("value"))  # noqa: E731
        orders.run(orders.asset(stage, topic=KafkaTopic(orders.target, value_codec=TextCodec())))
        [record] = orders.outputs()
        assert record.value == "GRÜSSE".encode() or record.value == "GRÜßE".encode()
        [letter] = orders.letters()
        assert "UTF-8" in letter.json()["fault"]["message"]

    def test_large_values_and_many_headers(self, make_orders: Callable[..., Orders]) -> None:
        big = {"max.message.bytes": "2000000"}
        orders = make_orders(config=big, target={"config": big})
        asset, _ = self.raw(orders)
        value = bytes(range(256)) * 4_000
        orders.send({"key": b"\xff\xfe", "value": value[:1_000_000], "headers": [("h", b"x")]})
        orders.send(
            *({"key": b"k", "value": b"v", "headers": [("n", str(n).encode()), ("m", None)]} for n in range(10_000))
        )
        found = orders.metadata(orders.run(asset))
        assert found["records_written"] == 10_001
        records = sorted(orders.outputs(), key=lambda r: r.offset)
        assert records[0].value == value[:1_000_000]
        assert [r.header("n") for r in records[1:]] == [str(n).encode() for n in range(10_000)]


def test_values_of_a_stage_are_checked_against_the_declared_schema(orders: Orders) -> None:
    from kpipe_platform.errors import ConfigError

    declared = KafkaTopic(orders.target, value_codec=JsonCodec("id STRING, amount DOUBLE, note STRING, more INT"))
    orders.send(order(1))
    with pytest.raises(ConfigError, match=r"'more' is declared but not returned; 'id' is bigint, declared as string"):
        orders.run(orders.asset(topic=declared))
    assert orders.committed() is None


def test_preview_and_columns_are_shown(orders: Orders) -> None:
    orders.send(*(order(n) for n in range(20)))
    found = orders.metadata(orders.run(orders.asset()))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found["preview"].splitlines()]
    assert lines[0] == ["field", *(f"record {n}" for n in range(1, 6))]
    assert lines[2] == ["*key*", "k0", "k1", "k2", "k3", "k4"]
    assert lines[3:] == [
        ["id", "0", "1", "2", "3", "4"],
        ["amount", "0.0", "1.5", "3.0", "4.5", "6.0"],
        ["note", "n0", "n1", "n2", "n3", "n4"],
    ]
    assert [c.name for c in found["dagster/column_schema"].columns] == ["id", "amount", "note"]

"""What a destination will not take, dead letters that cannot be written, and delivery at least once."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaTopic,
    TextCodec,
    TopicSpec,
)
from kpipe_platform.errors import ConfigError, DeadLetterError, DestinationRejectedError, RecordFaultError
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.policies.faults import Fault
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.plugin import TopicFactory

from .conftest import BAD, DELIVERIES, Orders, incompressible, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SMALL = {"config": {"max.message.bytes": "10000"}}


def with_destination(manager: KafkaIOManager, **changes: Any) -> KafkaIOManager:
    return KafkaIOManager(
        source=manager.source,
        destination=KafkaDestination(connection=manager.source.connection, **changes),
        dead_letter=manager.dead_letter,
        spark=manager.spark,
    )


def long_note(number: int, characters: int) -> dict[str, Any]:
    return order(number, value={"note": incompressible(characters)})


class TestTooLarge:
    """The topic takes 10 kB: 9 kB pass, 20 kB are the record's own fault, and small records batch well below it."""

    @pytest.fixture
    def small(self, make_orders: Callable[..., Orders]) -> Orders:
        orders = make_orders(target=SMALL)
        orders.send(*(order(n) for n in range(300)), long_note(300, 9_000), long_note(301, 20_000), order(302))
        return orders

    def test_dead_letters_alone(self, small: Orders) -> None:
        found = small.metadata(small.run(small.asset()))
        assert (found["records_read"], found["records_written"], found["dead_letters"]) == (303, 302, 1)
        assert small.ids() == [*range(301), 302]
        [letter] = small.letters()
        envelope = letter.json()
        assert envelope["fault"]["component"] == "destination"
        assert "at most 10,000" in envelope["fault"]["message"]
        assert envelope["original"]["offset"] == 301
        original = json.loads(base64.b64decode(envelope["original"]["value_base64"]))
        assert original["note"] == incompressible(20_000)

    def test_stop_names_the_record_and_moves_nothing(self, small: Orders) -> None:
        with pytest.raises(DestinationRejectedError, match="offset 301") as caught:
            small.run(small.asset(on_fault=None))
        assert caught.value.reasons == {"too_large": 1}
        assert small.committed() is None
        assert small.outputs(settled=False) == []

    def test_a_stage_that_dropped_kafka_dead_letters_the_output_with_the_slice_as_origin(self, small: Orders) -> None:
        small.run(small.asset(lambda orders: orders.drop("_kafka")))
        [letter] = small.letters()
        envelope = letter.json()
        assert envelope["original"]["offset"] is None
        assert (envelope["origin_range"]["start"], envelope["origin_range"]["end"]) == (0, 303)
        assert json.loads(base64.b64decode(envelope["original"]["value_base64"]))["id"] == 301
        assert small.ids() == [*range(301), 302]

    def test_several_outputs_of_one_record_go_or_stay_together(self, small: Orders) -> None:
        def twice(orders: DataFrame) -> DataFrame:
            short = orders.withColumn("note", F.lit("short"))
            return short.unionByName(orders)

        found = small.metadata(small.run(small.asset(twice)))
        assert (found["records_written"], found["dead_letters"]) == (604, 1)
        assert 301 not in small.ids()

    def test_at_least_once(self, small: Orders) -> None:
        manager = with_destination(small.manager, delivery="at_least_once")
        found = small.metadata(small.run(small.asset(), manager=manager))
        assert (found["records_read"], found["records_written"], found["dead_letters"]) == (303, 302, 1)
        assert sorted(small.ids()) == [*range(301), 302]
        assert len(small.letters()) == 1


def fresh() -> Column:
    """Another text each time that it is computed."""
    return F.udf(lambda _: uuid.uuid4().hex, "string").asNondeterministic()("id")


def with_the_time(orders: DataFrame) -> DataFrame:
    return orders.drop("_kafka").withColumn("at", F.current_timestamp())


def with_a_uuid(orders: DataFrame) -> DataFrame:
    return orders.drop("_kafka").withColumn("uuid", fresh())


def without_order(orders: DataFrame) -> DataFrame:
    """An aggregate of rows that are in another order each time."""
    groups = orders.withColumn("note", F.concat(fresh(), "note")).groupBy((F.col("id") > 20).cast("int").alias("id"))
    return groups.agg(F.array_join(F.collect_list("note"), "").alias("notes"))


def of_any_record(orders: DataFrame) -> DataFrame:
    """Two outputs, each with the coordinates of one of its records, and of another one each time."""
    groups = orders.withColumn("at", fresh()).groupBy((F.col("id") > 20).cast("int").alias("id"))
    return groups.agg(F.array_join(F.collect_list("note"), "").alias("notes"), F.max_by("_kafka", "at").alias("_kafka"))


@pytest.mark.parametrize("known_before", [True, False], ids=["checked", "by the brokers"])
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("stage", [with_the_time, with_a_uuid, without_order, of_any_record])
def test_what_is_refused_is_dead_lettered_though_its_rows_differ_each_time(
    make_orders: Callable[..., Orders],
    monkeypatch: pytest.MonkeyPatch,
    stage: Callable[[DataFrame], DataFrame],
    delivery: str,
    known_before: bool,
) -> None:
    orders = make_orders(target=SMALL)
    if not known_before:
        monkeypatch.setattr(
            "kpipe_platform.slices.target.topic_limits", lambda _, names: {name: TopicLimits() for name in names}
        )
    orders.send(*(order(n) for n in range(40)), long_note(40, 20_000))
    manager = with_destination(orders.manager, delivery=delivery)
    found = orders.metadata(orders.run(orders.asset(stage), manager=manager))
    rows = 2 if stage in (without_order, of_any_record) else 41
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (41, rows - 1, 1)
    assert {record.json()["id"] for record in orders.outputs()} == set(range(rows - 1))
    [letter] = orders.letters()
    envelope = letter.json()
    original = json.loads(base64.b64decode(envelope["original"]["value_base64"]))
    if stage is of_any_record:
        assert original["id"] == envelope["original"]["offset"] > 20
    else:
        assert original["id"] == rows - 1
        assert incompressible(20_000) in str(original)
    assert orders.committed() == 41


class TestCompression:
    """A topic takes 1 MB by default, of the batch as it comes: a record of 3 MB that compresses well, and others."""

    @pytest.fixture
    def large(self, orders: Orders) -> Orders:
        client = {"bootstrap.servers": orders.manager.source.connection.bootstrap_servers, "compression.type": "lz4"}
        orders.send(order(0), order(1, value={"note": "x" * 3_000_000}), order(2), client=client)
        return orders

    @pytest.mark.parametrize("delivery", DELIVERIES)
    @pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
    def test_what_a_topic_holds_can_be_copied(self, large: Orders, delivery: str, compression: str) -> None:
        manager = with_destination(large.manager, delivery=delivery, compression=compression)
        found = large.metadata(large.run(large.asset(), manager=manager))
        assert (found["records_written"], found["dead_letters"]) == (3, 0)
        assert large.ids() == [0, 1, 2]

    def test_without_compression_it_is_dead_lettered(self, large: Orders) -> None:
        large.run(large.asset(), manager=with_destination(large.manager, compression="none"))
        assert large.ids() == [0, 2]
        [letter] = large.letters()
        assert letter.json()["fault"]["kind"] == "too_large"
        assert letter.json()["payload"] == "reference"

    def test_a_topic_that_stores_without_compression(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(target={"config": {"compression.type": "uncompressed", "max.message.bytes": "10000"}})
        orders.send(order(0), order(1, value={"note": "x" * 20_000}), order(2))
        orders.run(orders.asset())
        assert orders.ids() == [0, 2]
        [letter] = orders.letters()
        assert letter.json()["fault"]["kind"] == "too_large"

    def test_its_dead_letter_holds_it_whole(self, large: Orders) -> None:
        client = {"bootstrap.servers": large.manager.source.connection.bootstrap_servers, "compression.type": "lz4"}
        large.send({"value": b"no" * 1_500_000}, client=client)
        large.run(large.asset())
        [letter] = large.letters()
        assert letter.json()["payload"] == "embedded"
        assert base64.b64decode(letter.json()["original"]["value_base64"]) == b"no" * 1_500_000

    def test_a_record_of_which_nobody_is_sure_is_for_the_brokers(self, make_orders: Callable[..., Orders]) -> None:
        """Of random letters zstd and lz4 leave about as much; a few percent decide."""
        orders = make_orders(target=SMALL)
        sizes = range(9_600, 11_600, 50)
        orders.send(*(long_note(size, size) for size in sizes))
        found = orders.metadata(orders.run(orders.asset()))
        assert found["records_written"] + found["dead_letters"] == len(sizes)
        assert found["records_written"] >= 4
        assert orders.committed() == len(sizes)


def test_a_null_key_for_a_compacted_topic(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(target={"config": {"cleanup.policy": "compact"}})
    orders.send(order(1), {"key": None, "value": order(2)["value"]}, order(3))
    orders.run(orders.asset())
    assert orders.ids() == [1, 3]
    [letter] = orders.letters()
    assert "has no key" in letter.json()["fault"]["message"]


def to_partitions(orders: DataFrame) -> DataFrame:
    """A bigint, so that one of them is beyond what a partition's number can be."""
    wanted = F.element_at(
        F.array(*(F.lit(n).cast("bigint") for n in (0, 9, -1, None, 2**40))), (F.col("id") + 1).cast("int")
    )
    return orders.select(F.col("id").cast("string").alias("value"), wanted.alias("partition"), "_kafka")


def to_partitions_without_a_source(orders: DataFrame) -> DataFrame:
    return to_partitions(orders).drop("_kafka")


def to_partitions_as_new_records(orders: list[KafkaRecord]) -> list[KafkaRecord]:
    wanted = (0, 9, 10, None, 2**31 - 1)
    return [KafkaRecord(value=str(n), partition=partition) for n, partition in enumerate(wanted)]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("stage", [to_partitions, to_partitions_without_a_source, to_partitions_as_new_records])
def test_an_output_for_a_partition_that_the_topic_does_not_have(
    orders: Orders, stage: Callable[..., Any], delivery: str
) -> None:
    orders.send(*(order(n) for n in range(5)))
    manager = with_destination(orders.manager, delivery=delivery)
    topic = KafkaTopic(orders.target, value_codec=TextCodec())
    with pytest.raises(DestinationRejectedError, match=r"partition (9|10|-1|\d{10,}), but topic") as caught:
        orders.run(orders.asset(stage, topic=topic, on_fault=None), manager=manager)
    assert caught.value.reasons == {"partition": 3}
    assert orders.committed() is None
    before = len(orders.outputs())
    assert delivery == "at_least_once" or before == 0
    found = orders.metadata(orders.run(orders.asset(stage, topic=topic), manager=manager))
    assert (found["records_written"], found["dead_letters"], orders.committed()) == (2, 3, 5)
    assert sorted(record.value for record in orders.outputs()[before:]) == [b"0", b"3"]
    faults = [letter.json()["fault"] for letter in orders.letters()]
    assert {(fault["component"], fault["kind"]) for fault in faults} == {("destination", "partition")}


def test_a_missing_partition_beside_what_only_the_brokers_refuse(
    make_orders: Callable[..., Orders], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_orders(target={"config": {"cleanup.policy": "compact"}})
    monkeypatch.setattr(
        "kpipe_platform.slices.target.topic_limits", lambda _, names: {name: TopicLimits() for name in names}
    )
    orders.send(*(order(n) for n in range(4)), {"key": None, "value": order(3)["value"]}, order(1))
    manager = with_destination(orders.manager, delivery="at_least_once")
    topic = KafkaTopic(orders.target, value_codec=TextCodec())
    found = orders.metadata(orders.run(orders.asset(to_partitions, topic=topic), manager=manager))
    assert (found["dead_letters"], orders.committed()) == (4, 6)
    assert {letter.json()["fault"]["kind"] for letter in orders.letters()} == {"partition", "refused"}


def with_headers(orders: DataFrame) -> DataFrame:
    named = F.when(F.col("id") != 1, F.lit("mine"))
    header = F.struct(named.alias("key"), F.lit(b"x").alias("value"))
    headers = F.array(F.when(F.col("id") != 2, header), header)
    return orders.select(F.col("id").cast("string").alias("value"), headers.alias("headers"), "_kafka")


def with_headers_without_a_source(orders: DataFrame) -> DataFrame:
    return with_headers(orders).drop("_kafka")


def with_headers_as_new_records(orders: list[KafkaRecord]) -> list[KafkaRecord]:
    names: list[Any] = ["mine", None, None]
    return [KafkaRecord(value=str(n), headers=(("mine", b"x"), (name, b"x"))) for n, name in enumerate(names)]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("stage", [with_headers, with_headers_without_a_source, with_headers_as_new_records])
def test_a_header_without_a_name(orders: Orders, stage: Callable[..., Any], delivery: str) -> None:
    orders.send(*(order(n) for n in range(3)))
    manager = with_destination(orders.manager, delivery=delivery)
    topic = KafkaTopic(orders.target, value_codec=TextCodec())
    found = orders.metadata(orders.run(orders.asset(stage, topic=topic), manager=manager))
    assert (found["records_written"], found["dead_letters"], orders.committed()) == (1, 2, 3)
    [record] = orders.outputs()
    assert [pair for pair in record.headers if pair[0] == "mine"] == [("mine", b"x")] * 2
    for letter in orders.letters():
        fault = letter.json()["fault"]
        assert (fault["component"], fault["kind"]) == ("destination", "header")
        assert "None" not in dict(letter.headers)


def test_a_timestamp_out_of_the_topics_bounds(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(target={"config": {"message.timestamp.before.max.ms": "3600000"}})
    orders.send(order(1), order(2, timestamp=1_357_034_400_000))
    topic = KafkaTopic(orders.target, value_codec=JsonCodec(), timestamp_column="_kafka.timestamp")
    orders.run(orders.asset(topic=topic))
    assert orders.ids() == [1]
    [letter] = orders.letters()
    assert "1357034400000 ms is outside" in letter.json()["fault"]["message"]


def test_what_only_the_brokers_know_is_found_by_halving(
    make_orders: Callable[..., Orders], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the checks before sending out of the way, the broker refuses whole batches for one record in them."""
    orders = make_orders(target={"config": {"cleanup.policy": "compact"}})
    monkeypatch.setattr(
        "kpipe_platform.slices.target.topic_limits", lambda _, names: {name: TopicLimits() for name in names}
    )
    orders.send(*(order(n) for n in range(200)))
    orders.send({"key": None, "value": order(200)["value"]}, order(201), {"key": None, "value": order(202)["value"]})
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (201, 2)
    assert orders.ids() == [*range(200), 201]
    assert {letter.json()["original"]["offset"] for letter in orders.letters()} == {200, 202}
    assert all("INVALID_RECORD" in letter.json()["fault"]["exception_type"] for letter in orders.letters())


class TestDeadLetters:
    def test_a_missing_topic_fails_before_any_work(self, orders: Orders) -> None:
        connection = orders.manager.source.connection
        manager = KafkaIOManager(
            source=orders.manager.source,
            destination=orders.manager.destination,
            dead_letter=KafkaDeadLetterDestination(connection=connection),
            spark=orders.manager.spark,
        )
        orders.send(order(1), BAD)
        with pytest.raises(DeadLetterError, match=r"\.dlq' of source topic .* does not exist"):
            orders.run(orders.asset(), manager=manager)
        assert orders.committed() is None
        assert orders.outputs() == []

    def test_none_configured(self, orders: Orders) -> None:
        manager = KafkaIOManager(
            source=orders.manager.source, destination=orders.manager.destination, spark=orders.manager.spark
        )
        with pytest.raises(ConfigError, match="no dead-letter destination"):
            orders.run(orders.asset(), manager=manager)

    def test_raw_form(self, orders: Orders) -> None:
        connection = orders.manager.source.connection
        letters = KafkaDeadLetterDestination(connection=connection, form="raw", create_topic=True)
        manager = KafkaIOManager(
            source=orders.manager.source,
            destination=orders.manager.destination,
            dead_letter=letters,
            spark=orders.manager.spark,
        )
        orders.send({"key": b"\xff", "value": b"\xfe\x00", "headers": [("h", b"1")]}, {"key": "k", "value": b""})
        orders.run(orders.asset(), manager=manager)
        first, second = sorted(orders.letters(), key=lambda r: r.offset)
        assert (first.key, first.value, first.headers[0]) == (b"\xff", b"\xfe\x00", ("h", b"1"))
        assert second.value == b""
        assert first.header("__connect.errors.topic") == orders.source.encode()

    def test_where_a_hook_redacts_nothing_of_a_record_is_shown(
        self, orders: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Neither of one that does not decode nor of one that the stage fails on, whose error quotes the value."""
        connection = orders.manager.source.connection
        letters = KafkaDeadLetterDestination(
            connection=connection, create_topic=True, redact=f"{without_values.__module__}:without_values"
        )
        manager = KafkaIOManager(
            source=orders.manager.source,
            destination=orders.manager.destination,
            dead_letter=letters,
            spark=orders.manager.spark,
        )

        def stage(orders: DataFrame) -> DataFrame:
            return orders.withColumn("amount", F.col("note").cast("double"))

        orders.send(order(1, value={"note": "1.5"}), order(2, value={"note": "seven"}), BAD)
        caplog.set_level(logging.INFO)
        found = orders.metadata(orders.run(orders.asset(stage), manager=manager))
        assert (found["records_written"], found["dead_letters"]) == (1, 2)
        assert "preview" not in found
        told = f"{found} {[r.getMessage() for r in caplog.records if r.name.startswith('kpipe_platform')]}"
        assert "the stage fails on" in told
        assert "wrong_type" in told
        assert "seven" not in told
        orders.send(BAD)
        with pytest.raises(RecordFaultError) as caught:
            orders.run(orders.asset(on_fault=FaultAction.STOP), manager=manager)
        assert "seven" not in f"{caught.value} {vars(caught.value)}"

    def test_a_payload_that_cannot_fit_is_referred_to(
        self, make_orders: Callable[..., Orders], kafka_topic: TopicFactory
    ) -> None:
        orders = make_orders()
        small = kafka_topic("small-dlq", config={"max.message.bytes": "10000"})
        connection = orders.manager.source.connection
        manager = KafkaIOManager(
            source=orders.manager.source,
            destination=orders.manager.destination,
            dead_letter=KafkaDeadLetterDestination(connection=connection, topic=small),
            spark=orders.manager.spark,
        )
        payload = incompressible(36_000).encode()
        orders.send({"key": "k", "value": payload})
        orders.run(orders.asset(), manager=manager)
        [letter] = orders.consume(small)
        envelope = letter.json()
        assert envelope["payload"] == "reference"
        assert hashlib.sha256(payload).hexdigest() in json.dumps(envelope)


def without_values(record: KafkaRecord, fault: Fault) -> tuple[KafkaRecord, Fault]:
    """A redaction hook."""
    return replace(record, value=b"{}"), replace(fault, message=fault.kind, stacktrace=None)


class TestAtLeastOnce:
    @pytest.fixture
    def manager(self, orders: Orders) -> KafkaIOManager:
        return with_destination(orders.manager, delivery="at_least_once")

    def test_outputs_dead_letters_then_offsets(self, orders: Orders, manager: KafkaIOManager) -> None:
        orders.send(*(order(n) for n in range(50)), BAD)
        found = orders.metadata(orders.run(orders.asset(), manager=manager))
        assert (found["records_read"], found["records_written"], found["dead_letters"]) == (51, 50, 1)
        assert sorted(orders.ids()) == list(range(50))
        assert orders.committed() == 51
        orders.send(order(50))
        assert orders.metadata(orders.run(orders.asset(), manager=manager))["records_read"] == 1
        assert sorted(orders.ids()) == list(range(51))

    def test_stop_looks_before_it_writes(self, orders: Orders, manager: KafkaIOManager) -> None:
        orders.send(*(order(n) for n in range(50)), BAD)
        with pytest.raises(RecordFaultError, match="offset 50"):
            orders.run(orders.asset(on_fault=FaultAction.STOP), manager=manager)
        assert orders.outputs() == []
        assert orders.committed() is None


def test_exactly_once_needs_one_cluster(orders: Orders, kafka_broker: EmbeddedBroker) -> None:
    other = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers, client_id="other")
    manager = KafkaIOManager(
        source=orders.manager.source,
        destination=KafkaDestination(connection=other),
        dead_letter=orders.manager.dead_letter,
        spark=orders.manager.spark,
    )
    with pytest.raises(ConfigError, match="needs the same connection for source and destination"):
        orders.run(orders.asset(), manager=manager)


class TestLoops:
    """What an asset writes is another topic than what it reads."""

    @staticmethod
    def dead_letters_to(manager: KafkaIOManager, topic: str) -> KafkaIOManager:
        connection = manager.source.connection
        letters = KafkaDeadLetterDestination(connection=connection, topic=topic, create_topic=True)
        return KafkaIOManager(
            source=manager.source, destination=manager.destination, dead_letter=letters, spark=manager.spark
        )

    @pytest.mark.parametrize("is_plain", [False, True])
    @pytest.mark.parametrize("delivery", DELIVERIES)
    def test_the_destination_is_the_source(self, orders: Orders, delivery: str, is_plain: bool) -> None:
        def enriched(orders: DataFrame) -> DataFrame:
            return orders

        topic = KafkaTopic(orders.source, create=TopicSpec())
        asset = orders.asset(enriched, topic=topic)
        if is_plain:
            how = {"partitions_def": orders.topic_asset.partitions_def, "metadata": topic.as_metadata()}
            asset = dg.asset(io_manager_key="kafka_io_manager", **how)(enriched)
        orders.send(order(1))
        manager = with_destination(orders.manager, delivery=delivery)
        with pytest.raises(ConfigError, match=f"destination topic of asset enriched is '{orders.source}'"):
            orders.run(asset, manager=manager)
        assert orders.committed() is None
        assert len(orders.consume(orders.source)) == 1

    def test_dead_letters_go_to_the_source(self, orders: Orders) -> None:
        orders.send(BAD)
        manager = self.dead_letters_to(orders.manager, "{source_topic}")
        with pytest.raises(ConfigError, match=f"dead-letter topic of asset enriched is '{orders.source}'"):
            orders.run(orders.asset(), manager=manager)
        assert orders.committed() is None

    def test_dead_letters_go_to_the_destination(self, orders: Orders) -> None:
        orders.send(BAD)
        manager = self.dead_letters_to(orders.manager, orders.target)
        with pytest.raises(ConfigError, match="writes its dead letters to its destination topic"):
            orders.run(orders.asset(), manager=manager)
        assert orders.committed() is None

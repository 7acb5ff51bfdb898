"""What must work on a Spark Connect server as it does in-process.

`kpipe_platform_tests/spark/test_connect.py` runs these in a process of their own: a process has either a Spark of its
own or sessions on a server. They share the broker of the tests, and one server, whose writers know the faults of
``kpipe_platform_tests/faultpoints``.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import (
    ExecutionMode,
    KafkaIOManager,
    KafkaTopic,
    KafkaTopics,
    PartitionScaling,
    Rule,
    SparkEngine,
    expect_all,
    kafka_multi_asset,
    map_records,
)
from kpipe_platform.errors import EngineUnavailableError
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.kafka.admin.topics import TopicLimits
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.spark.engine.attach import detach
from kpipe_platform.spark.engine.session import get_session
from kpipe_platform.spark.engine.settings import EngineSettings
from kpipe_platform.spark.sink.single_pass import rows_per_record
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.codecs import check_codec_in_topics
from kpipe_platform.testing.plugin import TopicFactory
from kpipe_platform_tests.codecs import careless
from kpipe_platform_tests.codecs.conformance import CASES
from kpipe_platform_tests.processes import wait_until
from kpipe_platform_tests.spark import plan_cases, single_pass_cases

from .conftest import BAD, Orders, order
from .killing import FAULTS, INTERRUPTED, alive, fault, foreign_job, terminated
from .test_destinations_e2e import SMALL, long_note

pytestmark = [pytest.mark.broker, pytest.mark.spark]

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def kafka_broker() -> EmbeddedBroker:
    """The broker of the tests that run these: of it only the address is needed."""
    return cast("EmbeddedBroker", SimpleNamespace(bootstrap_servers=os.environ["KPIPE_TEST_BROKER"]))


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "control.json"


@pytest.fixture(scope="session")
def spark_remote(pytestconfig: pytest.Config, control: Path) -> Iterator[str]:
    """A server whose writers know the faults that the control file names."""
    server = ConnectServer(master=pytestconfig.getini("kpipe_spark_master"), settings=QUICK, warm=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", FAULTS)
        patch.setenv("KPIPE_FAULT_CONTROL", str(control))
        server.start()
    try:
        yield server.remote
        assert server.is_running(), server.log_tail()
    finally:
        server.stop()


def on(remote: str, orders: Orders) -> KafkaIOManager:
    """The orders' IO manager, on another engine."""
    manager = orders.manager
    return KafkaIOManager(
        source=manager.source,
        destination=manager.destination,
        dead_letter=manager.dead_letter,
        spark=SparkEngine(remote=remote),
    )


# ------------------------------------------------------------------------------------------- slices


def test_a_slice_is_written_once_with_its_dead_letters(orders: Orders) -> None:
    orders.send(*(order(n) for n in range(5)), BAD)
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_read"], found["records_written"], found["dead_letters"]) == (6, 5, 1)
    orders.send(order(5))
    orders.run(orders.asset())
    assert orders.ids() == list(range(6))
    assert (len(orders.letters()), orders.committed(), orders.lag()) == (1, 7, 0)


def test_several_topics_are_written(orders: Orders, kafka_topic: TopicFactory) -> None:
    other = kafka_topic("other")
    topics = [KafkaTopic(orders.target, key_expression="upper(note)"), KafkaTopic(other, headers_column="meta")]

    def by_column(orders: DataFrame) -> DataFrame:
        topic = F.when(F.col("id") % 2 == 0, topics[0].name).when(F.col("id") < 4, topics[1].name)
        return orders.withColumns({"to": topic, "meta": F.create_map(F.lit("kind"), F.col("note"))})

    def split(orders: DataFrame) -> tuple[DataFrame, DataFrame]:
        nothing = F.lit(None).cast("map<string,string>")
        return orders.where("id >= 6"), orders.where("id > 8").withColumn("meta", nothing)

    orders.send(*(order(n) for n in range(6)), BAD)
    found = orders.metadata(orders.run(orders.asset(by_column, topic=KafkaTopics("to", topics))))
    assert (found["records_written"], found["dead_letters"]) == (5, 2)
    orders.send(*(order(n) for n in range(6, 10)))
    outs = dict(zip(("enriched", "second"), topics, strict=True))
    asset = kafka_multi_asset(source=orders.topic_asset, outs=outs, name="split", on_fault="skip")(split)
    counts = {
        event.asset_key.path[-1]: event.materialization.metadata["dagster/row_count"].value
        for event in orders.run(asset).get_asset_materialization_events()
    }
    # The group is that of the asset before, which had the name of the first output.
    assert counts == {"enriched": 4, "second": 1}
    written = [(r.json()["id"], r.key) for r in orders.outputs()]
    assert written == [(n, f"N{n}".encode()) for n in (0, 2, 4, 6, 7, 8, 9)]
    assert [r.json()["id"] for r in orders.consume(other)] == [1, 3, 9]


def test_a_codec_whose_module_the_server_lacks(
    kafka_io_manager: KafkaIOManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_the_client_has_it.py").write_text(Path(careless.__file__).read_text(encoding="utf-8"))
    monkeypatch.syspath_prepend(tmp_path)
    codec = importlib.import_module("only_the_client_has_it").LongCodec()
    check_codec_in_topics(replace(CASES["long"], codec=codec), kafka_io_manager)


def test_a_stage_that_fails_on_a_record_is_isolated(orders: Orders) -> None:
    def stage(orders: DataFrame) -> DataFrame:
        poison = F.raise_error(F.concat(F.lit("poison "), F.col("id"))).cast("string")
        return orders.withColumn("note", F.when(F.col("id") == 3, poison).otherwise(F.col("note")))

    orders.send(*(order(n) for n in range(6)))
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert found["dead_letters"] == 1
    assert orders.ids() == [0, 1, 2, 4, 5]
    (letter,) = orders.letters()
    assert letter.json()["fault"]["message"] == "poison 3"


def test_what_is_refused_is_dead_lettered_though_its_rows_differ_each_time(
    make_orders: Callable[..., Orders], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(orders: DataFrame) -> DataFrame:
        return orders.drop("_kafka").withColumn("uuid", F.expr("uuid()")).withColumn("at", F.current_timestamp())

    for _ in ("checked before", "refused by the brokers"):
        orders = make_orders(target=SMALL)
        orders.send(*(order(n) for n in range(40)), long_note(40, 20_000))
        found = orders.metadata(orders.run(orders.asset(stage)))
        assert (found["records_written"], found["dead_letters"]) == (40, 1)
        assert orders.ids() == list(range(40))
        assert len(orders.letters()) == 1
        monkeypatch.setattr(
            "kpipe_platform.slices.target.topic_limits", lambda _, names: {name: TopicLimits() for name in names}
        )


def test_a_timestamp_that_sparks_source_cannot_convert(make_orders: Callable[..., Orders]) -> None:
    orders = make_orders(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    orders.send(order(0), order(1, timestamp=10**18), order(2))
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (2, 1)
    assert orders.ids() == [0, 2]
    (letter,) = orders.letters()
    assert letter.json()["fault"]["component"] == "source"


def test_parts_of_a_slice_are_written_at_once(orders: Orders) -> None:
    relaxed = PartitionScaling(
        execution_mode=ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION, max_in_flight_per_partition=2
    )
    orders.send(*(order(n) for n in range(2_000)), BAD)
    found = orders.metadata(orders.run(orders.asset(scaling=relaxed)))
    # The server was asked how many tasks it runs at once.
    assert found["transactions_per_slice"] == 2
    assert sorted(orders.ids()) == list(range(2_000))
    assert (len(orders.letters()), orders.committed()) == (1, 2_001)


def test_row_functions(orders: Orders) -> None:
    def risky(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 2:
            raise ValueError(f"no price for {row['id']}")
        return {"id": row["id"], "price": row["amount"] * 2}

    def stage(orders: DataFrame) -> DataFrame:
        return map_records(orders, risky, schema="id BIGINT, price DOUBLE")

    orders.send(*(order(n) for n in range(4)))
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert (found["records_written"], found["dead_letters"]) == (3, 1)
    assert "isolation" not in found
    (letter,) = orders.letters()
    assert letter.json()["fault"]["message"] == "no price for 2"


def test_rules(orders: Orders) -> None:
    def stage(orders: DataFrame) -> DataFrame:
        rules = [Rule("positive", "amount > 0", "dead_letter"), Rule("small", "amount < 100", "skip")]
        return expect_all(orders, rules)

    orders.send(order(1), order(2, value={"amount": -1.0}), order(3, value={"amount": 1000.0}))
    found = orders.metadata(orders.run(orders.asset(stage)))
    assert (found["records_written"], found["dead_letters"], found["records_skipped"]) == (1, 1, 1)
    assert orders.ids() == [1]


def test_pandas(orders: Orders) -> None:
    def stage(orders: pd.DataFrame) -> pd.DataFrame:
        return orders.assign(id=orders["id"] * 10)

    orders.send(order(1), order(2))
    orders.run(orders.asset(stage))
    assert orders.ids() == [10, 20]


# ----------------------------------------------------------------------------------------- sessions


def test_a_run_has_a_session_of_its_own_that_is_released_at_its_end(orders: Orders, spark_remote: str) -> None:
    seen: list[Any] = []

    def stage(orders: DataFrame) -> DataFrame:
        seen.append(orders.sparkSession)
        return orders

    engine = SparkEngine(remote=spark_remote, app_name="own")
    manager = on(spark_remote, orders).model_copy(update={"spark": engine})
    for number in range(2):
        orders.send(order(number))
        orders.run(orders.asset(stage), manager=manager)
    first, second = seen
    assert first.session_id != second.session_id
    assert first.is_stopped
    assert second.is_stopped
    assert orders.ids() == [0, 1]


def test_sessions_share_a_daemon_and_no_worker(spark: SparkSession, spark_remote: str) -> None:
    """So that a run begins at once, and never with modules of an earlier run's code."""

    def processes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"worker": [os.getpid()], "daemon": [os.getppid()]})

    holder = object()
    other = get_session(EngineSettings(remote=spark_remote, app_name="other"), holder)
    try:
        first, second = (
            session.range(0, 1, 1, 1).mapInArrow(processes, "worker long, daemon long").collect()[0]
            for session in (spark, other)
        )
    finally:
        detach(holder)
    assert first["daemon"] == second["daemon"]
    assert first["worker"] != second["worker"]


def test_what_a_plan_reads(spark: SparkSession, tmp_path: Path) -> None:
    plan_cases.check(spark, tmp_path)


def test_what_is_written_in_a_single_pass(spark: SparkSession) -> None:
    source = single_pass_cases.source_of(spark)
    for stage in single_pass_cases.STAGES:
        single_pass_cases.check(source, stage)
    for stage in (*single_pass_cases.ONLY_CLASSIC, *single_pass_cases.OTHERS):
        assert rows_per_record(stage(source.good), source) is None
    single_pass_cases.check_copies(spark)
    single_pass_cases.check_names(spark)


def test_without_a_server_the_error_says_how_to_start_one(orders: Orders) -> None:
    orders.send(order(1))
    began = time.monotonic()
    with pytest.raises(EngineUnavailableError, match="kpipe spark start"):
        orders.run(orders.asset(), manager=on(f"sc://127.0.0.1:{free_port()}", orders))
    assert time.monotonic() - began < 10
    assert orders.committed() is None


# -------------------------------------------------------------------------------------- termination


def test_a_terminated_run_leaves_nothing_at_work_on_the_server(orders: Orders, control: Path, tmp_path: Path) -> None:
    orders.send(*(order(n) for n in range(20)), BAD)
    with (
        foreign_job(orders.manager.spark.spark_session, tmp_path),
        fault(control, "hang_before_offsets", tmp_path) as reached,
        terminated(lambda: wait_until(reached.exists, "the place", 120), signal.SIGTERM) as sent,
        pytest.raises(INTERRUPTED),
    ):
        orders.run(orders.asset())
    assert time.monotonic() - sent[0] < 20
    # Its job is canceled, and the worker that hung is gone with it.
    worker = int(reached.read_text())
    wait_until(lambda: not alive(worker), "the end of its worker", 30)
    assert len(orders.outputs(isolation="read_uncommitted")) == 20
    assert orders.outputs() == []
    assert orders.committed() is None
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (20, 1)
    assert orders.ids() == list(range(20))

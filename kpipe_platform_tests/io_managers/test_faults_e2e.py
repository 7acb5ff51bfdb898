"""Rules, row functions, policies by part and retries, through real materializations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kpipe_platform import (
    ExecutionMode,
    FaultAction,
    FaultPolicies,
    FaultPolicy,
    JsonCodec,
    KafkaConnection,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    OffsetCommittingIOManager,
    PartitionScaling,
    RawCodec,
    RecordRetryPolicy,
    Rule,
    expect,
    expect_all,
    kafka_topic_asset,
    map_records,
    rule_checks,
)
from kpipe_platform.dead_letters import Envelope, decode_envelope
from kpipe_platform.errors import BrokerUnavailableError, DeadLetterError, RecordFaultError, StageFailedError
from kpipe_platform.slices.write import deliveries
from kpipe_platform.spark.sink.job import write_slice
from kpipe_platform.spark.sink.spec import Outcome, WriterSpec
from kpipe_platform.spark.stage.notes import current_notes
from kpipe_platform.spark.stage.rules import RuleAction

from .conftest import BAD, ORDER, Orders, order
from .test_assets_e2e import FolderIOManager

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def envelopes(orders: Orders) -> list[Envelope]:
    return [decode_envelope(letter.value or b"") for letter in orders.letters()]


def ruled(orders: DataFrame) -> DataFrame:
    return expect_all(
        orders,
        [
            Rule("positive", "amount > 0", "dead_letter"),
            Rule("small", "amount < 100", "skip"),
            Rule("noted", "note is not null", "warn"),
        ],
    )


SENT = [
    order(1),
    order(2, value={"amount": -1.0}, headers=[("h", b"\xff\xfe")]),
    order(3, value={"amount": 1000.0}),
    order(4, value={"note": None}),
]


def test_bytes_that_are_no_text_stay_what_they_are(orders: Orders) -> None:
    """In key, header and value, of records that fail in each part."""
    orders.topic_asset = kafka_topic_asset(
        orders.source, value_codec=JsonCodec(ORDER), key_codec=RawCodec(), partitions=1, name="orders"
    )
    odd = {"key": b"\xff\x00", "headers": [("h", b"\xfe\xff"), ("h", None), ("\u00e4", b"")]}
    sent = [
        {**odd, "value": b'{"id": 1, "note": "\xff"}'},
        {**odd, "value": order(2, value={"amount": -1.0})["value"]},
        {**odd, "value": order(3, value={"note": "poison"})["value"]},
        {**odd, "value": order(4)["value"]},
    ]
    orders.send(*sent)
    found = orders.metadata(orders.run(orders.asset(lambda orders: poisoned(ruled(orders)))))
    assert (found["records_written"], found["dead_letters"]) == (1, 3)
    letters = {e.original.offset: e for e in envelopes(orders)}
    assert {o: e.fault.component.value for o, e in letters.items()} == {0: "decode_value", 1: "stage", 2: "stage"}
    for offset, envelope in letters.items():
        original = envelope.original
        assert (original.key, original.value) == (sent[offset or 0]["key"], sent[offset or 0]["value"])
        assert list(original.headers) == odd["headers"]
    for letter in orders.letters():
        assert letter.key == odd["key"]
        assert list(letter.headers)[:3] == odd["headers"]
    (output,) = orders.outputs()
    assert (output.key, list(output.headers)[:3]) == (odd["key"], odd["headers"])


class TestRules:
    def test_counts_dead_letters_and_checks(self, orders: Orders) -> None:
        orders.send(*SENT)
        asset = orders.asset(ruled)
        checks = rule_checks(asset, ["positive", "small", "noted", "never looked at"])
        result = orders.run(asset, others=checks)
        found = orders.metadata(result)
        assert (found["records_read"], found["records_written"]) == (4, 2)
        assert (found["dead_letters"], found["records_skipped"]) == (1, 1)
        assert orders.ids() == [1, 4]
        assert {r.data["rule"]: (r.data["action"], r.data["failed"]) for r in found["rules"].records} == {
            "positive": ("dead_letter", 1),
            "small": ("skip", 1),
            "noted": ("warn", 1),
        }
        (letter,) = envelopes(orders)
        assert (letter.rules, letter.fault.kind) == (("positive",), "rule")
        assert letter.original.value == SENT[1]["value"]
        assert letter.original.headers == (("h", b"\xff\xfe"),)
        evaluations = {e.check_name: e for e in result.get_asset_check_evaluations()}
        assert {name: e.passed for name, e in evaluations.items()} == {
            "positive": False,
            "small": False,
            "noted": False,
            "never_looked_at": False,
        }
        assert evaluations["noted"].severity is dg.AssetCheckSeverity.WARN
        assert evaluations["positive"].severity is dg.AssetCheckSeverity.ERROR
        assert evaluations["positive"].metadata["kpipe/records_failed"].value == 1
        # A second slice is counted by itself.
        orders.send(order(6))
        result = orders.run(asset, others=checks[:-1])
        assert all(e.passed for e in result.get_asset_check_evaluations())

    def test_a_check_reads_its_own_partition(self, make_orders: Callable[..., Orders]) -> None:
        orders = make_orders(partitions=2)
        asset = orders.asset(ruled)
        checks = rule_checks(asset, "positive")
        orders.send(order(1, value={"amount": -1.0}, partition=0), order(2, partition=1))
        failed = orders.run(asset, "0", others=checks)
        passed = orders.run(asset, "1", others=checks)
        assert [e.passed for e in failed.get_asset_check_evaluations()] == [False]
        assert [e.passed for e in passed.get_asset_check_evaluations()] == [True]

    def test_a_stage_that_selects_after_the_rule_loses_no_dead_letter(self, orders: Orders) -> None:
        orders.send(*SENT[:2])
        found = orders.metadata(orders.run(orders.asset(lambda orders: ruled(orders).select("id"))))
        assert (found["records_written"], found["dead_letters"]) == (1, 1)

    @pytest.mark.parametrize(
        ("way", "form", "action"),
        [
            ("exactly_once", "spark", "dead_letter"),
            ("exactly_once", "spark", "skip"),
            ("exactly_once", "row function", "dead_letter"),
            ("exactly_once", "pandas", "dead_letter"),
            ("at_least_once", "spark", "dead_letter"),
            ("at_least_once", "row function", "skip"),
            ("at_least_once", "pandas", "dead_letter"),
            ("lanes", "spark", "dead_letter"),
            ("another store", "spark", "skip"),
            ("another store", "row function", "dead_letter"),
        ],
    )
    def test_a_record_of_which_one_row_fails_leaves_no_row(
        self, orders: Orders, tmp_path: Path, way: str, form: str, action: RuleAction
    ) -> None:
        def lines(orders: DataFrame) -> Any:
            if form == "row function":
                rows = map_records(orders, each_line, schema="id BIGINT, line DOUBLE")
            else:
                rows = orders.select("id", F.explode(F.array(F.lit(1.0), "amount", F.lit(2.0))).alias("line"), "_kafka")
            good = expect(rows, "line > 0", name="positive", action=action)
            return good.toPandas() if form == "pandas" else good

        # The writer's lanes have a thousand offsets at least.
        last = 2_000 if way == "lanes" else 4
        failing = [2, last - 1]
        orders.send(*(order(n, value={"amount": -1.0 if n in failing else 3.0}) for n in range(1, last + 1)))
        good = [n for n in range(1, last + 1) if n not in failing for _ in range(3)]
        if way == "another store":
            inner = FolderIOManager(folder=str(tmp_path))
            resources = {"committing": OffsetCommittingIOManager(inner=inner)}
            asset = orders.asset(lines, topic=None, io_manager_key="committing")
            found = orders.metadata(orders.run(asset, resources=resources))
            assert sorted(row["id"] for row in inner.rows()) == good
        else:
            manager = orders.manager
            if way == "at_least_once":
                manager = manager.model_copy(
                    update={"destination": KafkaDestination(connection=manager.source.connection, delivery=way)}
                )
            scaling = PartitionScaling(
                execution_mode=ExecutionMode.RELAX_ORDERING_WITHIN_PARTITION, max_in_flight_per_partition=2
            )
            how = {"scaling": scaling} if way == "lanes" else {}
            found = orders.metadata(orders.run(orders.asset(lines, **how), manager=manager))
            # Lanes have no order.
            ids = orders.ids()
            assert (sorted(ids) if way == "lanes" else ids) == good
            assert found["records_written"] == len(good)
        counted = (found["records_read"], found["dead_letters"], found["records_skipped"])
        assert counted == ((last, 2, 0) if action == "dead_letter" else (last, 0, 2))
        assert orders.lag() == 0
        if action == "dead_letter":
            assert sorted(e.original.offset or 0 for e in envelopes(orders)) == [n - 1 for n in failing]

    def test_stop(self, orders: Orders) -> None:
        orders.send(*SENT[:2])
        stage = lambda orders: expect(orders, "amount > 0", name="positive", action="stop")  # noqa: E731
        with pytest.raises(RecordFaultError, match=r"offset 1: failed: positive \(amount > 0\)"):
            orders.run(orders.asset(stage))
        assert orders.committed() is None
        assert orders.outputs(isolation="read_uncommitted") == []

    def test_a_dead_letter_of_a_rule_needs_a_dead_letter_topic(self, orders: Orders) -> None:
        orders.send(*SENT[:2])
        manager = KafkaIOManager(
            source=orders.manager.source, destination=orders.manager.destination, spark=orders.manager.spark
        )
        with pytest.raises(DeadLetterError, match="no dead-letter"):
            orders.run(orders.asset(ruled, on_fault=FaultAction.STOP), manager=manager)
        assert orders.committed() is None

    def test_in_a_plain_asset(self, orders: Orders) -> None:
        orders.send(*SENT)

        @dg.asset(
            name="enriched",
            ins={"orders": dg.AssetIn(key=orders.topic_asset.key)},
            partitions_def=orders.topic_asset.partitions_def,
            io_manager_key="kafka_io_manager",
            metadata={**KafkaTopic(orders.target).as_metadata(), "kpipe/on_fault": "dead_letter"},
        )
        def enriched(orders: DataFrame) -> DataFrame:
            return ruled(orders)

        found = orders.metadata(orders.run(enriched))
        assert (found["records_written"], found["dead_letters"], found["records_skipped"]) == (2, 1, 1)
        assert "rules" in found
        # Nothing of the run is noted after it.
        orders.send(order(9))
        assert orders.metadata(orders.run(enriched))["dead_letters"] == 0

    def test_a_plain_asset_that_fails_leaves_no_notes(self, orders: Orders) -> None:
        @dg.asset(
            name="enriched",
            ins={"orders": dg.AssetIn(key=orders.topic_asset.key)},
            partitions_def=orders.topic_asset.partitions_def,
            io_manager_key="kafka_io_manager",
            metadata=KafkaTopic(orders.target).as_metadata(),
        )
        def enriched(orders: DataFrame) -> DataFrame:
            assert current_notes() is not None
            raise ValueError("the asset's own")

        orders.send(order(1))
        with pytest.raises(ValueError, match="own"):
            orders.run(enriched)
        assert current_notes() is None

    def test_a_scattered_tenth_of_many_records(self, orders: Orders) -> None:
        orders.send(*(order(n, value={"amount": -1.0 if n % 10 == 0 else 1.0}) for n in range(3000)))
        found = orders.metadata(orders.run(orders.asset(ruled)))
        assert (found["records_written"], found["dead_letters"]) == (2700, 300)
        assert [e.original.offset for e in envelopes(orders)] == list(range(0, 3000, 10))


def risky(record: dict[str, Any]) -> dict[str, Any]:
    if record["note"] == "poison":
        raise ValueError(f"no price for {record['id']}")
    return {"id": record["id"], "price": 2.0 * record["amount"]}


def each_line(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": record["id"], "line": line} for line in (1.0, record["amount"], 2.0)]


class TestRowFunctions:
    def test_only_the_failing_row_is_dead_lettered_with_its_attempts(self, orders: Orders) -> None:
        retry = RecordRetryPolicy(max_attempts=3, delay_s=0.01)

        def stage(orders: DataFrame) -> DataFrame:
            return map_records(orders, risky, schema="id BIGINT, price DOUBLE", retry=retry)

        orders.send(*(order(n, value={"note": "poison"} if n == 3 else {}) for n in range(6)), BAD)
        found = orders.metadata(orders.run(orders.asset(stage)))
        assert (found["records_read"], found["records_written"], found["dead_letters"]) == (7, 5, 2)
        assert "isolation" not in found
        assert orders.ids() == [0, 1, 2, 4, 5]
        letter = next(e for e in envelopes(orders) if e.fault.component.value == "stage")
        assert (letter.original.offset, letter.fault.message) == (3, "no price for 3")
        assert [r.attempt for r in letter.retries] == [1, 2, 3]

    def test_rethrow_fails_the_run_with_what_was_raised(self, orders: Orders) -> None:
        def stage(orders: DataFrame) -> DataFrame:
            return map_records(orders, risky, schema="id BIGINT, price DOUBLE", on_fault=FaultAction.RETHROW)

        orders.send(order(1, value={"note": "poison"}))
        with pytest.raises(StageFailedError, match="no price for 1"):
            orders.run(orders.asset(stage))
        assert orders.committed() is None


class TestPolicies:
    def test_each_part_has_its_own_action(self, orders: Orders) -> None:
        """A record that does not decode is skipped, one that the stage fails on is dead-lettered."""
        policies = FaultPolicies(FaultAction.DEAD_LETTER, source=FaultPolicy(FaultAction.SKIP))
        orders.send(order(1), BAD, order(2, value={"note": "poison"}))
        found = orders.metadata(orders.run(orders.asset(poisoned, on_fault=policies)))
        assert (found["records_written"], found["records_skipped"], found["dead_letters"]) == (1, 1, 1)
        assert [e.original.offset for e in envelopes(orders)] == [2]

    def test_the_asset_is_nearer_than_the_io_manager(self, orders: Orders) -> None:
        manager = KafkaIOManager(
            source=orders.manager.source,
            destination=orders.manager.destination,
            dead_letter=orders.manager.dead_letter,
            spark=orders.manager.spark,
            on_fault="dead_letter",
            fault_policies={"source": {"action": "skip"}},
        )
        orders.send(order(1), BAD)
        found = orders.metadata(orders.run(orders.asset(on_fault=None), manager=manager))
        assert (found["records_skipped"], found["dead_letters"]) == (1, 0)
        orders.send(BAD)
        found = orders.metadata(orders.run(orders.asset(on_fault=FaultAction.DEAD_LETTER), manager=manager))
        assert (found["records_skipped"], found["dead_letters"]) == (0, 1)

    def test_a_record_that_stands_alone_is_tried_again_first(self, orders: Orders, tmp_path: Any) -> None:
        log = str(tmp_path / "alone")

        @F.udf("string")
        def flaky(note):  # type: ignore[no-untyped-def]  # Spark reads hints as an Arrow UDF's
            from pathlib import Path

            if note == "poison":
                with Path(log).open("a") as file:
                    file.write("x")
                # Tasks are tried four times each, the whole slice before the record alone.
                if Path(log).stat().st_size <= 12:
                    raise ValueError("busy")
            return note

        policies = FaultPolicies(
            FaultAction.DEAD_LETTER, stage=FaultPolicy(retry=RecordRetryPolicy(max_attempts=3, delay_s=0))
        )
        orders.send(order(1), order(2, value={"note": "poison"}))
        stage = lambda orders: orders.withColumn("note", flaky("note"))  # noqa: E731
        found = orders.metadata(orders.run(orders.asset(stage, on_fault=policies)))
        assert (found["records_written"], found["dead_letters"]) == (2, 0)

    def test_its_attempts_are_the_retry_history(self, orders: Orders) -> None:
        retry = RecordRetryPolicy(max_attempts=2, delay_s=0, retry_on=("SparkRuntimeException",))
        policies = FaultPolicies(FaultAction.DEAD_LETTER, stage=FaultPolicy(retry=retry))
        orders.send(order(1), order(2, value={"note": "poison"}))
        orders.run(orders.asset(poisoned, on_fault=policies))
        (letter,) = envelopes(orders)
        assert [(r.attempt, r.exception_type) for r in letter.retries] == [
            (1, "SparkRuntimeException"),
            (2, "SparkRuntimeException"),
        ]

    def test_a_source_that_is_away_is_asked_again(self, orders: Orders) -> None:
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:9", request_timeout_s=0.5)
        manager = KafkaIOManager(
            source=KafkaSource(connection=connection),
            destination=KafkaDestination(connection=connection),
            spark=orders.manager.spark,
        )
        policies = FaultPolicies(source=FaultPolicy(retry=RecordRetryPolicy(max_attempts=3, delay_s=0)))
        began = time.monotonic()
        with pytest.raises(BrokerUnavailableError):
            orders.run(orders.asset(on_fault=policies), manager=manager)
        assert time.monotonic() - began < 30


def poisoned(orders: DataFrame) -> DataFrame:
    return orders.withColumn("note", F.expr("if(note = 'poison', raise_error('poison'), note)"))


def test_a_dead_letter_that_cannot_be_made_may_be_skipped_by_its_own_policy(make_orders: Callable[..., Orders]) -> None:
    """A dead-letter topic that is too small for any form of it."""
    orders = make_orders()
    from kpipe_platform.testing.topics import create_topic

    create_topic(
        orders.manager.source.connection.bootstrap_servers,
        f"{orders.source}.dlq",
        config={"max.message.bytes": "300"},
    )
    orders.send(order(1), BAD)
    with pytest.raises(DeadLetterError, match="takes 300"):
        orders.run(orders.asset())
    assert orders.committed() is None
    policies = FaultPolicies(FaultAction.DEAD_LETTER, dead_letter=FaultPolicy(FaultAction.SKIP))
    found = orders.metadata(orders.run(orders.asset(on_fault=policies)))
    assert (found["records_written"], found["dead_letters"], found["records_skipped"]) == (1, 0, 1)


@pytest.mark.parametrize(("action", "passes"), [("stop", ["count"]), ("dead_letter", ["parallel"])])
def test_another_store_has_one_pass_over_a_slice_without_dead_letters(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, passes: list[str]
) -> None:
    modes: list[str] = []

    def noted(rows: Any, frames: Any, spec: WriterSpec, notes: Any) -> Outcome:
        modes.append(spec.mode)
        return write_slice(rows, frames, spec, notes)

    monkeypatch.setattr(deliveries, "write_slice", noted)
    orders.send(order(1), order(2))
    resources = {"committing": OffsetCommittingIOManager(inner=FolderIOManager(folder=str(tmp_path)))}
    asset = orders.asset(topic=None, io_manager_key="committing", on_fault=action)
    found = orders.metadata(orders.run(asset, resources=resources))
    assert (found["records_read"], orders.lag()) == (2, 0)
    assert modes == passes

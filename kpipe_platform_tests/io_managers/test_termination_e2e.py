"""A run that is terminated in the middle of a write, or while it waits: over within seconds, and nothing is lost.

Here the signal comes to the process of the tests; processes of their own are ended in ``test_killed_e2e``.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kpipe_platform import FaultAction, FaultPolicies, FaultPolicy, KafkaSource, RecordRetryPolicy
from kpipe_platform_tests.processes import wait_until

from .conftest import BAD, Orders, order
from .killing import INTERRUPTED, alive, foreign_job, terminated, writers_at
from .test_lanes_e2e import RELAXED
from .test_lost_answers_e2e import plain_asset

pytestmark = [pytest.mark.broker, pytest.mark.spark]

LOGGER = "kpipe_platform.observability.events"


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_in_the_middle_of_a_write(
    orders: Orders, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, signal_: signal.Signals
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    orders.send(*(order(n) for n in range(20)), BAD)
    # The session may be one that other code of the process uses too: its jobs are not the run's.
    with foreign_job(spark, tmp_path):
        with (
            writers_at("hang_before_offsets", spark, tmp_path) as reached,
            terminated(lambda: wait_until(reached.exists, "the place", 120), signal_) as sent,
            pytest.raises(INTERRUPTED),
        ):
            orders.run(orders.asset())
        took_s = time.monotonic() - sent[0]
    assert took_s < 20
    # Its Spark job is canceled, and the worker that hung is gone with it.
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "the end of its jobs", 30)
    worker = int(reached.read_text())
    wait_until(lambda: not alive(worker), "the end of its worker", 30)
    failed = [e for e in logged(caplog) if e["event"] == "failed"]
    assert [(e["partition"], e["start"], e["end"], e["reason"]) for e in failed] == [
        (0, 0, 21, "the run was terminated")
    ]
    # Aborted by the run itself: nobody waits for the transaction's timeout.
    assert len(orders.outputs(isolation="read_uncommitted")) == 20
    assert orders.outputs() == []
    assert orders.committed() is None
    found = orders.metadata(orders.run(orders.asset()))
    assert (found["records_written"], found["dead_letters"]) == (20, 1)
    assert orders.ids() == list(range(20))


def test_in_the_middle_of_the_lanes_of_a_slice(orders: Orders, spark: SparkSession, tmp_path: Path) -> None:
    """The transactions of all lanes are aborted, so that readers do not wait for their timeout."""
    orders.send(*(order(n) for n in range(4000)))
    written = KafkaSource(connection=orders.manager.source.connection, isolation="read_uncommitted")

    def both_lanes_have_written() -> bool:
        return written.watermarks(orders.target)[0].end > 2000

    with (
        writers_at("hang_before_offsets", spark, tmp_path),
        terminated(lambda: wait_until(both_lanes_have_written, "outputs of both lanes", 120), signal.SIGTERM),
        pytest.raises(INTERRUPTED),
    ):
        orders.run(orders.asset(scaling=RELAXED))
    # Waits until no transaction is open, for less than the timeout of one.
    assert orders.outputs() == []
    assert orders.committed() is None
    assert orders.metadata(orders.run(orders.asset(scaling=RELAXED)))["records_written"] == 4000


def test_in_the_middle_of_a_search(orders: Orders, spark: SparkSession, tmp_path: Path) -> None:
    """The search for the records that the stage fails on starts its Spark jobs in threads of its own."""
    failed, hangs = tmp_path / "failed", tmp_path / "hangs"

    def stage(orders: DataFrame) -> DataFrame:
        @F.udf("string")
        def checked(note):  # type: ignore[no-untyped-def]  # Spark reads hints as an Arrow UDF's
            if failed.exists():
                hangs.touch()
                time.sleep(120)
            if note == "poison":
                failed.touch()
                raise ValueError(note)
            return note

        return orders.withColumn("note", checked("note"))

    orders.send(*(order(n, value={"note": "poison"} if n == 3 else {}) for n in range(8)))
    with (
        terminated(lambda: wait_until(hangs.exists, "the search", 120), signal.SIGTERM) as sent,
        pytest.raises(INTERRUPTED),
    ):
        orders.run(orders.asset(stage))
    assert time.monotonic() - sent[0] < 20
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "the end of its jobs", 30)
    assert orders.committed() is None


def test_while_it_waits_to_try_again(orders: Orders, caplog: pytest.LogCaptureFixture) -> None:
    def stage(orders: DataFrame) -> DataFrame:
        raise ConnectionError("a service is away")

    again = FaultPolicies(FaultAction.DEAD_LETTER, stage=FaultPolicy(retry=RecordRetryPolicy(delay_s=60)))
    orders.send(order(0))
    with (
        terminated(lambda: wait_until(lambda: "retrying in" in caplog.text, "a failure", 120), signal.SIGTERM) as at,
        pytest.raises(INTERRUPTED),
    ):
        orders.run(orders.asset(stage, on_fault=again))
    # Well within the 8 s that are left to work which does not end by itself.
    assert time.monotonic() - at[0] < 6
    assert orders.committed() is None


@pytest.mark.parametrize("how", ["whole", "lanes", "plain"])
def test_behind_a_commit_whose_answer_did_not_come(
    orders: Orders, spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """What is committed is reported, also by a run that is terminated."""
    orders.send(*(order(n) for n in range(4000)))
    asset = plain_asset(orders) if how == "plain" else orders.asset(scaling=RELAXED if how == "lanes" else None)
    with (
        writers_at("hang_after_commit", spark, tmp_path) as reached,
        terminated(lambda: wait_until(reached.exists, "the place", 120), signal.SIGTERM) as sent,
        pytest.raises(INTERRUPTED),
    ):
        orders.run(asset)
    assert time.monotonic() - sent[0] < 20
    held = orders.instance.fetch_materializations(dg.AssetKey("enriched"), limit=10).records
    (metadata,) = [m.metadata for record in held if (m := record.asset_materialization) is not None]
    end = orders.committed()
    # Of the lanes the first has committed; the second may have.
    assert end in ((2000, 4000) if how == "lanes" else (4000,))
    ranges: Any = metadata["kpipe/ranges"].value
    assert [(r["start"], r["end"]) for r in ranges] == [(0, end)]
    assert metadata["kpipe/records_read"].value == metadata["kpipe/records_written"].value == end
    assert orders.metadata(orders.run(asset))["records_read"] == 4000 - end
    assert sorted(orders.ids()) == list(range(4000))


def test_a_run_that_waits_ends_at_once_and_dagster_knows_what_it_did(
    orders: Orders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        own = replace(orders, instance=instance)

        def two_slices() -> None:
            for number in range(2):
                orders.send(order(number))
                wait_until(lambda end=number + 1: orders.committed() == end, "the slice", 120)  # type: ignore[misc]
            (run,) = instance.get_runs()
            # What a run launcher does, for the UI's button.
            instance.report_run_canceling(run)

        with terminated(two_slices, signal.SIGTERM) as sent, pytest.raises(INTERRUPTED):
            own.run(own.asset(max_slices=None, linger_s=600))
        took_s = time.monotonic() - sent[0]
        assert took_s < 10
        assert instance.get_runs()[0].status is dg.DagsterRunStatus.CANCELED
        held = instance.fetch_materializations(dg.AssetKey("enriched"), limit=10).records
        (metadata,) = [m.metadata for record in held if (m := record.asset_materialization) is not None]
        assert metadata["kpipe/records_read"].value == 2
        ranges: Any = metadata["kpipe/ranges"].value
        assert [(r["start"], r["end"]) for r in ranges] == [(0, 2)]
    # It has committed all that it took, so it did not fail there.
    events = [(e["event"], e["start"], e["end"]) for e in logged(caplog)]
    assert events == [("started", 0, 1), ("completed", 0, 2)]
    assert orders.committed() == 2
    orders.send(order(2))
    assert orders.metadata(orders.run(orders.asset()))["records_read"] == 1
    assert orders.ids() == [0, 1, 2]

"""The platform's assets in this process: the reference tables, then all slices, and what became of each flight."""

from __future__ import annotations

import io
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from examples.flights.progress import Steps
from examples.flights.reading import await_settled
from examples.flights.reference import DAGSTER_HOME, materialize_reference
from examples.flights.seed import seed
from examples.flights.verify import count_outcomes, figures_of
from examples.flights.work import Work, dagster_instance
from kpipe_platform.demo import data
from kpipe_platform.demo.assets import airlines, carrier_delays, flights_enriched, planes
from kpipe_platform.demo.platform import BOOTSTRAP_SERVERS, DATA_DIR, resources
from kpipe_platform.demo.topics import DEAD_LETTERS, ENRICHED, FLIGHTS, PARTITIONS
from kpipe_platform.kafka.client.settings import ConnectionSettings

COUNT = 300


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_every_flight_is_materialized_once(connection: ConnectionSettings, spark: SparkSession, tmp_path: Path) -> None:
    flights = data.flights(COUNT)
    departed_not = int(flights["dep_time"].isna().sum())
    assert departed_not > 0
    seed(connection, flights)
    environment = {
        BOOTSTRAP_SERVERS: connection.bootstrap_servers,
        DATA_DIR: str(tmp_path / "tables"),
        DAGSTER_HOME: str(tmp_path / "home"),
    }
    shown = io.StringIO()
    steps = Steps(Console(file=shown))
    assert materialize_reference(steps, tmp_path, environment)
    assert not materialize_reference(steps, tmp_path, environment), "once is enough"
    assert spark.range(1).count() == 1, "the session that was there before stays"

    platform = resources(environment)
    with dagster_instance(tmp_path / "home") as instance:
        assert not instance.telemetry_enabled
        for asset in (planes, airlines):
            assert len(instance.fetch_materializations(asset.key, limit=5).records) == 1
        work = Work(platform, instance)
        with steps.step("enrich", total=COUNT) as step:
            work.enrich(step)
        await_settled(connection, [ENRICHED, DEAD_LETTERS])
        with steps.step("summarize", total=COUNT) as step:
            work.summarize_delays(step)
    assert [done.records for done in steps.done[-2:]] == [COUNT, COUNT - departed_not]
    assert work.materializations == PARTITIONS + 1
    # Each partition's planned offsets are shown before its records are committed.
    lines = [line.strip() for line in shown.getvalue().splitlines() if "partition 0" in line]
    assert [line.split(": ")[0] for line in lines] == [f"{FLIGHTS} partition 0"] * 2 + [f"{ENRICHED} partition 0"] * 2
    assert [line.split()[-1] for line in lines] == ["planned", "committed"] * 2

    group = platform["kafka_io_manager"].source.group
    figures = figures_of(
        count_outcomes(connection),
        connection,
        groups={group(flights_enriched.key): FLIGHTS, group(carrier_delays.key): ENRICHED},
        table=platform["tables"].path(carrier_delays.key),
    )
    assert figures.problems(records=COUNT, dead_letters=departed_not) == []
    for asset, rows in ((planes, 3_322), (airlines, 16)):
        assert spark.read.parquet(str(tmp_path / "tables" / asset.key.path[-1])).count() == rows


def test_an_instance_keeps_what_it_was_told(tmp_path: Path) -> None:
    with dagster_instance(tmp_path / "home") as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("planes"))
    with dagster_instance(tmp_path / "home") as instance:
        assert instance.get_latest_materialization_event(dg.AssetKey("planes")) is not None

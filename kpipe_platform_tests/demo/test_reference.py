from __future__ import annotations

import io
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from kpipe_platform.demo.assets import airlines, planes
from kpipe_platform.demo.platform import DATA_DIR
from kpipe_platform.demo.progress import Steps
from kpipe_platform.demo.reference import DAGSTER_HOME, materialise_reference
from kpipe_platform.demo.work import dagster_instance


@pytest.mark.spark
def test_reference_tables_are_materialised_once(spark: SparkSession, tmp_path: Path) -> None:
    environment = {DAGSTER_HOME: str(tmp_path / "home"), DATA_DIR: str(tmp_path / "tables")}
    steps = Steps(Console(file=io.StringIO()))
    assert materialise_reference(steps, tmp_path, environment)
    assert not materialise_reference(steps, tmp_path, environment)
    with dagster_instance(tmp_path / "home") as instance:
        assert not instance.telemetry_enabled
        for asset in (planes, airlines):
            assert len(instance.fetch_materializations(asset.key, limit=5).records) == 1
    assert spark.read.parquet(str(tmp_path / "tables" / "planes")).count() == 3_322
    assert spark.read.parquet(str(tmp_path / "tables" / "airlines")).count() == 16
    assert spark.range(1).count() == 1, "the session that was there before stays"


def test_an_instance_keeps_what_it_was_told(tmp_path: Path) -> None:
    with dagster_instance(tmp_path / "home") as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("planes"))
    with dagster_instance(tmp_path / "home") as instance:
        assert instance.get_latest_materialization_event(dg.AssetKey("planes")) is not None

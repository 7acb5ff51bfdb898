"""Materialize the reference tables in the Dagster instance, so that any partition can be launched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from examples.flights.engine import spark_config, spark_running
from examples.flights.progress import Steps
from examples.flights.work import Work, dagster_instance
from kpipe_platform.demo.assets import airlines, planes
from kpipe_platform.demo.platform import SPARK_REMOTE, resources

DAGSTER_HOME = "DAGSTER_HOME"


def materialize_reference(steps: Steps, folder: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Materialize planes and airlines if their tables are missing.

    Args:
        steps: Shows the progress.
        folder: Folder for Spark's files.
        environment: Environment variables: DAGSTER_HOME and the platform's settings.

    Returns:
        Whether a table was missing.

    Raises:
        KpipeError: A materialization failed.
    """
    remote = environment.get(SPARK_REMOTE)
    platform = resources(environment, spark_config=None if remote else spark_config(folder / "spark"))
    if all(platform["tables"].exists(asset.key) for asset in (planes, airlines)):
        return False
    with (
        dagster_instance(Path(environment[DAGSTER_HOME])) as instance,
        spark_running(platform["spark"]) as await_spark,
    ):
        with steps.step("Starting Spark"):
            await_spark()
        with steps.step("Materializing planes and airlines"):
            Work(platform, instance).materialize(planes, airlines)
    return True

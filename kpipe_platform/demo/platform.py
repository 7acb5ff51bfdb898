"""The resources of the flights demo, configured by environment variables or by given values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dagster as dg

from kpipe_platform import (
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    SparkEngine,
)
from kpipe_platform.demo.charts import ChartedIOManager
from kpipe_platform.demo.tables import ParquetTableIOManager

BOOTSTRAP_SERVERS = "KAFKA_BOOTSTRAP_SERVERS"
SPARK_REMOTE = "KPIPE_SPARK_REMOTE"
SPARK_MASTER = "KPIPE_SPARK_MASTER"
DATA_DIR = "KPIPE_DATA_DIR"

DEFAULTS = {BOOTSTRAP_SERVERS: "127.0.0.1:9092", SPARK_MASTER: "local[*]", DATA_DIR: ".kpipe/tables"}
"""Defaults of variables that are not set. ``KPIPE_SPARK_REMOTE`` has no default and overrides the master."""


def resources(
    settings: Mapping[str, str] | None = None, *, spark_config: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the demo's resources by resource key. They do not connect to anything yet.

    Args:
        settings: Values by the variable names above. None means the environment variables, which Dagster reads when a
            run starts and shows by name.
        spark_config: Additional Spark settings.
    """
    remote = _setting(SPARK_REMOTE, settings)
    spark = SparkEngine(
        remote=remote,
        master=None if remote else _setting(SPARK_MASTER, settings),
        app_name="flights",
        spark_config=dict(spark_config or {}),
    )
    connection = KafkaConnection(bootstrap_servers=_setting(BOOTSTRAP_SERVERS, settings), client_id="flights")
    tables = ParquetTableIOManager(base_dir=_setting(DATA_DIR, settings), spark=spark)
    return {
        "spark": spark,
        "tables": tables,
        "charted_tables": ChartedIOManager(inner=tables),
        "kafka_io_manager": KafkaIOManager(
            connection=connection,
            source=KafkaSource(),
            spark=spark,
            destination=KafkaDestination(),
            dead_letter=KafkaDeadLetterDestination(),
        ),
    }


def _setting(name: str, settings: Mapping[str, str] | None) -> Any:
    if settings is not None:
        return settings.get(name) or DEFAULTS.get(name)
    return dg.EnvVar(name) if os.environ.get(name) else DEFAULTS.get(name)

"""A KafkaIOManager on a session that a resource of dagster-pyspark provides."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from dagster_pyspark import LazyPySparkResource, PySparkResource
from pyspark.sql import SparkSession

from kpipe_platform import KafkaIOManager, KafkaSource
from kpipe_platform_tests.io_managers.conftest import BAD, Orders, order

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(autouse=True)
def classic(spark: SparkSession, spark_remote: str | None) -> SparkSession:
    if spark_remote is not None:
        pytest.skip("the resources of dagster-pyspark start a Spark of their own")
    return spark


@pytest.mark.parametrize("provider", [LazyPySparkResource, PySparkResource])
def test_exactly_once_with_dead_letters(orders: Orders, provider: Any) -> None:
    given = orders.manager
    manager = KafkaIOManager(
        connection=given.connection,
        source=KafkaSource(group_prefix=given.source.group_prefix),
        dead_letter=given.dead_letter,
        # There is one session in a process: the suite's, which has the connector.
        spark=provider(spark_config={"spark.sql.shuffle.partitions": "4"}),
    )
    orders.send(order(1), BAD, order(2))
    asset = orders.asset()
    first = orders.metadata(orders.run(asset, manager=manager))
    orders.send(order(3))
    second = orders.metadata(orders.run(asset, manager=manager))
    assert (first["records_written"], first["dead_letters"]) == (2, 1)
    assert second["records_written"] == 1
    assert orders.ids() == [1, 2, 3]
    assert len(orders.letters()) == 1
    assert orders.lag() == 0


def test_tasks_at_once_come_from_the_session(orders: Orders, spark: SparkSession) -> None:
    made = KafkaIOManager(connection=orders.manager.connection, spark=LazyPySparkResource(spark_config={}))
    assert made.engine.known_tasks_at_once == spark.sparkContext.defaultParallelism
    assert made.engine.remote is None


@pytest.mark.parametrize("provider", ["LazyPySparkResource", pytest.param("PySparkResource", marks=pytest.mark.slow)])
def test_a_session_without_the_connector_is_refused_with_the_fix(
    orders: Orders, spark: SparkSession, provider: str
) -> None:
    orders.send(order(1))
    servers = orders.manager.source.connection_settings.bootstrap_servers
    module = "kpipe_platform_tests.io_managers.no_connector"
    command = [sys.executable, "-m", module, servers, orders.source, orders.target, provider]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True).stdout
    assert "ConfigError: the Spark session has no Kafka connector" in found
    value = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
    assert f'spark_config={{"spark.jars.packages": "{value}"}}' in found
    assert orders.outputs(settled=False) == []

"""One Spark cluster with its Connect server for all tests here; three brokers of its own for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from kpipe_platform.jvm.ports import LOOPBACK
from kpipe_platform.spark.connect.executor_archive import write_archive
from kpipe_platform.spark.connect.executors import Executors
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.testing.broker.embedded import EmbeddedBroker

from .flights import Flights, flights_on
from .standalone import StandaloneCluster

ENGINE = {
    # The executors are on this machine, whatever its name leads to.
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.memory": "1g",
    "spark.executor.memory": "768m",
}
_REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def idle_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster whose core nobody has: the engine of the other tests keeps those of the other cluster."""
    with StandaloneCluster(tmp_path_factory.mktemp("idle-cluster"), workers=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages for the executors."""
    path = tmp_path_factory.mktemp("archive") / "kpipe-executors.tar.gz"
    write_archive(path)
    return path


@pytest.fixture(scope="session")
def engine(
    spark_cluster: StandaloneCluster, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectServer]:
    """A Connect server in front of the cluster."""
    folder = tmp_path_factory.mktemp("engine")
    with ConnectServer(folder, master=spark_cluster.master, executors=Executors(archive), settings=ENGINE) as server:
        yield server


@pytest.fixture
def brokers() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=3, settings=_REPLICATED) as cluster:
        yield cluster


@pytest.fixture
def flights(
    brokers: EmbeddedBroker, engine: ConnectServer, spark_cluster: StandaloneCluster, tmp_path: Path
) -> Callable[[int], AbstractContextManager[Flights]]:
    """The flights platform over the first so many flights."""
    spark_cluster.start_workers()

    def logs() -> str:
        return f"{spark_cluster.logs()}\n--- engine\n{engine.log_tail(100)}"

    return partial(flights_on, brokers, engine.remote, tmp_path, during=logs)

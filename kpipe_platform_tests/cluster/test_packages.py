"""Executors whose Python has no package: what they are told without an archive, and what one gives them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kpipe_platform.errors import EngineUnavailableError, EnvironmentSetupError
from kpipe_platform.spark.connect.executors import Executors
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.spark.engine.attach import detach
from kpipe_platform.spark.engine.session import get_session
from kpipe_platform.spark.engine.settings import EngineSettings

from .conftest import ENGINE
from .standalone import StandaloneCluster

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(600)]


def test_the_workers_python_has_no_package(idle_cluster: StandaloneCluster) -> None:
    for package in ("kpipe_platform", "confluent_kafka", "pyarrow"):
        answer = subprocess.run(
            [idle_cluster.python / "bin/python3", "-c", f"import {package}"],
            cwd=idle_cluster.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"No module named '{package}'" in answer.stderr


def test_without_an_archive_the_server_says_what_is_missing(idle_cluster: StandaloneCluster, tmp_path: Path) -> None:
    server = ConnectServer(tmp_path, master=idle_cluster.master, executors=Executors(python="python3"), settings=ENGINE)
    with pytest.raises(
        EnvironmentSetupError, match="executors of the cluster lack the Python package kpipe_platform"
    ) as caught:
        server.start()
    assert "kpipe spark pack" in str(caught.value)
    assert not server.is_running()


def test_a_python_that_is_not_there_is_named(idle_cluster: StandaloneCluster, tmp_path: Path) -> None:
    server = ConnectServer(
        tmp_path, master=idle_cluster.master, executors=Executors(python="python-nowhere"), settings=ENGINE
    )
    with pytest.raises(EnvironmentSetupError, match="There is no Python python-nowhere on the executors"):
        server.start()


def test_a_cluster_without_room_is_told_from_one_that_is_slow(idle_cluster: StandaloneCluster, tmp_path: Path) -> None:
    too_much = {**ENGINE, "spark.executor.memory": "8g"}
    server = ConnectServer(tmp_path, master=idle_cluster.master, settings=too_much, ready_deadline_s=60)
    with pytest.raises(EngineUnavailableError, match="The cluster ran no task within 40 s") as caught:
        server.start()
    assert "spark.executor.memory" in str(caught.value)


def test_with_the_archive_tasks_import_from_it(engine: ConnectServer, spark_cluster: StandaloneCluster) -> None:
    def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import confluent_kafka

        import kpipe_platform

        for _ in batches:
            files = [str(module.__file__) for module in (kpipe_platform, confluent_kafka, pa)]
            yield pa.RecordBatch.from_pydict({"file": files})

    holder = object()
    session = get_session(EngineSettings(remote=engine.remote), holder)
    try:
        rows = session.range(0, 4, 1, 4).mapInArrow(places, "file string").collect()
    finally:
        detach(holder)
    assert len(rows) == 12
    for row in rows:
        file = Path(row["file"])
        assert "kpipe_packages" in file.parts
        assert file.resolve().is_relative_to(spark_cluster.folder)

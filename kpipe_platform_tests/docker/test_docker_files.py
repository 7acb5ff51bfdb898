"""docker/ agrees with itself and with the project: no engine is needed to see that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from kpipe_platform.cli.dev import dagster_yaml
from kpipe_platform.jvm.jars import class_path, kafka_broker_jars
from kpipe_platform.jvm.java import find_java
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.jvm.process import ManagedProcess
from kpipe_platform_tests.docker.deployment import (
    ALL_CHECKS,
    Deployment,
    find_bad_commands,
    find_bad_health_checks,
    find_bad_variables,
    find_host_disagreements,
    find_missing_copy_sources,
    find_port_disagreements,
    find_root_user,
    find_unkept_data,
    find_unpinned_images,
    find_wrong_runtimes,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shipped() -> Deployment:
    return Deployment.load(ROOT)


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_shipped_files_agree(shipped: Deployment, check: Callable[[Deployment], Iterator[str]]) -> None:
    assert list(check(shipped)) == []


# Each case breaks one thing: the file is changed by the function, and the check must then say the words.
def _dockerfile(old: str, new: str) -> Callable[[Deployment], None]:
    def change(files: Deployment) -> None:
        before = list(files.instructions)
        files.instructions[:] = [(name, text.replace(old, new)) for name, text in before]
        assert files.instructions != before, f"{old!r} is not in the Dockerfile"

    return change


def _set(*path: str | int, to: Any) -> Callable[[Deployment], None]:
    def change(files: Deployment) -> None:
        node: Any = getattr(files, str(path[0]))
        for key in path[1:-1]:
            node = node[key]
        if isinstance(node, dict):
            assert node.get(path[-1]) != to
        node[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[Deployment], None]:
    def change(files: Deployment) -> None:
        node: Any = files.compose
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


CODE = ("compose", "services", "code")

BROKEN = [
    (find_missing_copy_sources, _dockerfile("spark-connect.sh", "spark-server.sh"), "spark-server.sh"),
    (find_missing_copy_sources, _set("ignore", 1, to="!NOTICE"), "keeps from the builder"),
    (find_unpinned_images, _set("compose", "services", "kafka", "image", to="apache/kafka:latest"), "latest"),
    (find_unpinned_images, _set(*CODE, "image", to="kpipe-platform:0.0.9"), "is not of version"),
    (find_unpinned_images, _dockerfile("python:3.11.14-slim-bookworm", "python"), "names no version"),
    (find_unpinned_images, _set("compose", "services", "kafka", "image", to="apache/kafka:3.9.0"), "another"),
    (find_wrong_runtimes, _dockerfile("openjdk-17-jre", "openjdk-11-jre"), "installs no Java"),
    (find_wrong_runtimes, _dockerfile("python:3.11.14", "python:3.14.0"), "has no Python"),
    (find_wrong_runtimes, _dockerfile("connect,demo", "conect,demo"), "extra conect"),
    (find_wrong_runtimes, _dockerfile("PIP_CONSTRAINT=", "PIP_QUIET="), "without constraints.txt"),
    (find_root_user, lambda files: files.instructions.append(("USER", "root")), "as root"),
    (find_root_user, lambda files: files.instructions.append(("USER", "nobody")), "never made"),
    (find_root_user, _set("compose", "services", "spark", "privileged", to=True), "spark runs as root"),
    (find_bad_commands, _set(*CODE, "command", 0, to="dagit"), "no program dagit"),
    (find_bad_commands, _set(*CODE, "command", 2, to="rpc"), "no command rpc"),
    (find_bad_commands, _set(*CODE, "command", 3, to="--address"), "No such option"),
    (find_bad_commands, _set(*CODE, "command", -1, to="kpipe_platform.nothing"), "no module"),
    (find_bad_commands, _set("compose", "services", "seed", "command", 2, to="kpipe_demo"), "no module"),
    (find_bad_commands, _set("compose", "services", "spark", "command", 1, to="/spark.sh"), "not in the image"),
    (find_bad_commands, _set("compose", "services", "daemon", "command", -1, to="/w.yaml"), "not in the image"),
    (find_bad_commands, _dockerfile("kpipe doctor", "kpipe checkup"), "no command checkup"),
    (find_bad_health_checks, _drop("services", "webserver", "healthcheck"), "webserver has no health check"),
    (find_bad_health_checks, _drop("services", "code", "healthcheck"), "never checked"),
    (
        find_bad_health_checks,
        _set("compose", "services", "kafka", "healthcheck", "test", 1, to="/opt/kafka/bin/kafka-ping.sh"),
        "kafka-ping.sh is not known",
    ),
    (
        find_bad_health_checks,
        _set("compose", "services", "postgres", "healthcheck", "test", 1, to="pg_ping"),
        "not known",
    ),
    (find_bad_health_checks, _set(*CODE, "healthcheck", "test", 3, to="ping"), "no command ping"),
    (find_bad_health_checks, _set(*CODE, "depends_on", to={"redis": {"condition": "x"}}), "no service"),
    (find_bad_variables, _set(*CODE, "environment", to={"KPIPE_SPARK_URL": "x"}), "KPIPE_SPARK_URL is set"),
    (find_bad_variables, _drop("services", "daemon", "environment", "KPIPE_POSTGRES_DB"), "not set for daemon"),
    (
        find_bad_variables,
        lambda files: files.services["kafka"]["environment"].update(KAFKA_AUTO_MAKE_TOPICS="false"),
        "KAFKA_AUTO_MAKE_TOPICS of kafka is no setting",
    ),
    (find_port_disagreements, _set(*CODE, "command", 6, to="4001"), "ports of the code location differ"),
    (
        find_port_disagreements,
        _set("compose", "services", "webserver", "ports", 0, to="127.0.0.1:3000:3001"),
        "ports of the webserver differ",
    ),
    (
        find_port_disagreements,
        _set("compose", "services", "spark", "environment", "KPIPE_SPARK_CONNECT_PORT", to="15003"),
        "ports of Spark Connect differ",
    ),
    (find_port_disagreements, _dockerfile("3000 4000 15002", "3000 4000"), "is not exposed"),
    (
        find_port_disagreements,
        _set("compose", "services", "kafka", "ports", 0, to="127.0.0.1:${KPIPE_KAFKA_PORT:-29092}:9092"),
        "another port of Kafka is published",
    ),
    (
        find_port_disagreements,
        _set(*CODE, "environment", "KAFKA_BOOTSTRAP_SERVERS", to="kafka:29092"),
        "code looks for Kafka elsewhere",
    ),
    (find_host_disagreements, _set("workspace", "load_from", 0, "grpc_server", "host", to="user"), "names user"),
    (
        find_host_disagreements,
        _set("compose", "services", "postgres", "environment", "POSTGRES_USER", to="postgres"),
        "KPIPE_POSTGRES_USER of code",
    ),
    (find_unkept_data, _set(*CODE, "environment", "KPIPE_DATA_DIR", to="/srv/tables"), "in no volume"),
    (find_unkept_data, _drop("volumes", "kafka-data"), "kafka-data of kafka is not declared"),
    (find_unkept_data, _dockerfile(" /var/lib/kpipe ", " "), "would belong to root"),
]


@pytest.mark.parametrize(("check", "break_it", "words"), BROKEN)
def test_a_disagreement_is_reported(
    shipped: Deployment,
    check: Callable[[Deployment], Iterator[str]],
    break_it: Callable[[Deployment], None],
    words: str,
) -> None:
    files = shipped.copy()
    break_it(files)

    found = list(check(files))

    assert any(words in problem for problem in found), found


def test_every_check_is_shown_to_fail() -> None:
    assert {check for check, _, _ in BROKEN} == set(ALL_CHECKS)


def test_dagster_takes_the_instance_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._core.instance.config import dagster_instance_config

    for variable in ("HOST", "DB", "USER", "PASSWORD"):
        monkeypatch.setenv(f"KPIPE_POSTGRES_{variable}", "x")
    (tmp_path / "dagster.yaml").write_text((ROOT / "docker/dagster.yaml").read_text(encoding="utf-8"))

    settings, _ = dagster_instance_config(str(tmp_path))

    assert set(settings["storage"]) == {"postgres"}
    in_containers = {name: settings[name] for name in ("run_coordinator", "concurrency")}
    (tmp_path / "dagster.yaml").write_text(dagster_yaml(cpus=4))
    settings, _ = dagster_instance_config(str(tmp_path))
    # The queue is the same one, here and there.
    assert in_containers == {name: settings[name] for name in in_containers}
    (tmp_path / "dagster.yaml").write_text("storage:\n  postgres:\n    postgres_db: {hots: x}\n")
    with pytest.raises(Exception, match="hots"):
        dagster_instance_config(str(tmp_path))


def test_dagster_takes_the_settings_of_kpipe_dev(tmp_path: Path) -> None:
    from dagster._core.instance.config import dagster_instance_config

    (tmp_path / "dagster.yaml").write_text(dagster_yaml(cpus=64))

    settings, _ = dagster_instance_config(str(tmp_path))

    assert settings["concurrency"]["runs"]["max_concurrent_runs"] == 4
    assert settings["telemetry"]["enabled"] is False


@pytest.mark.broker
def test_kafka_takes_its_settings(shipped: Deployment, tmp_path: Path) -> None:
    variables = dict(shipped.services["kafka"]["environment"])
    cluster_id = variables.pop("CLUSTER_ID")
    variables["KAFKA_LOG_DIRS"] = str(tmp_path / "data")
    variables["KAFKA_ADVERTISED_LISTENERS"] = variables["KAFKA_ADVERTISED_LISTENERS"].replace(
        "${KPIPE_KAFKA_PORT:-29092}", "29092"
    )
    properties = tmp_path / "server.properties"
    properties.write_text(
        "\n".join(
            f"{name.removeprefix('KAFKA_').lower().replace('_', '.')}={value}" for name, value in variables.items()
        )
    )

    answer = subprocess.run(
        [
            *(find_java().path, "-cp", class_path(kafka_broker_jars()), "kafka.tools.StorageTool"),
            *("format", "-t", cluster_id, "-c", properties),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"cluster.id={cluster_id}" in (tmp_path / "data/meta.properties").read_text()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_connect_script_starts_a_server_that_its_health_check_finds(shipped: Deployment, tmp_path: Path) -> None:
    port = free_port()
    service = shipped.services["spark"]
    _, _, *health_check = service["healthcheck"]["test"]
    health_check = [part.replace("15002", str(port)) for part in health_check]
    server = ManagedProcess(
        ["bash", ROOT / "docker/spark-connect.sh"],
        log_path=tmp_path / "spark.log",
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "KPIPE_SPARK_MASTER": "local[1]",
            "KPIPE_SPARK_MEMORY": "1g",
            "KPIPE_SPARK_CONNECT_PORT": str(port),
        },
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    server.start()
    try:
        assert _healthy_within(120.0, health_check, server), server.log_tail()
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        try:
            assert spark.range(3).count() == 3
            # Without the connector's jar the format would be unknown; with it, what is missing is a topic.
            with pytest.raises(Exception, match="specified for Kafka source"):
                spark.read.format("kafka").load().count()
        finally:
            spark.stop()
    finally:
        server.stop()


def _healthy_within(seconds: float, health_check: list[str], server: ManagedProcess) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.is_running():
        answer = subprocess.run([sys.executable, *health_check], capture_output=True, check=False)
        if answer.returncode == 0:
            return True
        server.wait(0.5)
    return False

"""docker/spark-connect.sh starts a server, and the health check of compose.yaml finds it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from pyspark.sql.connect.session import SparkSession

from kpipe_platform.jvm.ports import free_port
from kpipe_platform.jvm.process import ManagedProcess

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_spark_connect_script_starts_a_server_that_its_health_check_finds(tmp_path: Path) -> None:
    port = free_port()
    service = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))["services"]["spark"]
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

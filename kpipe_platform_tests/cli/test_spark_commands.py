from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kpipe_platform.cli.main import app
from kpipe_platform.jvm.identity import ProcessIdentity
from kpipe_platform.jvm.ports import LOOPBACK, established, free_port, is_free

pytestmark = pytest.mark.spark

KPIPE = [sys.executable, "-c", "from kpipe_platform.cli.main import main; main()", "spark"]
QUICK = ["--master", "local[1]", "--setting", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
STRANGER = """
import sys
from kpipe_platform import SparkEngine
from kpipe_platform.errors import ConfigError
try:
    SparkEngine(remote=sys.argv[1]).spark_session
except ConfigError as error:
    print(error, flush=True)
"""
# A process of its own, because this one may have a Spark of its own.
USE = """
import sys
from kpipe_platform import SparkEngine
engine = SparkEngine(remote=sys.argv[1])
print(engine.spark_session.range(7).count(), engine.tasks_at_once, flush=True)
sys.stdin.readline()
"""


def kpipe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["spark", *arguments])


def status() -> dict[str, Any]:
    answer = kpipe("status", "--json")
    assert answer.exit_code == 0
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KPIPE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "400")
    yield
    kpipe("stop")


@pytest.mark.timeout(300)
def test_start_status_use_and_stop(tmp_path: Path) -> None:
    port = free_port()
    start = [*KPIPE, "start", "--port", str(port), *QUICK]
    answer = subprocess.run(start, capture_output=True, text=True, check=True, timeout=150)
    remote = f"sc://127.0.0.1:{port}"
    assert answer.stdout == f"{remote}\n"
    assert "kpipe spark stop" in answer.stderr
    found = status()
    assert (found["state"], found["remote"], found["master"]) == ("running", remote, "local[1]")
    assert found["clients"] in (0, None)
    assert Path(found["log"]).exists()
    assert_only_for_this_user(tmp_path / "state", Path(found["token"]), remote)

    again = kpipe("start", "--master", "local[1]")
    assert (again.exit_code, again.stdout) == (0, f"{remote}\n")
    assert "already running" in again.stderr
    for other in (["--master", "local[2]"], ["--master", "local[1]", "--port", "1"], ["--setting", "spark.a=b"]):
        refused = kpipe("start", *other)
        assert refused.exit_code == 1
        assert "kpipe spark stop" in refused.stderr

    with subprocess.Popen(
        [sys.executable, "-c", USE, remote], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "7 1\n"
        assert status()["clients"] in (1, None)
        client.communicate("\n", timeout=60)
    assert client.returncode == 0
    assert not established(port)

    table = kpipe("status").stdout
    for text in ("running", remote, str(found["pid"]), found["log"], found["spark_version"]):
        assert text in table

    assert kpipe("stop").exit_code == 0
    assert ProcessIdentity.of(found["pid"]) is None
    assert not (tmp_path / "state/spark/local").exists()
    assert not Path(found["token"]).exists()
    assert status()["state"] == "stopped"
    assert "no Spark Connect server" in kpipe("stop").stderr


def assert_only_for_this_user(state: Path, token: Path, remote: str) -> None:
    """A process that cannot read the token cannot attach, and nobody else can read it anywhere."""
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    assert (state / "spark/server.json").stat().st_mode & 0o777 == 0o600
    assert (state / "spark").stat().st_mode & 0o777 == 0o700
    secret = token.read_text(encoding="utf-8")
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert secret.encode() not in command_line.read_bytes()
    for path in (state / "spark").iterdir():
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    elsewhere = {**os.environ, "KPIPE_STATE_DIR": str(state / "of-a-stranger")}
    for environment in (elsewhere, {**elsewhere, "SPARK_CONNECT_AUTHENTICATE_TOKEN": "guessed"}):
        answer = subprocess.run(
            [sys.executable, "-c", STRANGER, remote], env=environment, capture_output=True, text=True, timeout=100
        )
        assert "requires a token that this process does not have" in answer.stdout, answer.stderr


@contextmanager
def foreground() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*KPIPE, "start", "--foreground", *QUICK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def running_in(process: subprocess.Popen[str]) -> tuple[ProcessIdentity, int]:
    """The server's process and port, once it runs."""
    assert process.stdout is not None
    remote = process.stdout.readline().strip()
    found = status()
    assert (found["state"], found["remote"]) == ("running", remote)
    identity = ProcessIdentity.of(found["pid"])
    assert identity is not None
    return identity, int(remote.rpartition(":")[2])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_crashed_can_be_started_again(tmp_path: Path) -> None:
    assert kpipe("start", *QUICK).exit_code == 0
    crashed = ProcessIdentity.of(status()["pid"])
    assert crashed is not None
    assert crashed.send(signal.SIGKILL)
    assert crashed.wait(10)
    assert status()["state"] == "crashed"

    # Now in the foreground: such a command ends with its server, and says why.
    with foreground() as process:
        identity, port = running_in(process)
        identity.send(signal.SIGKILL)
        _, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert "stopped unexpectedly" in errors
    assert identity.wait(10)
    assert is_free(port)
    assert status()["state"] == "stopped"
    assert not (tmp_path / "state/spark/local").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_signal_stops_a_server_in_the_foreground() -> None:
    with foreground() as process:
        identity, port = running_in(process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=90)
    assert process.returncode == 0
    assert "Stopped." in errors
    assert identity.wait(10)
    assert is_free(port)
    assert status()["state"] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--setting", "nonsense"], "NAME=VALUE"),
        (["--setting", "spark.connect.grpc.binding.port=1"], "sets spark.connect.grpc.binding.port itself"),
        (["--setting", "spark.connect.authenticate.token=x"], "sets spark.connect.authenticate.token itself"),
        (["--master", "nonsense"], "Master must either be"),
    ],
)
def test_failed_starts_are_text(arguments: list[str], message: str) -> None:
    answer = kpipe("start", *arguments)
    assert answer.exit_code == 1
    assert message in answer.stderr
    assert "How to fix" in answer.stderr
    assert answer.stdout == ""
    assert status()["state"] == "stopped"


def test_packages_for_a_clusters_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.py").write_text("RATE = 2\n")
    less = [text for name in ("numpy", "pandas", "pyarrow") for text in ("--without", name)]
    answer = kpipe("pack", "--output", "executors.tar.gz", "--module", "ours", *less)
    assert answer.stdout == "executors.tar.gz\n", answer.stderr
    assert "confluent-kafka" in answer.stderr
    assert "--archive executors.tar.gz" in answer.stderr
    with tarfile.open("executors.tar.gz") as packed:
        assert {"ours.py", "kpipe_platform/__init__.py"} <= set(packed.getnames())
    # An archive is for a cluster.
    refused = kpipe("start", "--master", "local[1]", "--archive", "executors.tar.gz")
    assert refused.exit_code == 1
    assert "starts no separate executors" in refused.stderr


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        answer = kpipe("start", "--port", str(port))
    assert answer.exit_code == 1
    assert f"Port {port} is in use" in answer.stderr

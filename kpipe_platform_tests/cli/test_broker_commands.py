import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kpipe_platform.cli.main import app
from kpipe_platform.jvm.identity import ProcessIdentity
from kpipe_platform.jvm.ports import free_port
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic

pytestmark = pytest.mark.broker

KPIPE = [sys.executable, "-c", "from kpipe_platform.cli.main import main; main()", "broker"]


def kpipe(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def status() -> dict[str, Any]:
    answer = kpipe("broker", "status", "--json")
    assert answer.exit_code == 0
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KPIPE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "400")
    yield
    kpipe("broker", "stop")


def test_start_status_crash_start_and_stop_keep_the_data(tmp_path: Path) -> None:
    port = free_port()
    start = [*KPIPE, "start", "--port", str(port)]
    answer = subprocess.run(start, capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout == f"127.0.0.1:{port}\n"
    assert "kpipe broker stop" in answer.stderr
    found = status()
    assert found["state"] == "running"
    assert found["bootstrap_servers"] == f"127.0.0.1:{port}"
    assert found["data_dir"] == str(tmp_path / "state" / "broker" / "data")
    assert found["keep"] is True
    [node] = found["nodes"]
    assert Path(node["log"]).exists()
    create_topic(f"127.0.0.1:{port}", "kept")
    produce(f"127.0.0.1:{port}", "kept", ["x"])

    again = kpipe("broker", "start")
    assert again.exit_code == 0
    assert again.stdout == f"127.0.0.1:{port}\n"
    assert "already running" in again.stderr
    for other in (["--brokers", "2"], ["--data-dir", str(tmp_path)], ["--port", "1"], ["--setting", "a=b"]):
        answer_to_other = kpipe("broker", "start", *other)
        assert answer_to_other.exit_code == 1
        assert "kpipe broker stop" in answer_to_other.stderr

    table = kpipe("broker", "status").stdout
    for text in ("running", f"127.0.0.1:{port}", str(node["pid"]), node["log"], found["data_dir"]):
        assert text in table

    identity = ProcessIdentity.of(node["pid"])
    assert identity is not None
    assert identity.send(signal.SIGKILL)
    assert identity.wait(10)
    assert status()["state"] == "crashed"

    # Started again, now in the foreground; stopped from elsewhere.
    with foreground("--port", str(port)) as process:
        again_identity = running_in(process)
        assert len(consume(f"127.0.0.1:{port}", "kept")) == 1
        stopped = kpipe("broker", "stop")
        _, errors = process.communicate(timeout=60)
    assert stopped.exit_code == 0
    assert "kept in" in stopped.stderr
    assert process.returncode == 0
    assert "Stopped." in errors
    assert again_identity.wait(10)
    assert (Path(found["data_dir"]) / "node-0" / "data").exists()
    assert status()["state"] == "stopped"
    assert "no broker" in kpipe("broker", "stop").stderr


def test_a_throw_away_broker_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    arguments = ("--throw-away", "--data-dir", str(folder), "--setting", "num.partitions=3")
    assert kpipe("broker", "start", *arguments).exit_code == 0
    found = status()
    assert found["data_dir"] == str(folder)
    assert "deleted" in kpipe("broker", "stop").stderr
    assert ProcessIdentity.of(found["nodes"][0]["pid"]) is None
    assert not folder.exists()


@contextmanager
def foreground(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*KPIPE, "start", "--foreground", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def running_in(process: subprocess.Popen[str]) -> ProcessIdentity:
    """The broker's process, once it runs."""
    assert process.stdout is not None
    servers = process.stdout.readline().strip()
    found = status()
    assert (found["state"], found["bootstrap_servers"]) == ("running", servers)
    identity = ProcessIdentity.of(found["nodes"][0]["pid"])
    assert identity is not None
    return identity


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "kill"])
def test_a_throw_away_broker_in_the_foreground(how: str) -> None:
    with foreground("--throw-away") as process:
        identity = running_in(process)
        folder = Path(status()["data_dir"])
        assert folder.exists()
        if how == "signal":
            process.send_signal(signal.SIGTERM)
        else:
            identity.send(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert identity.wait(10)
    assert not folder.exists()
    assert status()["state"] == "stopped"
    if how == "kill":
        assert process.returncode == 1
        assert "stopped unexpectedly" in errors
        assert "Kafka Server started" in errors
    else:
        assert process.returncode == 0
        assert "Stopped." in errors


def test_a_start_that_is_killed_can_be_cleaned_up(tmp_path: Path) -> None:
    pid_file = tmp_path / "state" / "broker" / "data" / "node-0" / "kafka.pid"
    with subprocess.Popen([*KPIPE, "start"]) as process:
        end = time.monotonic() + 60
        while not pid_file.exists():
            assert time.monotonic() < end
            time.sleep(0.005)
        process.kill()
    assert status()["state"] in ("starting", "running")
    [node] = status()["nodes"]
    assert kpipe("broker", "stop").exit_code == 0
    assert ProcessIdentity.of(node["pid"]) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--setting", "nonsense"], "NAME=VALUE"),
        (["--setting", "log.dirs=/x"], "sets log.dirs itself"),
        (["--setting", "num.io.threads=many"], "Not a number"),
    ],
)
def test_failed_starts_are_text(arguments: list[str], message: str) -> None:
    answer = kpipe("broker", "start", *arguments)
    assert answer.exit_code == 1
    assert message in answer.stderr
    assert "How to fix" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
    assert status()["state"] == "stopped"

"""The main job as a user runs it, on the first of the flights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpipe_platform.demo import data

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FLIGHTS = 2_000


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files, which must be empty again at the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    yield folder
    left = [path.name for path in folder.iterdir() if path.name.startswith(("kpipe-", "spark-", "blockmgr-"))]
    assert left == []


def _start(scratch: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "examples.flights", "run", "--flights", str(FLIGHTS), *arguments]
    environment = {**os.environ, "TMPDIR": str(scratch), "COLUMNS": "120"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def _processes_of(scratch: Path) -> list[str]:
    """Commands of living processes that were started with this folder for temporary files."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={scratch}".encode() in environment and command:
            found.append(command.replace(b"\0", b" ").decode(errors="replace")[:100])
    return found


def _assert_all_gone(scratch: Path) -> None:
    deadline = time.monotonic() + 20
    while (left := _processes_of(scratch)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_flight_ends_up_once_and_nothing_is_left(scratch: Path) -> None:
    departed_not = int(data.flights(FLIGHTS)["dep_time"].isna().sum())
    assert departed_not > 0
    process = _start(scratch)
    out, shown = process.communicate(timeout=360)
    assert process.returncode == 0, shown
    lines = out.splitlines()
    expected = (
        f"RESULT records={FLIGHTS} enriched={FLIGHTS - departed_not} dead_letters={departed_not} lost=0 duplicated=0"
    )
    assert re.fullmatch(rf"{expected} seconds=\d+\.\d", lines[-1])
    assert sum(line.startswith("RESULT") for line in lines) == 1
    table = [re.split(r"\s*│\s*", line.strip("│ ")) for line in lines if line.startswith("│")]
    records = {row[0]: row[1] for row in table}
    assert records["Writing flights to Kafka"] == f"{FLIGHTS:,}"
    assert records["Materializing flights_enriched"] == f"{FLIGHTS:,}"
    assert records["Materializing carrier_delays"] == f"{FLIGHTS - departed_not:,}"
    assert f"{departed_not} dead letters: missing field dep_time" in out
    # Only our own progress is on stderr, neither Spark's lines nor Dagster's.
    assert all(
        line.startswith(("done", "  ...", "  flights", "Writing", "Materializing")) for line in shown.splitlines()
    )
    _assert_all_gone(scratch)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("after", "by"),
    [("done  Writing flights to Kafka", signal.SIGTERM), ("Materializing flights_enriched", signal.SIGINT)],
)
def test_an_interrupted_run_leaves_nothing(scratch: Path, after: str, by: signal.Signals) -> None:
    process = _start(scratch)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(after):
            break
    process.send_signal(by)
    out, shown = process.communicate(timeout=120)
    assert process.returncode == 1, shown
    assert shown.splitlines()[-1].startswith("interrupted: all services are stopped")
    assert "Traceback" not in shown
    assert "RESULT" not in out
    _assert_all_gone(scratch)


def test_without_java_the_remedy_is_named(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    process = _start(scratch)
    out, shown = process.communicate(timeout=150)
    assert process.returncode == 1
    assert "JAVA_HOME is set to /nowhere" in shown
    assert "How to fix: correct or unset JAVA_HOME" in shown
    assert "Traceback" not in shown
    assert out == ""

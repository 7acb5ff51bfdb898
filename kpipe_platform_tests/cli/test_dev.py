from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from kpipe_platform.cli.dev import dev, service_environment
from kpipe_platform.cli.stop_signals import stop_signals
from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm.ports import LOOPBACK, free_port, is_free

ROOT = Path(__file__).parents[2]

# A workspace of its own keeps these tests to what `kpipe dev` does, whatever the flights platform holds.
DEFINITIONS = """
import subprocess
import dagster as dg

@dg.asset
def endless():
    subprocess.run(["sleep", "987"])

defs = dg.Definitions(
    assets=[endless],
    jobs=[dg.define_asset_job("endless_job", [endless])],
    executor=dg.in_process_executor,
)
"""
WORKSPACE = "load_from:\n  - python_file:\n      relative_path: definitions.py\n      location_name: toy\n"
RUN_DEV = "import typer\nfrom kpipe_platform.cli.dev import dev\ntyper.run(dev)"


def test_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]

        with pytest.raises(EnvironmentSetupError, match=rf"Port {port} is in use") as caught:
            dev(port=port, data_dir=tmp_path / "data")

    assert f"make dev PORT={port + 1}" in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_data_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    with FileLock(tmp_path / ".lock"), pytest.raises(EnvironmentSetupError, match="Another kpipe dev"):
        dev(port=free_port(), data_dir=tmp_path)


def test_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EnvironmentSetupError, match="cannot be used") as caught:
        dev(port=free_port(), data_dir=tmp_path / "file" / "data")

    assert "--data-dir" in str(caught.value)


def test_environment_keeps_what_the_user_set() -> None:
    environment = service_environment(
        {"DAGSTER_HOME": "/mine", "KAFKA_BOOTSTRAP_SERVERS": "elsewhere:9092", "PATH": "/bin"},
        bootstrap_servers="127.0.0.1:1234",
        folder=Path("/data"),
    )

    assert environment["DAGSTER_HOME"] == "/mine"
    assert environment["KPIPE_DATA_DIR"] == "/data/tables"
    assert environment["PATH"] == "/bin"
    assert environment["KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:1234"


class Dev:
    """`kpipe dev` in a process of its own, on a workspace of its own: by default with an asset that never ends."""

    def __init__(self, folder: Path, *options: str, definitions: str = DEFINITIONS, **environment: str) -> None:
        self.port = free_port()
        self.folder = folder
        (folder / "definitions.py").write_text(definitions, encoding="utf-8")
        (folder / "workspace.yaml").write_text(WORKSPACE, encoding="utf-8")
        self._log = folder / "dev.log"
        own = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN_DEV, "--no-seed", "--port", str(self.port), *options],
                cwd=folder,
                env={**own, "PYTHONPATH": str(ROOT), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until(self, what: Callable[[], bool], deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while not what():
            assert time.monotonic() < end, self.log
            time.sleep(0.1)

    def until_ready(self) -> None:
        self.until(lambda: "Dagster UI" in self.log or self.process.poll() is not None, 120.0)
        assert self.process.poll() is None, self.log

    def start_endless_run(self) -> None:
        command = ["-m", "dagster", "job", "launch", "-w", "workspace.yaml", "-j", "endless_job"]
        environment = {**os.environ, "DAGSTER_HOME": str(self.folder / ".kpipe/dev/dagster")}
        subprocess.run([sys.executable, *command], cwd=self.folder, env=environment, check=True, capture_output=True)
        self.until(lambda: any("sleep\0987" in command for command in self.processes().values()), 60.0)

    def run_states(self) -> set[str]:
        history = self.folder / ".kpipe/dev/dagster/history/runs.db"
        with closing(sqlite3.connect(history)) as connection:
            return {state for (state,) in connection.execute("select status from runs")}

    def processes(self) -> dict[int, str]:
        """Everything that still runs and that this instance started: all of it has its folder in its environment."""
        mark = f"\0KPIPE_DATA_DIR={self.folder}/".encode()
        brokers = f"{self.folder}/.kpipe".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                if mark in b"\0" + (process / "environ").read_bytes() or brokers in command:
                    found[int(process.name)] = command.decode(errors="replace")
            except OSError:
                continue
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Dev]:
    instance = Dev(tmp_path, "--drain-s", "3")
    try:
        instance.until_ready()
        yield instance
    finally:
        if instance.process.poll() is None:
            instance.process.kill()
            instance.process.wait()


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@linux_only
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_does_not_finish_is_ended_after_the_deadline(running: Dev) -> None:
    running.start_endless_run()

    running.process.send_signal(signal.SIGINT)

    assert running.process.wait(45.0) == 0, running.log
    running.until(lambda: not running.processes(), 10.0)
    assert "Waiting up to 3 s for 1 run at work" in running.log
    assert "Not finished within 3 s. Ending 1 run at work" in running.log
    assert "Stopped." in running.log
    assert is_free(running.port)
    # A run that the history still called running would hold a place in the queue of the next start.
    assert running.run_states() <= {"FAILURE", "CANCELED"}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_every_way_to_stop_it_is_taken_as_ctrl_c(signum: signal.Signals) -> None:
    before = signal.getsignal(signum)

    with pytest.raises(KeyboardInterrupt), stop_signals():
        signal.raise_signal(signum)

    assert signal.getsignal(signum) is before


def test_a_second_signal_asks_for_haste_and_does_not_break_off_the_clean_up() -> None:
    with stop_signals() as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert not signals.hurry
        signal.raise_signal(signal.SIGTERM)
        assert (signals.hurry, signals.kill) == (True, False)
        signal.raise_signal(signal.SIGINT)
        assert signals.kill


@linux_only
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_outlives_it_when_it_is_killed(running: Dev) -> None:
    running.start_endless_run()

    running.process.kill()
    running.process.wait()

    running.until(lambda: not running.processes(), 30.0)
    assert is_free(running.port)


@linux_only
@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_says_why_when_dagster_does_not_start(tmp_path: Path) -> None:
    instance = Dev(tmp_path)
    (tmp_path / "workspace.yaml").write_text("load_from: nonsense\n", encoding="utf-8")

    assert instance.process.wait(120.0) != 0

    assert "Dagster ended by itself" in instance.log
    instance.until(lambda: not instance.processes(), 10.0)

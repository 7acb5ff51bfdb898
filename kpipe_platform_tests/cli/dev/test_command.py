from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from filelock import FileLock

from kpipe_platform.cli.dev.command import _seed, dev, service_environment
from kpipe_platform.cli.dev.signals import stop_signals
from kpipe_platform.errors import EngineUnavailableError, EnvironmentSetupError
from kpipe_platform.jvm.ports import LOOPBACK, free_port


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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("no-such-program --fill", "program no-such-program of the --seed command"),
        ("'", "is not a valid shell command"),
    ],
)
def test_a_seed_command_that_cannot_run_is_refused_before_anything_starts(
    tmp_path: Path, command: str, words: str
) -> None:
    with pytest.raises(EnvironmentSetupError, match=words):
        dev(port=free_port(), data_dir=tmp_path / "data", seed=command)

    assert not (tmp_path / "data").exists()


def test_the_seed_command_has_the_environment_of_dagster_and_its_failure_is_reported(tmp_path: Path) -> None:
    code = f"import os, pathlib; pathlib.Path({str(tmp_path / 'seen')!r}).write_text(os.environ['SERVERS'])"
    environment = {**os.environ, "SERVERS": "127.0.0.1:1234"}

    _seed([sys.executable, "-c", code], environment)
    assert (tmp_path / "seen").read_text() == "127.0.0.1:1234"
    with pytest.raises(EnvironmentSetupError, match="exit code 3"):
        _seed([sys.executable, "-c", "raise SystemExit(3)"], environment)


def test_the_seed_command_is_stopped_if_spark_cannot_start() -> None:
    class Failed:
        def check(self) -> None:
            raise EngineUnavailableError("no Spark", fix="none")

    with pytest.raises(EngineUnavailableError, match="no Spark"):
        _seed(["sleep", "600"], os.environ, cast("Any", Failed()))


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
    assert "SCHEMA_REGISTRY_URL" not in environment


@pytest.mark.parametrize(("started", "seen"), [(None, "http://mine"), ("http://dev", "http://dev")])
def test_a_registry_that_was_started_replaces_the_users(started: str | None, seen: str) -> None:
    environment = service_environment(
        {"SCHEMA_REGISTRY_URL": "http://mine"},
        bootstrap_servers="127.0.0.1:1234",
        folder=Path("/data"),
        registry_url=started,
    )

    assert environment["SCHEMA_REGISTRY_URL"] == seen


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

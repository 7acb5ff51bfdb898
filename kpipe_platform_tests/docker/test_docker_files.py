"""The files and commands that docker/ names exist, and Dagster accepts its settings. Nothing is started."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
import typer.main
import yaml
from dagster._cli import create_dagster_cli
from dagster._core.instance.config import dagster_instance_config
from dagster._daemon.cli import create_dagster_daemon_cli
from dagster_webserver.cli import create_dagster_webserver_cli

import kpipe_platform
from kpipe_platform.cli.dev.command import dagster_yaml
from kpipe_platform.cli.main import app
from kpipe_platform.jvm.jars import KAFKA_VERSION

ROOT = Path(__file__).parents[2]
TEXT = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docker").iterdir()}
COMPOSE = yaml.safe_load(TEXT["compose.yaml"])
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = [line.split() for line in TEXT["Dockerfile"].replace("\\\n", " ").splitlines() if line]
COPIED = [word for name, *words in DOCKERFILE if name == "COPY" for word in words[:-1]]
COMMANDS = {service["command"][0]: service["command"] for service in OURS.values()} | {
    f"health of {name}": service["healthcheck"]["test"][1:]
    for name, service in OURS.items()
    if "healthcheck" in service
}
COMMANDS |= {
    "seed": SERVICES["seed"]["command"],
    "doctor": next(words[1:] for words in DOCKERFILE if "doctor" in words),
}
CLIS = {
    "dagster": create_dagster_cli,
    "dagster-daemon": create_dagster_daemon_cli,
    "dagster-webserver": create_dagster_webserver_cli,
    "kpipe": lambda: typer.main.get_command(app),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_exist(command: list[str]) -> None:
    program, *words = command
    # Files of the image are those that it copies, whatever the folder.
    files = {Path(source).name: ROOT / source for source in COPIED}
    words = [str(files[Path(word).name]) if word.startswith("/") else word for word in words]
    for flag, module in itertools.pairwise(words):
        if flag == "-m":
            assert importlib.util.find_spec(module), module
    if program in CLIS:
        found: Any = CLIS[program]()
        while hasattr(found, "get_command"):
            found = found.get_command(click.Context(found), words.pop(0))
        assert found.make_context(program, words)
    elif "-c" in words:
        compile(words[-1], program, "exec")
    else:
        assert program in ("bash", "python"), program


def test_files_and_versions_exist() -> None:
    ignored = TEXT["Dockerfile.dockerignore"]
    assert [name for name in COPIED if not (ROOT / name).exists() or f"!{name}" not in ignored] == []
    assert {service["image"] for service in OURS.values()} == {f"kpipe-platform:{kpipe_platform.__version__}"}
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"


def test_dagster_takes_the_settings_of_containers_and_of_kpipe_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HOST", "DB", "USER", "PASSWORD"):
        monkeypatch.setenv(f"KPIPE_POSTGRES_{variable}", "x")
    read = []
    for text in (TEXT["dagster.yaml"], dagster_yaml(cpus=4), dagster_yaml(cpus=64)):
        (tmp_path / "dagster.yaml").write_text(text, encoding="utf-8")
        read.append(dagster_instance_config(str(tmp_path))[0])
    containers, small, large = read
    assert set(containers["storage"]) == {"postgres"}
    both = ("run_coordinator", "concurrency", "run_launcher", "run_monitoring")
    assert all(containers[name] == small[name] for name in both)
    # Without the launcher's answer, monitoring would find no run whose process is gone.
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_launcher.supports_check_run_worker_health
    assert small["run_monitoring"]["enabled"] is True
    assert large["concurrency"]["runs"]["max_concurrent_runs"] == 4
    assert large["telemetry"]["enabled"] is False

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kpipe_platform.cli import preflight
from kpipe_platform.cli.preflight import Level, disk_finding, doctor, examine, memory_finding, python_finding

MIB = 1024 * 1024


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "300")
    return CliRunner()


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(doctor)
    return app


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 9), Level.PROBLEM),
        ((3, 10), Level.OK),
        ((3, 13), Level.OK),
        ((3, 14), Level.PROBLEM),
    ],
)
def test_python(version: tuple[int, int], level: Level) -> None:
    assert python_finding(version).level is level


@pytest.mark.parametrize(
    ("free_mib", "level"), [(0, Level.PROBLEM), (499, Level.PROBLEM), (500, Level.WARNING), (4000, Level.OK)]
)
def test_disk(free_mib: int, level: Level) -> None:
    finding = disk_finding(Path("/data"), free_mib * MIB)

    assert finding.level is level
    assert bool(finding.fix) == (level is not Level.OK)


@pytest.mark.parametrize(("available_mib", "level"), [(512, Level.WARNING), (8000, Level.OK)])
def test_memory_is_never_a_reason_to_refuse(available_mib: int, level: Level) -> None:
    finding = memory_finding(available_mib * MIB)

    assert finding is not None
    assert finding.level is level


def test_memory_that_the_system_does_not_tell() -> None:
    assert memory_finding(None) is None


def test_examine_looks_at_every_subject() -> None:
    subjects = [finding.subject for finding in examine(jars=False)]

    assert list(dict.fromkeys(subjects)) == ["Python", "Java", "Disk", "Memory", "Network"]


def test_doctor_on_a_machine_that_has_all(run: CliRunner, app: typer.Typer) -> None:
    answer = run.invoke(app, [])

    assert answer.exit_code == 0, answer.output
    assert "jars of Kafka" in answer.output
    assert run.invoke(app, ["--quiet"]).output == ""


def test_doctor_without_java(run: CliRunner, app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    answer = run.invoke(app, ["--quiet"])

    assert answer.exit_code == 1
    assert "JAVA_HOME is set to /nowhere" in answer.output
    assert "How to fix:" in answer.output
    assert "Traceback" not in answer.output


def test_doctor_without_network_and_jars(
    run: CliRunner, app: typer.Typer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Nothing listens on the discard port of this machine.
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="m"/><resolvers>'
        '<ibiblio name="m" m2compatible="true" root="http://127.0.0.1:9/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("KPIPE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("KPIPE_CACHE_DIR", str(tmp_path / "cache"))

    answer = run.invoke(app, ["--quiet"])

    assert answer.exit_code == 1
    assert "cannot be reached" in answer.output
    assert "How to fix:" in answer.output
    assert "Traceback" not in answer.output


def test_doctor_with_a_full_disk(run: CliRunner, app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_free_bytes", lambda _: 10 * MIB)

    answer = run.invoke(app, ["--quiet", "--no-jars"])

    assert answer.exit_code == 1
    assert "free at least 500 MB" in answer.output

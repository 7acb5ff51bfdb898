import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from kpipe_platform.cli import main, output
from kpipe_platform.cli.main import app
from kpipe_platform.errors import ConfigError

runner = CliRunner()


def test_version() -> None:
    answer = runner.invoke(app, ["--version"])
    assert answer.exit_code == 0
    assert re.fullmatch(r"kpipe \d+\.\d+\.\d+\S*\n", answer.stdout)


def test_help_lists_the_groups() -> None:
    answer = runner.invoke(app, ["--help"])
    assert answer.exit_code == 0
    assert "broker" in answer.stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'dagster', 'pyspark', 'pandas', 'pyarrow'}"
    code = f"import sys, kpipe_platform.cli.main; print({heavy} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


@pytest.fixture
def failing() -> typer.Typer:
    failing = typer.Typer(cls=main._KpipeGroup, pretty_exceptions_enable=False)

    @failing.command()
    def wrong() -> None:
        raise ConfigError("It is wrong.", fix="make it right")

    @failing.command()
    def bug() -> None:
        raise ZeroDivisionError

    return failing


def test_an_error_is_text_with_a_remedy_on_standard_error(failing: typer.Typer) -> None:
    answer = runner.invoke(failing, ["wrong"])
    assert answer.exit_code == 1
    assert answer.stdout == ""
    assert answer.stderr == "Error: It is wrong.\n  How to fix: make it right\n"


def test_a_bug_keeps_its_traceback(failing: typer.Typer) -> None:
    assert isinstance(runner.invoke(failing, ["bug"]).exception, ZeroDivisionError)


def test_details_of_progress_are_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress_lines() as progress:
        progress("Fetching it")
        progress("  downloading a.jar")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Fetching it\n"


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.progress_lines() as progress:
        progress("Fetching [it]")
        progress("  downloading a.jar")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Fetching [it]" in captured.err

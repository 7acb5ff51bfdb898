"""scripts/setup on machines that lack something: one clear message with its remedy, before any download."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("awk", "cat", "cksum", "df", "dirname", "env", "grep", "head", "id", "rm", "sed", "sh")
FILES = ("scripts/setup", "pyproject.toml", "constraints.txt", "setup.py")
PYTHON = f'exec "{sys.executable}" "$@"'
FULL_DISK = "echo Filesystem; echo /dev/x 100 50 51200 50% /"


def java(version: str) -> str:
    return f"echo 'openjdk version \"{version}\"' >&2"


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def set_up(folder: Path, stage: str, **programs: str) -> tuple[int, str]:
    """Run the script in a clone whose PATH has only these programs; the code and what it said."""
    clone, path = folder / "a clone", folder / "bin"
    for name in TOOLS:
        program(path / name, f'exec "{shutil.which(name)}" "$@"')
    for name, script in {"java": java("17.0.15"), **programs}.items():
        program(path / name, script)
    (clone / "scripts").mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(ROOT / name, clone / name)
    environment = {"PATH": str(path), "HOME": str(clone)}
    command = ["sh", "scripts/setup", stage]
    answer = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ({"java": java("11.0.2")}, "java is too old: 11"),
        ({"java": "echo 'Unable to locate a Java Runtime.' >&2"}, "java is missing, or does not start"),
        ({"python3": "echo Python 3.9.18; exit 1"}, "python3 is Python 3.9.18"),
        ({"python3": PYTHON, "df": FULL_DISK}, "50 MB are free"),
    ],
)
def test_what_is_missing_is_said_before_any_download(tmp_path: Path, programs: dict[str, str], words: str) -> None:
    code, output = set_up(tmp_path, "run", **programs)
    assert (code, words in output) == (1, True), output
    assert "run make again" in output or "make PYTHON=" in output


def test_packages_are_installed_once_by_uv_and_by_pip_where_it_fails(tmp_path: Path) -> None:
    venv, calls = tmp_path / "a clone/.venv", tmp_path / "calls"
    # Stands for a .venv that works. It writes down what it is asked to install.
    program(venv / "bin/python", f'case "$*" in *install*) echo "pip $*" >>"{calls}";; esac')
    (venv / "bin/activate").write_text(f"VIRTUAL_ENV='{venv}'\n", encoding="utf-8")
    uv = f'case "$*" in *--help) echo "--default-index";; *) echo "uv $*" >>"{calls}"; exit '

    for code, tools in ((0, ["uv"]), (0, ["uv"]), (1, ["uv"])):
        assert set_up(tmp_path, "tools", uv=f"{uv}{code};; esac")[0] == 0
        assert [line.split()[0] for line in calls.read_text(encoding="utf-8").splitlines()] == tools
    (venv / ".kpipe-installed").write_text("of an older pyproject.toml", encoding="utf-8")
    assert set_up(tmp_path, "tools", uv=f"{uv}1;; esac")[0] == 0
    assert [line.split()[0] for line in calls.read_text(encoding="utf-8").splitlines()] == ["uv", "uv", "pip"]
    assert "--editable" in calls.read_text(encoding="utf-8")

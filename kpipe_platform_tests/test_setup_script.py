"""scripts/setup on machines that lack something: one clear message with its remedy, before any download."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What a bare system has; everything else is put beside it by each test.
BASIC_TOOLS = (
    *("awk", "basename", "cat", "cksum", "cut", "date", "df", "dirname", "env", "grep", "head", "id", "mkdir"),
    *("rm", "sed", "sh", "sleep", "tail", "uname"),
)


class Machine:
    """A clone of the project, and a PATH with only what this machine has."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        self.programs = folder / "bin"
        self.programs.mkdir()
        for tool in BASIC_TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.programs / tool).symlink_to(found)
        (self.clone / "scripts").mkdir(parents=True)
        for name in ("scripts/setup", "pyproject.toml", "constraints.txt", "setup.py", "LICENSE"):
            shutil.copy(ROOT / name, self.clone / name)
        (self.clone / "README.md").touch()
        (self.clone / "kpipe_platform").mkdir()

    def has(self, program: str, script: str) -> None:
        path = self.programs / program
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def has_java(self, version: str = "17.0.15") -> None:
        self.has("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    def has_python(self, program: str = "python3.11", *, venv: bool = True) -> None:
        refuse = "" if venv else 'case "$*" in *ensurepip*) exit 1;; esac\n'
        self.has(program, f'{refuse}exec "{sys.executable}" "$@"')

    def set_up(self, stage: str = "run", **environment: str) -> tuple[int, str]:
        answer = subprocess.run(
            ["sh", "scripts/setup", stage],
            cwd=self.clone,
            env={"PATH": str(self.programs), "HOME": str(self.clone), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        output = answer.stdout + answer.stderr
        assert "Traceback" not in output
        return answer.returncode, output


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_java(machine: Machine) -> None:
    code, output = machine.set_up()

    assert code == 1
    assert "No Java found" in output
    assert "Install Java 17 or 21" in output


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_java_too_old(machine: Machine, version: str) -> None:
    machine.has_java(version)

    code, output = machine.set_up()

    assert code == 1
    assert "too old" in output
    assert "Install Java 17 or 21" in output


def test_java_that_is_only_a_stand_in(machine: Machine) -> None:
    machine.has("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")

    code, output = machine.set_up()

    assert code == 1
    assert "no working Java" in output


def test_java_home_without_java(machine: Machine) -> None:
    machine.has_java()

    code, output = machine.set_up(JAVA_HOME="/nowhere")

    assert code == 1
    assert "JAVA_HOME is set to /nowhere" in output


def test_no_python(machine: Machine) -> None:
    machine.has_java()

    code, output = machine.set_up()

    assert code == 1
    assert "No Python 3.10, 3.11, 3.12 or 3.13 found" in output


def test_python_too_old(machine: Machine) -> None:
    machine.has_java()
    machine.has("python3", '[ "$1" = -V ] && echo Python 3.9.18')

    code, output = machine.set_up()

    assert code == 1
    assert "python3 on PATH is Python 3.9.18" in output
    assert "No Python 3.10" in output


def test_python_without_venv(machine: Machine) -> None:
    machine.has_java()
    machine.has_python(venv=False)

    code, output = machine.set_up()

    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert code == 1
    assert f"Python {version} is here, but not its venv module" in output
    assert f"apt-get install python{version}-venv" in output


def test_named_python_that_does_not_start(machine: Machine) -> None:
    machine.has_java()

    code, output = machine.set_up(PYTHON="/nowhere/python")

    assert code == 1
    assert "PYTHON=/nowhere/python is not a Python" in output


def test_disk_almost_full(machine: Machine) -> None:
    machine.has_java()
    machine.has_python()
    (machine.programs / "df").unlink()
    machine.has("df", "echo Filesystem; echo /dev/x 100 50 51200 50% /")

    code, output = machine.set_up()

    assert code == 1
    assert "50 MB are free here" in output
    assert not (machine.clone / ".venv").exists()


def test_no_network_at_first_start(machine: Machine) -> None:
    machine.has_java()
    machine.has_python()

    # Nothing listens on the discard port of this machine.
    code, output = machine.set_up(
        PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1", PIP_CONFIG_FILE=os.devnull
    )

    assert code == 1
    assert "the package index does not answer" in output
    assert "Connection refused" in output
    assert "build/setup.log" in output


def test_unknown_stage(machine: Machine) -> None:
    code, output = machine.set_up("everything")

    assert code == 1
    assert "no stage 'everything'" in output


def test_nothing_is_installed_twice(machine: Machine) -> None:
    machine.has_java()
    machine.has_python()
    venv = machine.clone / ".venv/bin"
    venv.mkdir(parents=True)
    calls = machine.clone / "calls"
    # Stands for a .venv that works, and writes down what it is asked for.
    python = venv / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >>"{calls}"\n', encoding="utf-8")
    python.chmod(0o755)
    (venv / "activate").write_text(f"VIRTUAL_ENV={machine.clone / '.venv'}\n", encoding="utf-8")

    def installs() -> int:
        return calls.read_text(encoding="utf-8").count("pip install")

    assert machine.set_up("tools")[0] == 0
    assert installs() == 1
    assert machine.set_up("tools")[0] == 0
    assert installs() == 1

    with (machine.clone / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert machine.set_up("tools")[0] == 0
    assert installs() == 2


def test_venv_of_another_folder_is_made_again(machine: Machine) -> None:
    machine.has_java()
    machine.has("python3", "exit 0")
    venv = machine.clone / ".venv/bin"
    venv.mkdir(parents=True)
    python = venv / "python"
    python.write_text("#!/bin/sh\n", encoding="utf-8")
    python.chmod(0o755)
    (venv / "activate").write_text("VIRTUAL_ENV=/some/other/clone/.venv\n", encoding="utf-8")

    _, output = machine.set_up("tools")

    assert "making it again" in output
    assert not python.exists()

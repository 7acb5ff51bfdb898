"""The files around the package agree with each other: metadata, pinned versions, documents, commands."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kpipe_platform

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

PROJECT: dict[str, Any] = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
CONSTRAINTS = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]

# Written so that they don't find themselves here.
ADDRESSES = re.compile(
    r"pypi[.]org|pythonhosted[.]org|repo1?[.]maven|maven[.]org|npmjs[.]org|crates[.]io|deb[.]debian[.]org"
    r"|proxy[.]golang[.]org|index-[u]rl[ =]|extra-[i]ndex",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"/[w]ork/(main|shared)\b|/[r]oot/|/[h]ome/(?!someone)[a-z]+/|/[U]sers/(?!someone)|[.]pyenv")


def project_files() -> list[Path]:
    """Every file that is in the repository or would be added to it."""
    answer = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in answer.stdout.split("\0") if name and (ROOT / name).is_file()]


def pinned(python: str) -> dict[str, str]:
    """Package -> version that constraints.txt gives for one version of Python."""
    versions: dict[str, str] = {}
    for line in CONSTRAINTS:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} has two versions for Python {python}"
            versions[name] = str(requirement.specifier).removeprefix("==")
    return versions


def test_constraints_are_exact_versions_and_hold_no_address() -> None:
    line_of_a_version = re.compile(r'[A-Za-z0-9._-]+==[A-Za-z0-9.]+( ; python_version (>=|<) "3\.\d+")?')

    assert [line for line in CONSTRAINTS if not line_of_a_version.fullmatch(line)] == []


def test_constraints_are_sorted() -> None:
    names = [canonicalize_name(Requirement(line).name) for line in CONSTRAINTS]

    assert names == sorted(names)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_dependency_is_bounded_above(requirement: Requirement) -> None:
    assert any(bound.operator in ("<", "<=", "==", "~=") for bound in requirement.specifier)


@pytest.mark.parametrize("python", PYTHONS)
def test_dependencies_are_pinned_within_their_bounds(python: str) -> None:
    versions = pinned(python)

    for requirement in REQUIREMENTS:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_installed_versions_are_those_of_the_constraints() -> None:
    versions = pinned(f"{sys.version_info[0]}.{sys.version_info[1]}")

    differing = {
        requirement.name: (importlib.metadata.version(requirement.name), versions[name])
        for requirement in REQUIREMENTS
        if (name := canonicalize_name(requirement.name)) and importlib.metadata.version(name) != versions[name]
    }

    assert differing == {}, "run make setup"


def test_documented_dependencies_are_those_of_the_metadata() -> None:
    documented = {}
    for line in (ROOT / "docs/dependencies.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) in (3, 4) and re.match(r"[<>=~]=?\d", cells[1]):
            assert len(cells[-1]) > 4, f"{cells[0]} has no reason"
            documented[canonicalize_name(cells[0])] = (cells[1], cells[2] if len(cells) == 4 else "")
    declared = {
        canonicalize_name(requirement.name): (_bounds(requirement), extra)
        for extra, lines in {"": PROJECT["dependencies"], **EXTRAS}.items()
        for requirement in map(Requirement, lines)
    }

    assert documented == declared


def test_no_file_holds_an_address_of_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in project_files():
        text = path.read_text(encoding="utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if ADDRESSES.search(line) or MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")

    assert found == []


def test_no_file_is_a_lock_file() -> None:
    locks = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "pylock.toml"}

    assert [path for path in project_files() if path.name in locks] == []


def test_workspace_names_a_module_of_the_package() -> None:
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))

    (location,) = workspace["load_from"]
    spec = importlib.util.find_spec(location["python_module"]["module_name"])

    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(ROOT / "kpipe_platform")


def test_setup_py_is_only_a_shim() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))

    docstring, imported, called = tree.body
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(imported) == "from setuptools import setup"
    assert ast.unparse(called) == "setup()"


def test_entry_points_lead_to_something() -> None:
    points = {**PROJECT["scripts"], **PROJECT["entry-points"]["pytest11"]}

    for name, target in points.items():
        module, _, attribute = target.partition(":")
        loaded = importlib.import_module(module)
        assert not attribute or callable(getattr(loaded, attribute)), name


def test_version_is_the_same_everywhere() -> None:
    assert kpipe_platform.__version__ == PROJECT["version"]
    assert importlib.metadata.version("kpipe-platform") == PROJECT["version"]


def test_package_says_that_it_is_typed() -> None:
    assert (ROOT / "kpipe_platform/py.typed").is_file()


# ------------------------------------------------------------------------------------------ commands


def test_make_without_a_target_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None

    answer = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)

    listed = re.findall(r"^  ([\w-]+) +\S", answer.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony.group(1).split())


def test_makefile_asks_for_stages_that_the_setup_script_has() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    script = (ROOT / "scripts/setup").read_text(encoding="utf-8")
    stages = re.search(r"case \$stage in\n    ([\w |]+)\) ;;", script)
    assert stages is not None

    assert set(re.findall(r"scripts/setup (\w+)", makefile)) <= set(stages.group(1).split(" | "))


def test_setup_script_installs_every_extra() -> None:
    script = (ROOT / "scripts/setup").read_text(encoding="utf-8")
    extras = re.search(r"^extras=(.*)$", script, re.MULTILINE)
    assert extras is not None

    assert sorted(extras.group(1).split(",")) == sorted(EXTRAS)


def test_ci_can_be_run_and_does_both() -> None:
    script = ROOT / ".ci/run"

    assert os.access(script, os.X_OK)
    assert re.findall(r"^step \w+ (.*)$", script.read_text(encoding="utf-8"), re.MULTILINE) == [
        "make setup",
        "make check",
        "make test",
    ]


@pytest.mark.parametrize("failing", ["check", "test"])
def test_ci_fails_when_a_step_does_and_still_runs_the_other(tmp_path: Path, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_bytes((ROOT / ".ci/run").read_bytes())
    # 5 is what pytest says when there was no test at all.
    codes = {"setup": 0, "check": 0, "test": 0, failing: 5}
    (tmp_path / "Makefile").write_text(
        "".join(f"{name}:\n\t@echo ran {name}; exit {code}\n" for name, code in codes.items())
    )

    answer = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert answer.returncode == 1
    assert "ran check" in answer.stdout
    assert "ran test" in answer.stdout
    assert re.search(rf"{failing} +\d+ s  FAILED", answer.stdout)


def test_readme_starts_with_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert "make run" in readme
    assert "make test" in readme


def _bounds(requirement: Requirement) -> str:
    # In the order in which people write them: the lower bound first.
    return ",".join(sorted(str(requirement.specifier).split(","), key=lambda bound: bound[0] == "<"))

"""The files around the package agree with each other: metadata, pinned versions, documents, commands."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kpipe_platform

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
CONSTRAINTS = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[0] != "#"]

# Written so that they don't find themselves here.
ADDRESSES = re.compile(
    r"pypi[.]org|pythonhosted[.]org|repo1?[.]maven|maven[.]org|npmjs[.]org|crates[.]io|deb[.]debian[.]org"
    r"|proxy[.]golang[.]org|index-[u]rl[ =]|extra-[i]ndex",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"/[w]ork/(main|shared)\b|/[r]oot/|/[h]ome/(?!someone)[a-z]+/|/[U]sers/(?!someone)|[.]pyenv")


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pinned(python: str) -> dict[str, str]:
    """Package -> version that constraints.txt gives for one version of Python."""
    versions: dict[str, str] = {}
    for line in CONSTRAINTS:
        assert re.fullmatch(r'[A-Za-z0-9._-]+==[A-Za-z0-9.]+( ; python_version (>=|<) "3\.\d+")?', line)
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} has two versions for Python {python}"
            versions[name] = str(requirement.specifier).removeprefix("==")
    return versions


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_dependencies_are_pinned_within_their_bounds(python: str) -> None:
    versions = pinned(python)

    for requirement in REQUIREMENTS:
        assert any(bound.operator in ("<", "<=", "==", "~=") for bound in requirement.specifier), requirement
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"
    # scripts/setup installs it.
    assert "uv" in versions


def test_documented_dependencies_are_those_of_the_metadata_and_have_a_reason() -> None:
    documented = {}
    for line in text_of("docs/reference/dependencies.md").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) in (3, 4) and re.match(r"[<>=~]=?\d", cells[1]):
            assert len(cells[-1]) > 4, f"{cells[0]} has no reason"
            documented[canonicalize_name(cells[0])] = (cells[1], cells[2] if len(cells) == 4 else "")

    def bounds(requirement: Requirement) -> str:
        # In the order in which people write them: the lower bound first.
        return ",".join(sorted(str(requirement.specifier).split(","), key=lambda bound: bound[0] == "<"))

    def name(requirement: Requirement) -> str:
        # With the extras of the other package, which may be here under two names.
        return canonicalize_name(requirement.name) + "".join(f"[{each}]" for each in sorted(requirement.extras))

    assert documented == {
        name(requirement): (bounds(requirement), extra)
        for extra, lines in {"": PROJECT["dependencies"], **EXTRAS}.items()
        for requirement in map(Requirement, lines)
    }


def test_no_file_is_a_lock_file_or_holds_an_address_of_a_registry_or_a_path_of_one_machine() -> None:
    names = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    paths = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1)
        if ADDRESSES.search(line) or MACHINE_PATHS.search(line)
    ]

    assert found == []
    assert {path.name for path in paths} & {
        "uv.lock",
        "poetry.lock",
        "Pipfile.lock",
        "pdm.lock",
        "pylock.toml",
    } == set()


def test_version_is_the_same_everywhere() -> None:
    assert kpipe_platform.__version__ == PROJECT["version"]
    assert importlib.metadata.version("kpipe-platform") == PROJECT["version"]
    assert re.search(rf"^## \[(Unreleased|{PROJECT['version']})\]", text_of("CHANGELOG.md"), re.MULTILINE)
    assert (ROOT / "kpipe_platform/py.typed").is_file()


def test_commands_of_the_pages_and_of_ci_are_targets_that_make_lists() -> None:
    targets = set(re.findall(r"^  ([\w-]+) +\S", output_of("make"), re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", text_of("Makefile"), re.MULTILINE)
    assert phony is not None
    assert targets == set(phony.group(1).split())
    pages = "\n".join(text_of(str(page)) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    used = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", f"{pages}\n", re.MULTILINE))
    in_ci = re.findall(r"^step \w+ make ([\w-]+)", text_of(".ci/run"), re.MULTILINE)
    assert {"run", "test"} <= used <= targets
    assert {"setup", "check", "test"} <= set(in_ci) <= targets


@pytest.mark.parametrize("failing", ["check", "test"])
def test_ci_fails_when_a_step_does_and_still_runs_the_other(tmp_path: Path, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_text(text_of(".ci/run"), encoding="utf-8")
    # 5 is what pytest says when there was no test at all.
    rules = (f"{name}:\n\t@echo ran {name}; exit {5 if name == failing else 0}\n" for name in ("check", "test"))
    (tmp_path / "Makefile").write_text("".join(rules) + "%:\n\t@true\n", encoding="utf-8")

    answer = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert answer.returncode != 0
    assert "ran check" in answer.stdout
    assert "ran test" in answer.stdout


def test_setup_script_has_every_stage_and_installs_every_extra() -> None:
    script = text_of("scripts/setup")
    extras = re.search(r"^extras=(.*)$", script, re.MULTILINE)
    stages = re.search(r"case \$stage in ([\w |]+)\) ;;", script)
    assert extras is not None
    assert stages is not None
    assert sorted(extras.group(1).split(",")) == sorted(EXTRAS)
    assert set(re.findall(r"scripts/setup (\w+)", text_of("Makefile"))) <= set(stages.group(1).split(" | "))


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports for type checkers count too: a circle of them shows that two modules are one."""
    graph = grimp.build_graph("kpipe_platform", exclude_type_checking_imports=False, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # a CycleError names the circle


def test_folders_are_small() -> None:
    """About a dozen modules: a folder's listing says where a line belongs."""
    folders = {path.parent for path in (ROOT / "kpipe_platform").rglob("*.py")}
    large = {str(folder): count for folder in folders if (count := len(list(folder.glob("*.py")))) > 14}
    assert large == {}


def test_the_architecture_page_names_modules_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| where is | module |") : page.index("## One materialization")]
    named = re.findall(r"`([a-z_/]+)`", table)
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / "kpipe_platform" / f"{name}.py").is_file()] == []

"""No module of these rooms imports another one in a circle, not even for type checkers only."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import kpipe_platform

ROOT = Path(kpipe_platform.__file__).parent
ROOMS = ("slices", "io_managers")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def imports() -> dict[str, set[str]]:
    """What each module imports, wherever in the file."""
    files = {name_of(path): path for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        named = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
        found[name] = (named | {str(node.module) for node in froms}) & files.keys() - {name}
    return found


def test_no_circles() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise AssertionError(circle) from None

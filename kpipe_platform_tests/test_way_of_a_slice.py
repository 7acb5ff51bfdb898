"""The way of a slice: which modules one warm materialization enters, and in which order.

docs/architecture.md shows it, made by this test: ``KPIPE_WRITE_ARCHITECTURE=1 pytest <this file>`` writes it again.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kpipe_platform
from kpipe_platform.spark.sink import job
from kpipe_platform.spark.sink.spec import WriterSpec
from kpipe_platform.spark.sink.task.writer import run_writer
from kpipe_platform_tests.io_managers.conftest import Orders, instance, make_orders, order, orders

__all__ = ["instance", "make_orders", "orders"]

pytestmark = [pytest.mark.broker, pytest.mark.spark]

_PACKAGE = Path(kpipe_platform.__file__).parent
_PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
_BEGIN, _END = "<!-- way of a slice: begin -->\n", "<!-- way of a slice: end -->\n"
_ROOMS = ("io_managers/", "slices/")
_ENDS = ("io_managers/deferred", "io_managers/metadata")
_NO_STEP = {"slices/run/workers"}
"""Entered again for each piece of work that the run gives to its threads."""
_WRITER = ("spark/sink/task/", "kafka/transactions/")
"""The rooms that are drawn of what runs in the Spark task that writes the slice."""


class Way:
    """The modules of the package that are entered, in order.

    A module is entered when one of its functions is called while no thread is inside of it. To make an object is not
    to enter.
    """

    def __init__(self) -> None:
        self.entered: list[str] = []
        self._inside: Counter[str] = Counter()
        self._stacks: defaultdict[int, list[str | None]] = defaultdict(list)
        self._names: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        with self._lock:
            stack = self._stacks[threading.get_ident()]
            if event == "return":
                name = stack.pop() if stack else None
                if name is not None:
                    self._inside[name] -= 1
                return
            name = None if _makes_object(frame) else self._name(frame.f_code.co_filename)
            stack.append(name)
            if name is not None:
                if not self._inside[name]:
                    self.entered.append(name)
                self._inside[name] += 1

    def _name(self, file: str) -> str | None:
        if file not in self._names:
            path = Path(file)
            ours = path.is_relative_to(_PACKAGE)
            self._names[file] = path.relative_to(_PACKAGE).with_suffix("").as_posix() if ours else None
        return self._names[file]

    @property
    def modules(self) -> list[str]:
        """Each once, in order of the first entry."""
        return list(dict.fromkeys(self.entered))


def _makes_object(frame: FrameType) -> bool:
    """Whether it is an ``__init__``, or a comprehension in one."""
    caller = frame.f_back
    inside = caller is not None and caller.f_code.co_filename == frame.f_code.co_filename
    return "__init__" in (frame.f_code.co_name, caller.f_code.co_name if inside and caller else "")


@contextmanager
def followed() -> Iterator[Way]:
    way = Way()
    threading.setprofile(way.profile)
    sys.setprofile(way.profile)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def follow_writer(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Write the modules that the writer's Spark task enters to a file, because it runs in a process of its own."""

    def writer(spec: WriterSpec) -> Any:
        def write(batches: Iterator[Any]) -> Iterator[Any]:
            with followed() as way:
                yield from list(run_writer(spec, batches))
            file.write_text("\n".join(way.modules), encoding="utf-8")

        return write

    monkeypatch.setattr(job, "_writer", writer)


def shown(modules: list[str], writer: list[str]) -> str:
    """The way as the page has it: a picture and a list.

    Args:
        modules: What the run enters.
        writer: What the writer's Spark task enters.
    """
    steps = [name for name in modules if name.startswith(_ROOMS)]
    drawn = [name for name in steps if name.startswith("slices/") or name in _ENDS]
    nodes = [f's{number}["{name}"]' for number, name in enumerate(drawn, 1)]
    tasks = [name for name in writer if name.startswith(_WRITER)]
    inside = [f'w{number}["{name}"]' for number, name in enumerate(tasks, 1)]
    before, after = (f"s{drawn.index(name) + 1}" for name in ("slices/write/spec", "slices/write/commit"))
    lines = ["```mermaid", "flowchart TD", *(f"  {a} --> {b}" for a, b in pairwise(nodes))]
    lines += [
        "  subgraph task[the Spark task that writes the slice]",
        *(f"    {a} --> {b}" for a, b in pairwise(inside)),
    ]
    lines += ["  end", f"  {before} -. Spark job .-> w1", f"  w{len(tasks)} -. outcome .-> {after}", "```", ""]
    lines += [f"{number}. `{name}`: {_first_line(name)}" for number, name in enumerate(steps, 1)]
    lines += ["", "In the Spark task that writes the slice, between `slices/write/spec` and `slices/write/commit`:", ""]
    lines += [f"{number}. `{name}`: {_first_line(name)}" for number, name in enumerate(tasks, 1)]
    below: defaultdict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys([*modules, *(name for name in writer if name not in tasks)]):
        if not name.startswith(_ROOMS):
            room, _, module = name.partition("/")
            below[room].append(module)
    lines += ["", "What they call, by room:", ""]
    lines += [f"- `{room}/`: {', '.join(sorted(found))}" for room, found in sorted(below.items())]
    return "\n".join(lines) + "\n"


def _first_line(name: str) -> str:
    text = ast.get_docstring(ast.parse((_PACKAGE / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0].replace("``", "`")


def test_the_page_shows_the_way_of_a_slice(orders: Orders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writer = tmp_path / "writer.txt"
    follow_writer(monkeypatch, writer)
    asset = orders.asset()
    for _ in range(2):
        orders.send(*(order(number) for number in range(20)))
        with followed() as way:
            orders.run(asset)
    times = Counter(name for name in way.entered if name.startswith("slices/") and name not in _NO_STEP)
    assert set(times.values()) == {1}, f"a slice comes back to a step that it has left: {times}"
    before, begin, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    now, end, after = rest.partition(_END)
    assert begin, f"{_PAGE.name} lacks the marker {_BEGIN}"
    assert end, f"{_PAGE.name} lacks the marker {_END}"
    made = shown(way.modules, writer.read_text(encoding="utf-8").splitlines())
    if os.environ.get("KPIPE_WRITE_ARCHITECTURE"):
        _PAGE.write_text(f"{before}{begin}{made}{end}{after}", encoding="utf-8")
    elif now != made:
        pytest.fail(f"{_PAGE.name} is stale; write it again: KPIPE_WRITE_ARCHITECTURE=1 pytest {Path(__file__).name}")

"""The order of the suite's files: the slowest first, by measured seconds."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TIMINGS = Path(__file__).with_name("timings.json")
# A file without a measurement, seconds.
_UNKNOWN_S = 20.0


@functools.cache
def uses_spark(path: Path) -> bool:
    """Whether a file's tests start Spark: by their mark, or by the fixture that needs it (in examples)."""
    text = path.read_text(encoding="utf-8")
    return "mark.spark" in text or "kafka_io_manager" in text


def slowest_first(items: list[pytest.Item]) -> None:
    """Sort the files by their measured seconds, the slowest first; the order inside a file stays."""
    seconds = json.loads(TIMINGS.read_text(encoding="utf-8")) if TIMINGS.exists() else {}

    def key(item: pytest.Item) -> tuple[float, str]:
        name = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else item.path.name
        return -seconds.get(name, _UNKNOWN_S), name

    items.sort(key=key)

"""The cases, in the order in which they run."""

from __future__ import annotations

from benchmarks.cases.json_1p import Json1p
from benchmarks.measure import Case

CASES: tuple[Case, ...] = (Json1p(),)

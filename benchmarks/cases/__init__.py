"""The cases, in the order in which they run."""

from __future__ import annotations

from benchmarks.cases.at_least_once_4p import AtLeastOnce4p
from benchmarks.cases.json_1p import Json1p
from benchmarks.cases.json_1p_loop import Json1pLoop
from benchmarks.cases.json_4p import Json4p
from benchmarks.cases.one_record import OneRecord
from benchmarks.cases.raw import Headers, Raw
from benchmarks.cases.slice_growth import SliceGrowth
from benchmarks.cases.tick_1000 import Tick1000
from benchmarks.cases.warm_cold import WarmCold
from benchmarks.measure import Case

# The sizes of slices come after two cases that leave Spark's Python workers alone for a minute, which ends them.
CASES: tuple[Case, ...] = (
    Json1p(),
    Json4p(),
    Raw(1),
    Raw(4),
    Headers(),
    Json1pLoop(),
    AtLeastOnce4p(),
    OneRecord(),
    WarmCold(),
    Tick1000(),
    SliceGrowth(),
)

"""What a code location costs before anything runs: its imports, and its assets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.fresh import answer_of
from benchmarks.locations import topics_of
from benchmarks.measure import Bench, Contest, Problems, Ratio, Run
from benchmarks.topics import Sources


class Load:
    """The figure ``load_1000``: seconds of a process that loads assets of kpipe, over one with Dagster's alone.

    Args:
        assets: Number of assets; there is one topic for every ten.
    """

    full_only = True

    def __init__(self, assets: int) -> None:
        self.name = f"load_{assets}"
        self.title = f"time to load a code location of {assets:,} Kafka assets, over {assets:,} plain ones"
        self._assets = assets

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        del sources  # nothing runs
        yield Contest(
            self.name,
            (
                Location("kafka_assets", self._assets),
                Location("plain_assets", self._assets),
            ),
            (Ratio(self.name, "kafka_assets", "plain_assets", of="time", better="smaller"),),
            bench.turns,
            bench.short_warm_up,
            unit="assets",
            figures={"whole_s": lambda rate: self._assets / rate},
        )


class Location:
    """A new Python process that loads a module of ``benchmarks/locations``.

    The time is from before its start to when everything is loaded.

    Args:
        name: Key in the report, and the module.
        assets: How many it has.
    """

    def __init__(self, name: str, assets: int) -> None:
        self.name = name
        self._assets = assets

    def run(self, turn: int) -> Run:
        del turn  # nothing is written
        began = time.time()
        found = answer_of("-m", "benchmarks.locations", self.name, str(self._assets))
        return Run(found["finished"] - began, self._assets, lambda: self._problems(found), found["steps"])

    def _problems(self, found: Mapping[str, Any]) -> Problems:
        expected = {
            "assets": sorted(f"copied_{number}" for number in range(self._assets)),
            "topics": sorted(f"orders_{number}/orders" for number in range(topics_of(self._assets))),
        }
        return [
            f"{name}: the {len(found[name]):,} loaded ones are not the {len(keys):,} expected ones"
            for name, keys in expected.items()
            if found[name] != keys
        ]


_IMPORTS = """
import json, time
import dagster
began = time.perf_counter()
import kpipe_platform
imported = time.perf_counter()
found = [getattr(kpipe_platform, name) is not None for name in kpipe_platform.__all__]
used = time.perf_counter()
print(json.dumps({"import_s": imported - began, "all_names_s": used - began, "names": sum(found)}))
"""


class ImportKpipe:
    """Absolute figures alone: what ``import kpipe_platform`` takes after ``import dagster``, in new processes."""

    name = "import_kpipe"
    title = "seconds of import kpipe_platform beyond import dagster"
    full_only = True

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        del sources  # nothing runs
        yield Contest(self.name, (Import(),), (), bench.turns, bench.short_warm_up, unit="imports")


class Import:
    """A new Python process that imports the package, and then asks for each of its public names.

    Names load when they are first used, so both are measured: ``import_s`` of the statement, and ``all_names_s`` with
    every name, Spark's Python packages and all.
    """

    name = "kpipe_platform"

    def run(self, turn: int) -> Run:
        del turn  # nothing is written
        found = answer_of("-c", _IMPORTS)
        figures = {figure: float(found[figure]) for figure in ("import_s", "all_names_s")}
        return Run(figures["import_s"], 1, lambda: self._problems(found["names"]), figures=figures)

    @staticmethod
    def _problems(names: int) -> Problems:
        import kpipe_platform

        expected = len(kpipe_platform.__all__)
        return [] if names == expected else [f"{names} names can be imported, expected {expected}"]

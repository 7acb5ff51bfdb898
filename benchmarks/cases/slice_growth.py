"""Slices of several sizes: the time a record stays the same, and so does the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.topics import Sources, filled
from benchmarks.work import JsonEnrich


class SliceGrowth:
    """The figure ``slice_growth``: time a record of the largest slice over that of the next smaller one.

    In full size, the slices have ten times, once, a tenth and a hundredth of the records of the other cases; in a quick
    run, once and a quarter.
    """

    name = "slice_growth"
    title = "time a record of a large slice, over a smaller one"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        records, servers = bench.records, bench.bootstrap_servers
        shares = (0.25, 1) if bench.quick else (0.01, 0.1, 1, 10)
        sizes = [int(records * share) for share in shares]
        with filled(servers, Orders(sizes[-1])) as source:
            engine = bench.engine()
            # From small to large: Spark's Python workers serve several runs and keep the memory of the largest.
            contestants = [
                Kpipe(str(size), JsonEnrich(servers, source, Orders(size)), engine, max_records=size, memory=True)
                for size in sizes
            ]
            ratio = Ratio("slice_growth", str(sizes[-1]), str(sizes[-2]), of="time", better="smaller")
            # Warm-up turns would take ten times the records too, and leave their memory.
            for turn in range(bench.short_warm_up):
                contestants[0].run(-1 - turn).problems()
            figures = {"us_per_record": lambda rate: 1e6 / rate}
            yield Contest(self.name, contestants, (ratio,), bench.turns, 0, figures=figures)

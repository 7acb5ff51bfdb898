"""One run of a range of partitions, compared with one run for each partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.topics import Sources, filled
from benchmarks.work import JsonEnrich


class RangeRun:
    """The figure ``range_100``: seconds of the one over seconds of the hundred, so smaller is better.

    Args:
        partitions: Partitions of the source and of the output.
    """

    full_only = True

    def __init__(self, partitions: int) -> None:
        self.name = f"range_{partitions}"
        self.title = f"time of one run of {partitions} partitions, over {partitions} runs of one"
        self._partitions = partitions

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        del sources  # no other case has so many partitions
        # Few: what is looked at is what a partition costs, not what a record does.
        orders = Orders(max(self._partitions, bench.records // 100))
        servers = bench.bootstrap_servers
        with filled(servers, orders, partitions=self._partitions) as source:
            engine, work = bench.engine(), JsonEnrich(servers, source, orders, self._partitions)
            partitions_a_record = self._partitions / orders.count
            yield Contest(
                self.name,
                (Kpipe("one_run", work, engine, layout="range"), Kpipe("run_each", work, engine, layout="each")),
                (Ratio(self.name, "one_run", "run_each", of="time", better="smaller"),),
                bench.turns,
                # It takes its time, and the code is that of the cases before.
                0,
                figures={"s_per_partition": lambda rate: 1 / (rate * partitions_a_record)},
            )

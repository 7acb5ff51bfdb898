"""Raw copies, where nothing is decoded: what is left is the reading and the writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kpipe_platform as kp
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import filled
from benchmarks.work import RawCopy


class Raw:
    """The figures ``raw_1p`` and ``raw_4p``.

    Args:
        partitions: Partitions of the source and of the output.
    """

    def __init__(self, partitions: int) -> None:
        self.name = f"raw_{partitions}p"
        self.title = f"raw copy, {partitions} {'partition' if partitions == 1 else 'partitions'}, "
        self.title += "over Structured Streaming"
        self._partitions = partitions

    @contextmanager
    def open(self, bench: Bench) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        with filled(servers, orders, partitions=self._partitions) as source:
            engine, work = kp.SparkEngine(), RawCopy(servers, source, orders, self._partitions)
            yield Contest(
                self.name,
                (
                    Kpipe("kpipe", work, engine),
                    StructuredStreaming("structured_streaming", work, engine.spark_session),
                ),
                (Ratio(self.name, "kpipe", "structured_streaming"),),
                bench.turns,
                bench.short_warm_up,
            )


class Headers:
    """The figure ``headers``: records with two headers, which are copied too, over records without."""

    name = "headers"
    title = "raw copy with two headers a record, over without"

    @contextmanager
    def open(self, bench: Bench) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        with filled(servers, orders) as bare, filled(servers, orders, headers=True) as full:
            engine = kp.SparkEngine()
            yield Contest(
                self.name,
                (
                    Kpipe("without_headers", RawCopy(servers, bare, orders), engine),
                    Kpipe("with_headers", RawCopy(servers, full, orders, headers=True), engine),
                ),
                (Ratio("headers", "with_headers", "without_headers"),),
                bench.turns,
                bench.short_warm_up,
            )

"""The limit of the brokers: a raw copy, compared with Kafka's own performance tools."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.perf_tools import ConsumerTool, ProducerTool
from benchmarks.topics import Sources, filled
from benchmarks.work import RawCopy

# The consumer's tool takes so many times the records of the other cases, most of them after its JVM has compiled.
_TIMES_READ = 4


class Limit:
    """The figures ``raw_1p_of_writing`` and ``raw_1p_of_reading``.

    A copy reads and writes, and each of the tools does one of the two and nothing else: what they reach is a limit.
    """

    name = "limit"
    title = "raw copy, 1 partition, over Kafka's own tools that write alone and read alone"
    full_only = True

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, more, servers = Orders(bench.records), Orders(_TIMES_READ * bench.records), bench.bootstrap_servers
        kpipe = Kpipe("kpipe", RawCopy(servers, sources.topic(orders), orders), bench.engine())
        writer, reader = ProducerTool.name, ConsumerTool.name
        with filled(servers, more) as longer, tempfile.TemporaryDirectory(prefix="kpipe-bench-") as folder:
            # The tools are new processes each time, and have nothing of a warm-up turn.
            for turn in range(bench.warm_up_turns):
                kpipe.run(-1 - turn).problems()
            yield Contest(
                self.name,
                (
                    kpipe,
                    ProducerTool(servers, orders, Path(folder)),
                    ConsumerTool(servers, longer, more),
                ),
                (Ratio("raw_1p_of_writing", "kpipe", writer), Ratio("raw_1p_of_reading", "kpipe", reader)),
                bench.turns,
                0,
            )

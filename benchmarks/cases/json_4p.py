"""Four partitions of JSON, compared with Structured Streaming, which has a task for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Contestant, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import Sources
from benchmarks.work import JsonEnrich

PARTITIONS = 4


class Json4p:
    """The figure ``json_4p``: an unpartitioned asset, whose slice is of all partitions and goes in one transaction.

    In full size also ``json_4p_range``: a partition-range run, each partition with its own Spark job and
    transaction, several at a time.
    """

    name = "json_4p"
    title = "JSON enrich, 4 partitions, over Structured Streaming"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        source = sources.topic(orders, partitions=PARTITIONS)
        engine, work = bench.engine(), JsonEnrich(servers, source, orders, PARTITIONS)
        contestants: list[Contestant] = [
            Kpipe("kpipe", work, engine),
            StructuredStreaming("structured_streaming", work, engine.spark_session),
        ]
        ratios = [Ratio("json_4p", "kpipe", "structured_streaming")]
        if not bench.quick:
            contestants.append(Kpipe("kpipe_range", work, engine, layout="range"))
            ratios.append(Ratio("json_4p_range", "kpipe_range", "structured_streaming"))
        yield Contest(self.name, contestants, ratios, bench.turns, bench.short_warm_up)

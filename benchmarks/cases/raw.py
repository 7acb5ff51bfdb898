"""Raw copies, where nothing is decoded: what is left is the reading and the writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.handing_over import HandingOver
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Contestant, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import Sources
from benchmarks.work import RawCopy


class Raw:
    """The figures ``raw_1p`` and ``raw_4p``; for one partition also ``headers``, and in full size two more.

    ``headers`` is kpipe's copy of records with two headers, which are copied too, over that of records without;
    ``headers_handed_over`` the same of Spark alone, which hands the records to Python, where nothing becomes of them.
    ``raw_1p_with_headers`` is kpipe's copy with headers over that of Structured Streaming, with the same headers.

    Args:
        partitions: Partitions of the source and of the output.
    """

    full_only = False

    def __init__(self, partitions: int) -> None:
        self.name = f"raw_{partitions}p"
        self.title = f"raw copy, {partitions} {'partition' if partitions == 1 else 'partitions'}, "
        self.title += "over Structured Streaming"
        self._partitions = partitions

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        source = sources.topic(orders, partitions=self._partitions)
        engine, work = bench.engine(), RawCopy(servers, source, orders, self._partitions)
        contestants: list[Contestant] = [
            Kpipe("kpipe", work, engine),
            StructuredStreaming("structured_streaming", work, engine.spark_session),
        ]
        ratios = [Ratio(self.name, "kpipe", "structured_streaming")]
        if self._partitions == 1:
            with_headers = RawCopy(servers, sources.topic(orders, headers=True), orders, headers=True)
            contestants.append(Kpipe("kpipe_with_headers", with_headers, engine))
            ratios.append(Ratio("headers", "kpipe_with_headers", "kpipe"))
            if not bench.quick:
                session = engine.spark_session
                contestants += [
                    StructuredStreaming("structured_streaming_with_headers", with_headers, session),
                    HandingOver("handing_over", work, session),
                    HandingOver("handing_over_with_headers", with_headers, session),
                ]
                ratios += [
                    Ratio("raw_1p_with_headers", "kpipe_with_headers", "structured_streaming_with_headers"),
                    Ratio("headers_handed_over", "handing_over_with_headers", "handing_over"),
                ]
        yield Contest(self.name, contestants, ratios, bench.turns, bench.short_warm_up)

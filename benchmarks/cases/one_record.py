"""The smallest slice: a materialization of one record, compared with one record through Structured Streaming."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import Sources
from benchmarks.work import JsonEnrich


class OneRecord:
    """The figure ``one_record``: seconds over seconds, so smaller is better."""

    name = "one_record"
    title = "time of one record on a warm session, over Structured Streaming"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(1), bench.bootstrap_servers
        source = sources.topic(orders)
        engine, work = bench.engine(), JsonEnrich(servers, source, orders)
        yield Contest(
            self.name,
            (
                Kpipe("kpipe", work, engine),
                StructuredStreaming("structured_streaming", work, engine.spark_session),
            ),
            (Ratio("one_record", "kpipe", "structured_streaming", of="time", better="smaller"),),
            # They take less than a second each, and a hiccup is a large part of that.
            2 * bench.turns,
            bench.warm_up_turns,
        )

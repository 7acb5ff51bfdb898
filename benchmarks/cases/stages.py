"""Stages that do more than compute columns: joins and Python functions, exactly once, with ``_kafka`` kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio
from benchmarks.orders import Orders
from benchmarks.spark_alone import StructuredStreaming
from benchmarks.topics import Sources
from benchmarks.work import JoinOrders, StagedOrders

_SMALL_SLICE = 20_000


class Stage:
    """A figure such as ``join_1p``: records a second over Structured Streaming with the same stage.

    Args:
        name: The case, and its figure.
        what: What the stage does.
        work: The stage.
    """

    full_only = False

    def __init__(self, name: str, what: str, work: type[StagedOrders]) -> None:
        self.name = name
        self.title = f"JSON with {what}, 1 partition, over Structured Streaming"
        self._work = work

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(bench.records), bench.bootstrap_servers
        engine, work = bench.engine(), self._work(servers, sources.topic(orders), orders)
        yield Contest(
            self.name,
            (Kpipe("kpipe", work, engine), StructuredStreaming("structured_streaming", work, engine.spark_session)),
            (Ratio(self.name, "kpipe", "structured_streaming"),),
            bench.turns,
            bench.short_warm_up,
        )


class Slice20k:
    """The figure ``slice_20k``: time of a whole materialization over that of one micro-batch of as many records."""

    name = "slice_20k"
    title = f"time of {_SMALL_SLICE:,} JSON records with a broadcast join, over a micro-batch of Structured Streaming"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(_SMALL_SLICE), bench.bootstrap_servers
        engine, work = bench.engine(), JoinOrders(servers, sources.topic(orders), orders)
        yield Contest(
            self.name,
            (Kpipe("kpipe", work, engine), StructuredStreaming("structured_streaming", work, engine.spark_session)),
            (Ratio(self.name, "kpipe", "structured_streaming", of="time", better="smaller"),),
            # They take a second or two each, and a hiccup is a large part of that.
            2 * bench.turns,
            bench.warm_up_turns,
        )

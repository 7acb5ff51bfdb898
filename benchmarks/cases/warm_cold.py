"""The gain of a warm session: one record in a new process that starts Spark, and one on the running session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import kpipe_platform as kp
from benchmarks.fresh import answer_of
from benchmarks.kpipe import Kpipe
from benchmarks.measure import Bench, Contest, Ratio, Run
from benchmarks.orders import Orders
from benchmarks.topics import Sources
from benchmarks.work import JsonEnrich

_QUICK_TURNS = 1


class WarmCold:
    """The figure ``warm_cold``: cold seconds over warm seconds."""

    name = "warm_cold"
    title = "time of one record with a new process and a new session, over a warm session"
    full_only = False

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        orders, servers = Orders(1), bench.bootstrap_servers
        source = sources.topic(orders)
        work = JsonEnrich(servers, source, orders)
        warm = Kpipe("warm", work, bench.engine())
        # Where this is the only case, its first run starts the session.
        warm.run(-1).problems()
        yield Contest(
            self.name,
            (warm, Cold("cold", work)),
            (Ratio("warm_cold", "cold", "warm", of="time"),),
            # A cold start costs a quarter of a minute, and has nothing to warm up.
            min(bench.turns, _QUICK_TURNS) if bench.quick else bench.turns,
            0,
        )


class Cold:
    """A new Python process, which imports, starts Spark and materializes.

    The time is from before its start to when it has its result; ending Spark is not in it.

    Args:
        name: Key in the report.
        work: What to do, with one partition.
    """

    def __init__(self, name: str, work: JsonEnrich) -> None:
        self.name = name
        self._work = work
        self._kpipe = Kpipe(name, work, kp.SparkEngine())

    def run(self, turn: int) -> Run:
        topics, work = self._kpipe.make_topics(turn), self._work
        source = [work.bootstrap_servers, work.source, str(work.orders.count)]
        began = time.time()
        answer = answer_of("-m", "benchmarks.cold", *source, topics.tag, topics.out, topics.dead_letters)
        return Run(
            answer["finished"] - began, work.orders.count, lambda: self._kpipe.problems(topics, answer["counts"])
        )

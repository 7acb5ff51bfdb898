"""From produce to commit, while one run follows a stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.following import Following
from benchmarks.measure import Bench, Contest
from benchmarks.topics import Sources

_RECORDS_A_S = 200
# Thousands of records have a latency in each turn.
_TURNS = 3


class Latency:
    """Absolute figures alone: see ``Following``.

    Args:
        seconds: How long records come in a turn.
    """

    name = "latency"
    title = f"produce to commit of a run that follows {_RECORDS_A_S} records a second"
    full_only = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @contextmanager
    def open(self, bench: Bench, sources: Sources) -> Iterator[Contest]:
        del sources  # each turn has a stream of its own
        engine = bench.engine()
        following = Following("kpipe", bench.bootstrap_servers, engine, _RECORDS_A_S, self._seconds)
        yield Contest(self.name, (following,), (), min(bench.turns, _TURNS), bench.short_warm_up)

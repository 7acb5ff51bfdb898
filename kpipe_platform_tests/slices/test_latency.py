"""Percentiles in buckets, and timestamps that are read beside the work."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from kpipe_platform.errors import BrokerUnavailableError
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange, Slice
from kpipe_platform.slices.run.latency import CommitLatency, Latencies

SLICE = Slice("g", "run", "s", (PlannedRange(OffsetRange("t", 0, 0, 5), "id", 0, 5, 0),))


def test_percentiles_are_exact_to_two_percent() -> None:
    found = Latencies()
    found.add(range(1, 1_001))
    assert found.count == 1_000
    assert found.percentiles(50)[0] == pytest.approx(500, rel=0.02)
    assert found.percentiles(95)[0] == pytest.approx(950, rel=0.02)
    assert found.percentiles(100)[0] == pytest.approx(1_000, rel=0.02)


def test_none_and_clocks_that_differ() -> None:
    found = Latencies()
    assert found.percentiles(50)[0] is None
    found.add([-30, 0])
    assert found.percentiles(95)[0] == 1


class Reader:
    """Gives timestamps when it is let."""

    def __init__(self, stamps: list[int] | Exception) -> None:
        self.stamps = stamps
        self.may = threading.Event()
        self.asked: list[OffsetRange] = []
        self.closed = False

    def bounds(self, ranges: Iterable[OffsetRange]) -> list[int]:
        self.asked += ranges
        assert self.may.wait(30)
        if isinstance(self.stamps, Exception):
            raise self.stamps
        return self.stamps

    def close(self) -> None:
        self.closed = True


def test_the_commit_counts_not_the_end_of_the_read() -> None:
    reader, now = Reader([900, 950]), [1_000]
    with CommitLatency(reader, now_ms=lambda: now[0]) as latency:  # type: ignore[arg-type]
        reading = latency.planned(SLICE)
        timer = threading.Timer(0.05, lambda: (now.__setitem__(0, 5_000), reader.may.set()))
        timer.start()
        assert latency.committed(reading) == [100, 50]
        timer.join()
    assert reader.asked == [OffsetRange("t", 0, 0, 5)]
    assert reader.closed


def test_a_read_that_fails_costs_the_figure_only() -> None:
    reader = Reader(BrokerUnavailableError("gone"))
    reader.may.set()
    with CommitLatency(reader) as latency:  # type: ignore[arg-type]
        assert latency.committed(latency.planned(SLICE)) == []

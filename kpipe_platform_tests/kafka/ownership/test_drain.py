"""How long a drain waits. The clock is the test's."""

from __future__ import annotations

from typing import Any

import pytest

from kpipe_platform.kafka.model.offsets import Partition
from kpipe_platform.kafka.ownership.drain import drain

P0, P1, P2 = ("t", 0), ("t", 1), ("t", 2)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def drained(clock: Clock, in_flight: Any, **changes: Any) -> tuple[frozenset[Partition], str]:
    options: dict[str, Any] = {"deadline_s": 5.0, "clock": clock, "wait": clock.wait, "why_stop": lambda: None}
    return drain(frozenset({P0, P1}), in_flight, **{**options, **changes})


def test_a_drain_ends_with_the_last_work(clock: Clock) -> None:
    left, _ = drained(clock, lambda asked: {P1} if clock.now < 103 else set())
    assert left == frozenset()
    assert 103 <= clock.now < 103.5


def test_a_drain_ends_at_its_deadline(clock: Clock) -> None:
    left, why = drained(clock, lambda asked: {P1, P2})
    assert left == {P1}, "work on other partitions is none of its business"
    assert why == "work was still in flight after 5 s"
    assert 105 <= clock.now < 105.5


def test_a_drain_that_cannot_tell_waits(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def away(asked: frozenset[Partition]) -> frozenset[Partition]:
        raise RuntimeError("the instance is away")

    assert drained(clock, away)[0] == {P0, P1}
    assert "the instance is away" in caplog.text


def test_a_drain_stops_for_a_reason(clock: Clock) -> None:
    left, why = drained(clock, lambda asked: {P0}, why_stop=lambda: "silent" if clock.now > 101 else None)
    assert (left, why) == ({P0}, "silent")
    assert clock.now < 102


def test_without_anybody_to_ask_nothing_is_waited_for(clock: Clock) -> None:
    assert drained(clock, None)[0] == frozenset()
    assert clock.now == 100.0

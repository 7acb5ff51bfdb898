"""Threads that take turns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kpipe_platform.io_managers.turns import Turns


def nothing() -> None:
    """A run that goes on."""


@pytest.mark.parametrize("at_once", [1, 3])
def test_so_many_work_at_a_time(at_once: int) -> None:
    turns, lock = Turns(at_once), threading.Lock()
    barrier = threading.Barrier(at_once)
    working, most = 0, 0

    def work(_: int) -> None:
        nonlocal working, most
        for _ in range(20):
            with turns.one(nothing):
                with lock:
                    working += 1
                    most = max(most, working)
                with lock:
                    working -= 1

    def meet(_: int) -> None:
        with turns.one(nothing):
            barrier.wait(30)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
        # So many do meet, too.
        list(pool.map(meet, range(at_once)))
    assert 1 <= most <= at_once


def test_who_had_a_turn_stands_behind_those_that_wait() -> None:
    turns = Turns(1)
    order: list[str] = []
    first_holds, second_waits = threading.Event(), threading.Event()

    def greedy() -> None:
        for number in range(2):
            with turns.one(nothing):
                order.append("greedy")
                if number == 0:
                    first_holds.set()
                    assert second_waits.wait(30)

    def patient() -> None:
        assert first_holds.wait(30)
        with turns.one(second_waits.set):
            order.append("patient")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(greedy), pool.submit(patient)]:
            done.result(30)
    assert order == ["greedy", "patient", "greedy"]


def test_a_termination_ends_the_wait_and_takes_no_turn() -> None:
    turns = Turns(1)

    def over() -> None:
        msg = "terminated"
        raise RuntimeError(msg)

    def wait() -> None:
        with turns.one(over):
            pytest.fail("it has no turn")

    with ThreadPoolExecutor(1) as pool, turns.one(nothing):
        waiting = pool.submit(wait)
        with pytest.raises(RuntimeError, match="terminated"):
            waiting.result(30)
    with turns.one(over):
        pass

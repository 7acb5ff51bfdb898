"""Python's garbage collector while ticks are at work."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kpipe_platform.sensors.collector import seldom_collected


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 9)
    yield
    gc.set_threshold(*before)


def test_it_is_seldom_until_the_last_tick_ends() -> None:
    first, second = seldom_collected(), seldom_collected()
    with first:
        second.__enter__()
        assert gc.get_threshold() == (50_000, 10, 9)
    assert gc.get_threshold() == (50_000, 10, 9)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 9)


def test_a_tick_that_fails_leaves_it_as_it_was() -> None:
    with pytest.raises(ValueError, match="its own"), seldom_collected():
        raise ValueError("its own")
    assert gc.get_threshold() == (700, 10, 9)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (60_000, 10, 10)])
def test_what_a_process_chose_stays(chosen: tuple[int, int, int]) -> None:
    gc.set_threshold(*chosen)
    with seldom_collected():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_what_is_set_meanwhile_stays() -> None:
    with seldom_collected():
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)


def test_a_thousand_facts_are_not_looked_at_as_old() -> None:
    gc.collect()
    old = gc.get_stats()[1]["collections"]
    with seldom_collected():
        facts = [[{"partition": [number]}] for number in range(10_000)]
    assert len(facts) == 10_000
    assert gc.get_stats()[1]["collections"] == old

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kpipe_platform.errors import ConfigError, LostRangeError
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.slices import PlannedRange
from kpipe_platform.sensors.tick.decision import Candidate, Failures, Rules, State, decide, state_of

NOW = 10_000.0


def planned(number: int = 0, start: int = 0, end: int = 0, *, cut: int | None = None, **how: Any) -> PlannedRange:
    last = end if cut is None else min(end, start + cut)
    return PlannedRange(OffsetRange("orders", number, start, last), "id", 0, end, how.pop("committed", start), **how)


def candidate(number: int | None = 0, new: int = 0, **how: Any) -> Candidate:
    how.setdefault("ranges", (planned(number or 0, 0, new),))
    return Candidate(number, first_seen_s=how.pop("first_seen_s", NOW), **how)


LOST = PlannedRange(OffsetRange("orders", 0, 50, 50), "id", 50, 50, 10, OffsetRange("orders", 0, 10, 50))
REFUSED = LostRangeError("lost", fix="accept it")


@pytest.mark.parametrize(
    ("found", "rules", "state"),
    [
        (candidate(new=0), Rules(), State.IDLE),
        (candidate(new=1), Rules(), State.DUE),
        (candidate(new=9), Rules(min_records=10), State.WAITING),
        (candidate(new=10), Rules(min_records=10), State.DUE),
        # A slice may be smaller than the minimum: what waits counts, not what one run takes of it.
        (candidate(ranges=(planned(0, 0, 100, cut=5),)), Rules(min_records=50), State.DUE),
        # Over several topics it is what waits in all of them.
        (candidate(ranges=(planned(0, 0, 6), planned(0, 4, 8))), Rules(min_records=10), State.DUE),
        (candidate(new=9, first_seen_s=NOW - 59), Rules(min_records=10, max_wait_s=60), State.WAITING),
        (candidate(new=9, first_seen_s=NOW - 60), Rules(min_records=10, max_wait_s=60), State.DUE),
        (candidate(new=0, first_seen_s=0), Rules(min_records=10, max_wait_s=60), State.IDLE),
        # A run that only stores a start, or only records a loss, does not wait for records.
        (candidate(new=0, new_group=True), Rules(min_records=10), State.DUE),
        (candidate(ranges=(LOST,)), Rules(min_records=10), State.DUE),
        (candidate(new=5, in_flight=True), Rules(), State.IN_FLIGHT),
        (candidate(new=5, paused=True), Rules(), State.PAUSED),
        (candidate(new=5, owned=False), Rules(), State.NOT_OWNED),
        (candidate(ranges=(), problem=REFUSED), Rules(), State.BLOCKED),
        # A problem is its owner's to report, and a run at work is not disturbed.
        (candidate(ranges=(), problem=REFUSED, owned=False), Rules(), State.NOT_OWNED),
        (candidate(ranges=(), problem=REFUSED, in_flight=True), Rules(), State.IN_FLIGHT),
        (candidate(new=5, owned=False, paused=True), Rules(), State.NOT_OWNED),
        (candidate(new=5, failures=Failures(5, 0)), Rules(), State.EXHAUSTED),
        (candidate(new=5, failures=Failures(4, 0)), Rules(), State.DUE),
        (candidate(new=5, failures=Failures(2, 0)), Rules(max_attempts=2), State.EXHAUSTED),
        (candidate(new=0, failures=Failures(5, 0)), Rules(), State.IDLE),
    ],
)
def test_the_state_of_one_partition(found: Candidate, rules: Rules, state: State) -> None:
    assert state_of(found, rules, NOW) is state


@pytest.mark.parametrize(
    ("failures", "delay_s"), [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (6, 900), (7, 900), (5_000, 900)]
)
def test_back_off_doubles_up_to_its_longest(failures: int, delay_s: float) -> None:
    rules = Rules(max_attempts=10_000)
    found = candidate(new=5, failures=Failures(failures, NOW))
    assert state_of(found, rules, NOW + delay_s - 0.1) is State.BACKING_OFF
    assert state_of(found, rules, NOW + delay_s) is State.DUE


def numbers(runs: Sequence[Sequence[Candidate]]) -> list[list[int | None]]:
    return [[c.number for c in run] for run in runs]


ALL = [candidate(n, 1) for n in range(6)]


@pytest.mark.parametrize(
    ("rules", "in_flight", "runs"),
    [
        (Rules(), [], [[0]]),
        (Rules(partitions_at_once=4), [], [[0], [1], [2], [3]]),
        (Rules(partitions_at_once=4, max_runs_per_tick=2), [], [[0], [1]]),
        (Rules(partitions_at_once=10), [], [[0], [1], [2], [3], [4], [5]]),
        (Rules(partitions_at_once=4), [1, 1, 1], [[0]]),
        (Rules(partitions_at_once=4), [1, 1, 1, 1, 1], []),
        (Rules(), [1], []),
        # A run over many partitions works on as many at once as the bound says, and no more.
        (Rules(partitions_per_run=4), [], [[0, 1, 2, 3]]),
        (Rules(partitions_per_run=4, partitions_at_once=8), [], [[0, 1, 2, 3], [4, 5]]),
        (Rules(partitions_per_run=4, partitions_at_once=2), [], [[0, 1, 2, 3]]),
        (Rules(partitions_per_run=4, partitions_at_once=3), [2], [[0]]),
        (Rules(partitions_at_once=2), [500], []),
    ],
)
def test_runs_keep_the_bounds(rules: Rules, in_flight: list[int], runs: list[list[int]]) -> None:
    decision = decide(ALL, rules, NOW, in_flight=in_flight)
    assert numbers(decision.runs) == runs
    asked = set(itertools.chain(*runs))
    assert decision.states == {n: State.REQUESTED if n in asked else State.SATURATED for n in range(6)}


def test_a_run_takes_neighbors_only() -> None:
    found = [candidate(0, 1), candidate(1, 1), candidate(2, 0), candidate(3, 1), candidate(4, 1, paused=True)]
    decision = decide([*found, candidate(5, 1)], Rules(partitions_per_run=10, partitions_at_once=10), NOW)
    assert numbers(decision.runs) == [[0, 1], [3], [5]]
    assert decision.states[2] is State.IDLE
    assert decision.states[4] is State.PAUSED


def test_neighbors_are_those_of_dagster() -> None:
    # Partitions 4 and 5 were registered before the others.
    found = [candidate(n, 1) for n in (4, 5, 0, 1)]
    decision = decide(found, Rules(partitions_per_run=2), NOW)
    assert numbers(decision.runs) == [[4, 5]]


def test_the_turn_goes_round() -> None:
    """With one at a time a partition that always has records would starve the others."""
    after, asked = None, []
    for _ in range(8):
        decision = decide(ALL, Rules(), NOW, after=after)
        after = decision.after
        asked += numbers(decision.runs)[0]
    assert asked == [0, 1, 2, 3, 4, 5, 0, 1]


def test_the_turn_begins_anew_where_its_place_is_gone() -> None:
    assert numbers(decide(ALL, Rules(), NOW, after=99).runs) == [[0]]


def test_a_run_does_not_go_round_the_end() -> None:
    decision = decide(ALL, Rules(partitions_per_run=6, partitions_at_once=6), NOW, after=3)
    assert numbers(decision.runs) == [[4, 5], [0, 1, 2, 3]]


def test_nothing_is_asked_for_under_backpressure() -> None:
    found = [candidate(0, 1), candidate(1, 0), candidate(2, 1, in_flight=True)]
    decision = decide(found, Rules(partitions_at_once=5), NOW, backpressured=True)
    assert decision.runs == ()
    assert decision.states == {0: State.BACKPRESSURED, 1: State.IDLE, 2: State.IN_FLIGHT}
    assert decision.after is None


def test_an_unpartitioned_asset_is_one_candidate() -> None:
    whole = candidate(None, ranges=(planned(0, 0, 2), planned(1, 0, 0)))
    assert numbers(decide([whole], Rules(), NOW).runs) == [[None]]
    assert decide([replace(whole, in_flight=True)], Rules(), NOW).states == {None: State.IN_FLIGHT}


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_records": 0},
        {"partitions_per_run": 0},
        {"partitions_per_run": 1_001},
        {"max_attempts": 0},
        {"max_runs_per_tick": 0},
        {"max_wait_s": 0},
        {"retry_delay_s": 0},
        {"retry_delay_s": 10, "retry_max_delay_s": 5},
    ],
    ids=str,
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        Rules(**wrong)
    assert caught.value.fix

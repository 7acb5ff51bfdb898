"""The search for the records that a stage fails on, without a broker: what it finds and how many calls it makes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpipe_platform.errors import BrokerUnavailableError, DeadLetterLimitError, StageFailedError
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.policies.limits import NO_LIMIT, DeadLetterLimit
from kpipe_platform.slices.search import Part, chance_of, failing_records, refuse_hopeless
from kpipe_platform.spark.causes import Cause

Place = tuple[int, int]
"""Kafka partition and offset."""


def places(part: Part) -> list[Place]:
    return [(r.partition, offset) for r in part for offset in range(r.start, r.end)]


class Stage:
    """Fails on some records, and names those that it failed on."""

    def __init__(self, *poison: int | Place) -> None:
        self.poison = {p if isinstance(p, tuple) else (0, p) for p in poison}
        self.calls: list[Part] = []

    def __call__(self, part: Part) -> StageFailedError | None:
        assert part
        self.calls.append(part)
        return self.failure(part)

    def failure(self, part: Part) -> StageFailedError | None:
        failing = sorted(self.poison & set(places(part)))
        if not failing:
            return None
        cause = Cause("python", "ValueError", f"bad: {failing}")
        return StageFailedError("the stage failed", cause=str(cause), source=cause, isolable=True)

    def search(self, *ranges: OffsetRange) -> list[Place]:
        first = self.failure(ranges)
        assert first is not None
        found = list(failing_records(ranges, self, first))
        for record, error in found:
            # Each record has its own failure, not that of a part with others.
            assert error.cause.endswith(f"bad: {places([record])}")
        return [place for record, _ in found for place in places([record])]


def whole(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("orders", partition, start, end)


@pytest.mark.parametrize("poison", [0, 999, 500, 137])
def test_one_record_of_a_thousand(poison: int) -> None:
    stage = Stage(poison)
    assert stage.search(whole(0, 1000)) == [(0, poison)]
    assert len(stage.calls) <= 2 * math.ceil(math.log2(1000))


def test_scattered_records_cost_little_more_than_the_least_that_any_search_needs() -> None:
    poison = sorted(random.Random(7).sample(range(100_000), 20))
    stage = Stage(*poison)
    assert stage.search(whole(0, 100_000)) == [(0, p) for p in poison]
    least = math.log2(math.comb(100_000, 20))
    assert len(stage.calls) < 1.3 * least


def test_one_record_alone_is_not_called_again() -> None:
    stage = Stage(5)
    assert stage.search(whole(5, 6)) == [(0, 5)]
    assert stage.calls == []


def test_all_records_cost_about_one_call_each() -> None:
    stage = Stage(*range(400))
    assert len(stage.search(whole(0, 400))) == 400
    assert len(stage.calls) < 410


@given(data=st.data())
def test_every_failing_record_is_found_once_and_in_order(data: st.DataObject) -> None:
    spans = data.draw(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=4))
    ranges = [whole(start, start + span, partition) for partition, (start, span) in enumerate(spans)]
    everything = places(ranges)
    if not everything:
        return
    poison = data.draw(st.lists(st.sampled_from(everything), min_size=1, unique=True))
    assert Stage(*poison).search(*ranges) == sorted(poison)


def test_records_that_fail_only_together_are_not_blamed() -> None:
    def fails(part: Part) -> StageFailedError | None:
        if {(0, 2), (0, 6)} <= set(places(part)):
            return StageFailedError("together", cause="together", isolable=True)
        return None

    first = fails([whole(0, 8)])
    assert first is not None
    assert list(failing_records([whole(0, 8)], fails, first)) == []


def test_an_error_that_is_not_the_records_ends_the_search() -> None:
    stage = Stage(1)

    def fails(part: Part) -> StageFailedError | None:
        if len(stage.calls) == 2:
            raise BrokerUnavailableError("away")
        return stage(part)

    first = stage.failure([whole(0, 8)])
    assert first is not None
    with pytest.raises(BrokerUnavailableError):
        list(failing_records([whole(0, 8)], fails, first))


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_stage_is_refused_after_a_few_samples(seed: int) -> None:
    """60% of the records fail and 10% may."""
    chosen = random.Random(seed)
    stage = Stage(*chosen.sample(range(1000), 600))
    samples = [whole(n, n + 1) for n in chosen.sample(range(1000), 20)]
    with pytest.raises(DeadLetterLimitError, match="random sample"):
        refuse_hopeless(samples, stage, DeadLetterLimit(0.1, 10), 1000)


def test_a_sound_stage_costs_eight_samples_and_none_without_a_limit() -> None:
    samples = [whole(n, n + 1) for n in range(20)]
    cases = [(DeadLetterLimit(0.1, 10), 1000, 8), (NO_LIMIT, 1000, 0), (DeadLetterLimit(0.1, 10), 9, 0)]
    for limit, records, calls in cases:
        stage = Stage(999)
        refuse_hopeless(samples, stage, limit, records)
        assert len(stage.calls) == calls


def test_the_chance_is_the_binomial_tail() -> None:
    assert chance_of(0, 5, 0.1) == pytest.approx(1)
    assert chance_of(2, 2, 0.1) == pytest.approx(0.01)
    assert chance_of(1, 3, 0.5) == pytest.approx(1 - 0.5**3)

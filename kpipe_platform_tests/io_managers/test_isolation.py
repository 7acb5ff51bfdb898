"""How a slice is halved, without a broker: which parts are called, in which order, and what stops it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from kpipe_platform.errors import BrokerUnavailableError, DeadLetterLimitError, StageFailedError, TransientError
from kpipe_platform.io_managers.isolation import Isolation, chance_of, refuse_hopeless
from kpipe_platform.io_managers.staged import SliceReport
from kpipe_platform.kafka.offsets import OffsetRange
from kpipe_platform.kafka.slices import PlannedRange, Slice
from kpipe_platform.policies.limits import NO_LIMIT, DeadLetterLimit
from kpipe_platform.spark.causes import Cause


def planned(start: int, end: int, partition: int = 0, committed: int | None = None) -> PlannedRange:
    return PlannedRange(OffsetRange("orders", partition, start, end), "id", 0, end, committed)


def slice_of(*ranges: PlannedRange) -> Slice:
    return Slice("kpipe.enriched", "run", "abc", ranges)


class Log:
    """A group and a stage that fails on some offsets; a part is taken only where the group is."""

    def __init__(self, *poison: int | tuple[int, int]) -> None:
        self.poison = {p if isinstance(p, tuple) else (0, p) for p in poison}
        self.at: dict[int, int | None] = {}
        self.calls: list[str] = []
        self.disposed: list[tuple[int, int]] = []
        self.parts: list[SliceReport] = []

    def stage(self, part: Slice) -> None:
        self.calls.append(str(part))
        places = {(p.range.partition, o) for p in part.ranges for o in range(p.range.start, p.range.end)}
        if places & self.poison:
            cause = Cause("python", "ValueError", "bad")
            raise StageFailedError("the stage failed", cause=str(cause), source=cause, isolable=True)

    def attempt(self, part: Slice) -> SliceReport:
        self.stage(part)
        return self._commit(part)

    def dispose(self, part: Slice, error: StageFailedError) -> SliceReport:
        assert error.source.exception_type == "ValueError"
        self.disposed.append((part.ranges[0].range.partition, part.ranges[0].range.start))
        return self._commit(part)

    def _commit(self, part: Slice) -> SliceReport:
        for p in part.ranges:
            assert self.at.setdefault(p.range.partition, p.committed) == p.committed
            self.at[p.range.partition] = p.range.end
        return SliceReport(part, [])

    def isolate(self, whole: Slice, limit: DeadLetterLimit = NO_LIMIT, records: int = 0, undecoded: int = 0) -> None:
        Isolation(self.attempt, self.dispose, limit, records, undecoded).run(whole, self.parts.append)


@pytest.mark.parametrize("poison", [0, 999, 500, 137])
def test_one_record_of_a_thousand_costs_two_calls_a_halving(poison: int) -> None:
    log = Log(poison)
    log.isolate(slice_of(planned(0, 1000)))
    assert log.disposed == [(0, poison)]
    assert log.at == {0: 1000}
    assert len(log.calls) <= 2 * math.ceil(math.log2(1000))


def test_scattered_records_cost_k_log_n() -> None:
    poison = sorted(random.Random(7).sample(range(100_000), 20))
    log = Log(*poison)
    log.isolate(slice_of(planned(0, 100_000)))
    assert log.disposed == [(0, p) for p in poison]
    assert log.at == {0: 100_000}
    assert len(log.calls) <= 2 * 20 * math.ceil(math.log2(100_000))


def test_all_records() -> None:
    log = Log(*range(8))
    log.isolate(slice_of(planned(0, 8)))
    assert log.disposed == [(0, n) for n in range(8)]


def test_one_record_alone() -> None:
    log = Log(5)
    log.isolate(slice_of(planned(5, 6, committed=5)))
    assert log.disposed == [(0, 5)]
    assert log.at == {0: 6}


def test_parts_keep_the_unit_and_have_names_of_their_own() -> None:
    log = Log(3)
    whole = slice_of(planned(0, 8), planned(0, 4, partition=1))
    log.isolate(whole)
    assert log.at == {0: 8, 1: 4}
    assert {p.slice.transactional_id for p in log.parts} == {whole.transactional_id}
    assert len({p.slice.slice_id for p in log.parts}) == len(log.parts)


def test_partitions_are_shared_out_before_offsets() -> None:
    log = Log((1, 2))
    log.isolate(slice_of(planned(0, 8), planned(0, 4, partition=1)))
    assert log.calls[0] == str(OffsetRange("orders", 0, 0, 8))
    assert log.disposed == [(1, 2)]


def test_a_new_groups_first_part_compares_with_no_offset_and_tells_what_was_lost() -> None:
    lost = OffsetRange("orders", 0, 0, 4)
    first, second = slice_of(replace(planned(4, 8), lost=lost)).halves()
    assert (first.ranges[0].committed, second.ranges[0].committed) == (None, 6)
    assert (first.ranges[0].lost, second.ranges[0].lost) == (lost, None)


def test_fenced_ids_are_fenced_once() -> None:
    first, second = replace(slice_of(planned(0, 8)), fence=("old",)).halves()
    assert (first.fence, second.fence) == (("old",), ())


@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), StageFailedError("a mistake", isolable=False)])
def test_what_is_not_the_records_stops_it_where_it_is(error: TransientError | StageFailedError) -> None:
    log = Log(1)

    def attempt(part: Slice) -> SliceReport:
        if part.ranges[0].range.start >= 4:
            raise error
        return log.attempt(part)

    with pytest.raises(type(error)):
        Isolation(attempt, log.dispose, NO_LIMIT, 0).run(slice_of(planned(0, 8)), log.parts.append)
    assert log.at == {0: 4}
    assert log.disposed == [(0, 1)]


def test_the_limit_counts_over_the_whole_slice_with_what_does_not_decode() -> None:
    log = Log(*range(50, 100))
    with pytest.raises(DeadLetterLimitError, match=r"11 of 100 records .* at most 10\.0% may") as caught:
        log.isolate(slice_of(planned(0, 100)), DeadLetterLimit(0.1, 10), records=100, undecoded=4)
    assert "ValueError: bad" in str(caught.value)
    assert len(log.disposed) == 6


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_stage_is_refused_before_the_first_commit(seed: int) -> None:
    """60% of the records fail and 10% may."""
    chosen = random.Random(seed)
    log = Log(*chosen.sample(range(1000), 600))
    whole = slice_of(planned(0, 1000))
    samples = [whole.single(0, n) for n in chosen.sample(range(1000), 20)]
    with pytest.raises(DeadLetterLimitError, match="tried alone"):
        refuse_hopeless(samples, log.stage, DeadLetterLimit(0.1, 10), 1000)


def test_a_sound_stage_costs_eight_calls() -> None:
    log = Log(999)
    whole = slice_of(planned(0, 1000))
    samples = [whole.single(0, n) for n in range(20)]
    assert refuse_hopeless(samples, log.stage, DeadLetterLimit(0.1, 10), 1000) == 8
    assert refuse_hopeless(samples, log.stage, NO_LIMIT, 1000) == 0
    assert refuse_hopeless(samples, log.stage, DeadLetterLimit(0.1, 10), 9) == 0


def test_the_chance_is_the_binomial_tail() -> None:
    assert chance_of(0, 5, 0.1) == pytest.approx(1)
    assert chance_of(2, 2, 0.1) == pytest.approx(0.01)
    assert chance_of(1, 3, 0.5) == pytest.approx(1 - 0.5**3)

"""Which partitions a tick asks for: pure decisions over facts, with the time passed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.kafka.model.slices import PlannedRange
from kpipe_platform.policies.bounds import is_count, is_positive


class State(str, Enum):
    """Why a partition is asked for, or is not."""

    ASKED = "asked"
    IDLE = "idle"
    """Nothing new."""
    WAITING = "waiting"
    """Fewer records than the minimum, and not for long enough."""
    IN_FLIGHT = "in_flight"
    PAUSED = "paused"
    NOT_OWNED = "not_owned"
    """Another deployment has it."""
    BLOCKED = "blocked"
    """A plan would be refused: somebody has to act."""
    BACKING_OFF = "backing_off"
    """A run for this offset failed, and the next attempt is not due."""
    EXHAUSTED = "exhausted"
    """Every attempt at this offset failed: somebody has to act."""
    SATURATED = "saturated"
    """Due, and as many partitions are worked on as the bounds allow."""
    HELD_BACK = "held_back"
    """Due, and a downstream asset is too far behind."""
    DUE = "due"


@dataclass(frozen=True)
class Failures:
    """Runs that failed at a partition's present offset, with no success since.

    Args:
        count: How many.
        last_s: When the last of them ended, seconds since the epoch.
    """

    count: int = 0
    last_s: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """What a tick knows of one Dagster partition; of all Kafka partitions together for an unpartitioned asset.

    Args:
        number: Kafka partition; None: all of them.
        ranges: What a run would take now, one range a topic and Kafka partition; empty where ``problem`` is set.
        problem: Why a run would be refused.
        in_flight: A run is at work on it, or is queued.
        paused: An operator paused it.
        owned: This deployment has it.
        new_group: A run is needed only to store where the group begins (``start="latest"``).
        failures: Runs that failed at this offset.
        first_seen_s: When its oldest unprocessed offset was first seen, seconds since the epoch.
    """

    number: int | None
    ranges: tuple[PlannedRange, ...] = ()
    problem: KpipeError | None = None
    in_flight: bool = False
    paused: bool = False
    owned: bool = True
    new_group: bool = False
    failures: Failures = Failures()
    first_seen_s: float = 0.0

    @cached_property
    def waiting_offsets(self) -> int:
        """Offsets that wait for a run: an upper bound of the records."""
        return sum(planned.end - planned.range.start for planned in self.ranges)

    @property
    def must_move(self) -> bool:
        """True where a run is due even without a record: to store a start or an expired offset, or to record a loss."""
        return self.new_group or any(planned.lost is not None or planned.resumed for planned in self.ranges)


@dataclass(frozen=True)
class Rules:
    """Bounds of what a tick asks for.

    Args:
        min_records: Offsets that must wait before a partition is asked for.
        max_wait_s: After this long fewer are enough; None: never.
        max_runs_per_tick: Runs that one tick asks for at most; None: as many as the other bounds allow.
        partitions_per_run: Neighbouring partitions that one run may take.
        partitions_at_once: Partitions that may be worked on at the same time.
        max_attempts: Runs for one offset before it is left to an operator.
        retry_delay_s: Wait after the first failure; it doubles with each further one.
        retry_max_delay_s: The longest wait.
    """

    min_records: int = 1
    max_wait_s: float | None = None
    max_runs_per_tick: int | None = None
    partitions_per_run: int = 1
    partitions_at_once: int = 1
    max_attempts: int = 5
    retry_delay_s: float = 30.0
    retry_max_delay_s: float = 900.0

    def __post_init__(self) -> None:
        least = {
            "min_records": self.min_records,
            "partitions_per_run": self.partitions_per_run,
            "max_attempts": self.max_attempts,
            "max_runs_per_tick": 1 if self.max_runs_per_tick is None else self.max_runs_per_tick,
        }
        for name, value in least.items():
            if not is_count(value, 1):
                msg = f"kafka_offset_sensor({name}={value})"
                raise ConfigError(msg, fix="set it to 1 or more")
        if self.partitions_per_run > MAX_PARTITIONS_PER_RUN:
            msg = f"kafka_offset_sensor(partitions_per_run={self.partitions_per_run})"
            raise ConfigError(msg, fix=f"set it to {MAX_PARTITIONS_PER_RUN:,} at most: a run's tags hold each range")
        if self.max_wait_s is not None and not is_positive(self.max_wait_s):
            msg = f"kafka_offset_sensor(max_wait_s={self.max_wait_s})"
            raise ConfigError(msg, fix="set it to more than 0 seconds, or leave it out")
        if not (is_positive(self.retry_max_delay_s) and 0 < self.retry_delay_s <= self.retry_max_delay_s):
            msg = f"kafka_offset_sensor(retry_delay_s={self.retry_delay_s}, retry_max_delay_s={self.retry_max_delay_s})"
            raise ConfigError(msg, fix="set both to more than 0 seconds, the second to no less than the first")

    def retry_at_s(self, failures: Failures) -> float:
        """When the next attempt is due, seconds since the epoch."""
        # Past some 60 doublings the power alone would overflow what a clock can say.
        doubled = self.retry_delay_s * 2.0 ** min(failures.count - 1, 60)
        return failures.last_s + min(doubled, self.retry_max_delay_s)


MAX_PARTITIONS_PER_RUN = 1_000
"""Ranges stand in the run's tags, some 30 characters each."""


@dataclass(frozen=True)
class Decision:
    """What a tick asks for.

    Args:
        runs: The partitions of each run, in Dagster's order.
        states: Why each partition is asked for or is not; by number, None for an unpartitioned asset.
        after: The last partition that was asked for; the next tick begins behind it.
    """

    runs: tuple[tuple[Candidate, ...], ...]
    states: Mapping[int | None, State]
    after: int | None


def state_of(candidate: Candidate, rules: Rules, now_s: float) -> State:
    """What is to be done with one partition, as if there were no others. Pure."""
    if not candidate.owned:
        return State.NOT_OWNED
    if candidate.paused:
        return State.PAUSED
    if candidate.in_flight:
        return State.IN_FLIGHT
    if candidate.problem is not None:
        return State.BLOCKED
    waiting = candidate.waiting_offsets
    if not waiting and not candidate.must_move:
        return State.IDLE
    failures = candidate.failures
    if failures.count >= rules.max_attempts:
        return State.EXHAUSTED
    if failures.count and now_s < rules.retry_at_s(failures):
        return State.BACKING_OFF
    if waiting < rules.min_records and not candidate.must_move:
        waited_s = now_s - candidate.first_seen_s
        if rules.max_wait_s is None or waited_s < rules.max_wait_s:
            return State.WAITING
    return State.DUE


def decide(
    candidates: Sequence[Candidate],
    rules: Rules,
    now_s: float,
    *,
    in_flight: Iterable[int] = (),
    after: int | None = None,
    held_back: bool = False,
) -> Decision:
    """What to ask for. Pure.

    Args:
        candidates: Every partition, in the order of the Dagster partitions: neighbours may share a run.
        rules: The bounds.
        now_s: The time, seconds since the epoch.
        in_flight: Number of partitions of each run that is not finished.
        after: The partition that was asked for last: the turn goes on behind it, so that a busy partition does not
            starve the others where few are worked on at once.
        held_back: A downstream asset is too far behind: nothing is asked for.
    """
    states = {c.number: state_of(c, rules, now_s) for c in candidates}
    # A run over many partitions works on no more of them at once than the bound says.
    free = rules.partitions_at_once - sum(min(size, rules.partitions_at_once) for size in in_flight)
    runs: list[tuple[Candidate, ...]] = []
    for stretch in _stretches(_turn(candidates, after), states):
        left = list(stretch)
        while left:
            if held_back or free <= 0 or len(runs) == rules.max_runs_per_tick:
                states.update({c.number: State.HELD_BACK if held_back else State.SATURATED for c in left})
                break
            # Where all of the bound is free one run may take more partitions than it: it keeps the bound by itself.
            alone = free == rules.partitions_at_once
            size = rules.partitions_per_run if alone else min(rules.partitions_per_run, free)
            taken, left = tuple(left[:size]), left[size:]
            runs.append(taken)
            free -= min(len(taken), rules.partitions_at_once)
            states.update({c.number: State.ASKED for c in taken})
            after = taken[-1].number
    return Decision(tuple(runs), states, after)


def _turn(candidates: Sequence[Candidate], after: int | None) -> list[list[Candidate]]:
    """The candidates behind ``after``, then the others; two lists, for their ends are no neighbours."""
    place = next((n for n, c in enumerate(candidates) if c.number == after), -1) + 1
    return [list(candidates[place:]), list(candidates[:place])]


def _stretches(turn: list[list[Candidate]], states: Mapping[int | None, State]) -> Iterable[list[Candidate]]:
    """Due partitions without one between them that is not."""
    for part in turn:
        stretch: list[Candidate] = []
        for candidate in part:
            if states[candidate.number] is State.DUE:
                stretch.append(candidate)
            elif stretch:
                yield stretch
                stretch = []
        if stretch:
            yield stretch

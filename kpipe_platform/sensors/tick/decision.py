"""Which partitions a tick requests runs for: pure functions of the facts and the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from kpipe_platform.errors import ConfigError, KpipeError
from kpipe_platform.kafka.model.slices import PlannedRange
from kpipe_platform.policies.bounds import is_count, is_positive


class State(str, Enum):
    """Why a run is requested for a partition, or is not."""

    REQUESTED = "requested"
    IDLE = "idle"
    """No new offsets."""
    WAITING = "waiting"
    """The lag is below the minimum, and the maximum wait has not passed."""
    IN_FLIGHT = "in_flight"
    PAUSED = "paused"
    NOT_OWNED = "not_owned"
    """Another deployment owns it."""
    BLOCKED = "blocked"
    """A run could not be planned: operator action needed."""
    BACKING_OFF = "backing_off"
    """A run for this offset failed, and the next attempt is not due yet."""
    EXHAUSTED = "exhausted"
    """Retries for this offset are exhausted: operator action needed."""
    SATURATED = "saturated"
    """Due, but the limit on partitions or runs is reached."""
    BACKPRESSURED = "backpressured"
    """Due, but a downstream asset is too far behind."""
    DUE = "due"


@dataclass(frozen=True)
class Failures:
    """Runs that failed at a partition's current offset, with no success since.

    Args:
        count: Number of failed runs.
        last_s: End of the last failed run, seconds since the epoch.
    """

    count: int = 0
    last_s: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """The facts about one Dagster partition, or about all Kafka partitions of an unpartitioned asset.

    Args:
        number: Kafka partition; None: all of them.
        ranges: The offset ranges that a run would process now, one for each topic and Kafka partition; empty if
            ``problem`` is set.
        problem: Why a run cannot be planned.
        in_flight: Whether an unfinished run, active or queued, processes it.
        paused: Whether an operator paused it.
        owned: Whether this deployment owns it.
        new_group: Whether a run is needed to store the start of a new group (``start="latest"``).
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
        """Number of unprocessed offsets: an upper bound on the number of records."""
        return sum(planned.end - planned.range.start for planned in self.ranges)

    @property
    def must_move(self) -> bool:
        """Whether a run is due even without records: to store a start or an expired offset, or to record a loss."""
        return self.new_group or any(planned.lost is not None or planned.resumed for planned in self.ranges)


@dataclass(frozen=True)
class Rules:
    """Limits on the runs that a tick requests.

    Args:
        min_records: Minimum lag of a partition, in offsets, before a run is requested.
        max_wait_s: Time after which a run is requested for a smaller lag, seconds; None: never.
        max_runs_per_tick: Maximum number of runs that one tick requests; None: only the other limits apply.
        partitions_per_run: Maximum number of adjacent partitions that one run processes.
        partitions_at_once: Maximum number of partitions that are processed at the same time.
        max_attempts: Runs for one offset before the retries are exhausted.
        retry_delay_s: Wait after the first failure, seconds; it doubles with each further failure.
        retry_max_delay_s: Maximum wait after a failure, seconds.
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
                msg = f"kafka_offset_sensor: {name} is {value}, not a whole number of 1 or more"
                raise ConfigError(msg, fix=f"set {name} to 1 or more")
        if self.partitions_per_run > MAX_PARTITIONS_PER_RUN:
            msg = (
                f"kafka_offset_sensor: partitions_per_run is {self.partitions_per_run}, more than the offset ranges "
                "that fit into the tags of a run"
            )
            raise ConfigError(msg, fix=f"set partitions_per_run to {MAX_PARTITIONS_PER_RUN:,} or less")
        if self.max_wait_s is not None and not is_positive(self.max_wait_s):
            msg = f"kafka_offset_sensor: max_wait_s is {self.max_wait_s}, not a finite number above 0"
            raise ConfigError(msg, fix="set max_wait_s to a number of seconds, or omit it")
        if not (is_positive(self.retry_max_delay_s) and 0 < self.retry_delay_s <= self.retry_max_delay_s):
            msg = (
                f"kafka_offset_sensor: retry_delay_s is {self.retry_delay_s} and retry_max_delay_s is "
                f"{self.retry_max_delay_s}; a delay is out of range"
            )
            raise ConfigError(
                msg, fix="set both to more than 0 seconds, and retry_max_delay_s to at least retry_delay_s"
            )

    def retry_at_s(self, failures: Failures) -> float:
        """Return when the next attempt is due, seconds since the epoch."""
        # The exponent is bounded because a large one would overflow a float.
        doubled = self.retry_delay_s * 2.0 ** min(failures.count - 1, 60)
        return failures.last_s + min(doubled, self.retry_max_delay_s)


MAX_PARTITIONS_PER_RUN = 1_000
"""Maximum of ``partitions_per_run``: the run's tags hold every offset range, about 30 characters each."""


@dataclass(frozen=True)
class Decision:
    """The runs that a tick requests.

    Args:
        runs: The partitions of each run, in Dagster's order.
        states: The state of each partition by number; the number is None for an unpartitioned asset.
        after: The last partition that a run was requested for; the next tick starts after it.
    """

    runs: tuple[tuple[Candidate, ...], ...]
    states: Mapping[int | None, State]
    after: int | None


def state_of(candidate: Candidate, rules: Rules, now_s: float) -> State:
    """Return the state of one partition, independently of the others. Pure."""
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
    backpressured: bool = False,
) -> Decision:
    """Decide which runs to request. Pure.

    Args:
        candidates: All partitions, in the order of the Dagster partitions; adjacent partitions may share a run.
        rules: The limits.
        now_s: The current time, seconds since the epoch.
        in_flight: Number of partitions of each unfinished run.
        after: The partition that a run was requested for last. The round robin continues after it, so that a busy
            partition does not starve the others when few are processed at once.
        backpressured: Whether a downstream asset is too far behind; then no run is requested.
    """
    states = {c.number: state_of(c, rules, now_s) for c in candidates}
    # A run over many partitions processes at most `partitions_at_once` of them at the same time.
    free = rules.partitions_at_once - sum(min(size, rules.partitions_at_once) for size in in_flight)
    runs: list[tuple[Candidate, ...]] = []
    for stretch in _stretches(_turn(candidates, after), states):
        left = list(stretch)
        while left:
            if backpressured or free <= 0 or len(runs) == rules.max_runs_per_tick:
                states.update({c.number: State.BACKPRESSURED if backpressured else State.SATURATED for c in left})
                break
            # If nothing is in flight, one run may take more partitions than the limit: the run enforces it internally.
            alone = free == rules.partitions_at_once
            size = rules.partitions_per_run if alone else min(rules.partitions_per_run, free)
            taken, left = tuple(left[:size]), left[size:]
            runs.append(taken)
            free -= min(len(taken), rules.partitions_at_once)
            states.update({c.number: State.REQUESTED for c in taken})
            after = taken[-1].number
    return Decision(tuple(runs), states, after)


def _turn(candidates: Sequence[Candidate], after: int | None) -> list[list[Candidate]]:
    """Return the candidates after ``after``, then the others: two lists, because their ends are not adjacent."""
    place = next((n for n, c in enumerate(candidates) if c.number == after), -1) + 1
    return [list(candidates[place:]), list(candidates[:place])]


def _stretches(turn: list[list[Candidate]], states: Mapping[int | None, State]) -> Iterable[list[Candidate]]:
    """Yield lists of adjacent due partitions."""
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

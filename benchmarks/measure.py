"""Measuring: contestants take turns over the same work, and a figure counts only where the work was done right."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

Problems = list[str]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """One timed run of one contestant.

    Args:
        seconds: Wall time.
        records: Source records that it took.
        problems: Looks at what the run wrote, outside of the timing; what is wrong with it, one text each.
        steps: Seconds by step, where the contestant knows them.
    """

    seconds: float
    records: int
    problems: Callable[[], Problems]
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


class Contestant(Protocol):
    """One way to do a case's work."""

    @property
    def name(self) -> str:
        """Key in the report."""

    def run(self, turn: int) -> Run:
        """Do the whole work once, into topics that no other turn uses."""


@dataclass(frozen=True)
class Ratio:
    """A figure: records a second of one contestant over those of another, in the same turn."""

    key: str
    over: str
    under: str


@dataclass(frozen=True)
class Contest:
    """What a case measures.

    Args:
        name: The case.
        contestants: They take turns.
        ratios: The figures.
        turns: Repetitions that are measured.
        warm_up_turns: Repetitions before, which do not count: the JVM's compiler settles over several runs.
    """

    name: str
    contestants: Sequence[Contestant]
    ratios: Sequence[Ratio]
    turns: int
    warm_up_turns: int


class Case(Protocol):
    """One file of ``benchmarks/cases``."""

    name: str
    title: str

    def open(self, bench: Bench) -> AbstractContextManager[Contest]:
        """Prepare the topics and the contestants; at the end leave nothing behind."""


@dataclass(frozen=True)
class Bench:
    """What every case works with.

    Args:
        bootstrap_servers: The broker.
        records: Source records of a full-size case.
        turns: Repetitions that are measured.
        warm_up_turns: Repetitions before them.
    """

    bootstrap_servers: str
    records: int
    turns: int
    warm_up_turns: int = 2


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of some figures."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), statistics.median(values), max(values))


@dataclass
class Result:
    """What became of a case.

    Args:
        case: Its name.
        ratios: Figures that count.
        rates: Records a second of each turn by contestant.
        steps: Median seconds by step and contestant.
        problems: What was wrong with what a contestant wrote; figures of such contestants are left out of ``ratios``.
    """

    case: str
    ratios: dict[str, Spread] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    problems: dict[str, Problems] = field(default_factory=dict)


def stopwatch() -> Callable[[], float]:
    """Start; each call of the result tells the seconds since."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def measure(contest: Contest, tell: Tell) -> Result:
    """Let the contestants take turns, the order reversed each time, and take the ratios turn by turn.

    Args:
        contest: What to measure.
        tell: Called with a line for each run.
    """
    result = Result(contest.name)
    steps: dict[str, list[Mapping[str, float]]] = {}
    for turn in range(contest.warm_up_turns + contest.turns):
        order = list(contest.contestants)
        if turn % 2:
            order.reverse()
        for contestant in order:
            run = contestant.run(turn)
            found = run.problems()
            result.problems.setdefault(contestant.name, []).extend(f"turn {turn}: {text}" for text in found)
            measured = turn - contest.warm_up_turns + 1
            what = f"turn {measured}/{contest.turns}" if measured > 0 else "warm-up"
            verdict = f"WRONG: {found[0]}" if found else "right"
            tell(f"{contest.name} {what}: {contestant.name} {run.records_per_s:,.0f} records a second, {verdict}")
            if measured > 0:
                result.rates.setdefault(contestant.name, []).append(run.records_per_s)
                steps.setdefault(contestant.name, []).append(run.steps)
    result.problems = {name: problems for name, problems in result.problems.items() if problems}
    result.steps = {name: _medians(runs) for name, runs in steps.items() if runs[0]}
    for ratio in contest.ratios:
        if not result.problems.keys() & {ratio.over, ratio.under}:
            turns = zip(result.rates[ratio.over], result.rates[ratio.under], strict=True)
            result.ratios[ratio.key] = Spread.of([over / under for over, under in turns])
    return result


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {step: statistics.median(run.get(step, 0.0) for run in runs) for step in runs[0]}

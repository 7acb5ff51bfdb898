"""Measuring: contestants take turns over the same work, and a figure counts only where the work was done right."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import kpipe_platform as kp
from benchmarks.topics import Sources

Problems = list[str]
Log = Callable[[str], None]
Better = Literal["bigger", "smaller"]


@dataclass(frozen=True)
class Run:
    """One timed run of one contestant.

    Args:
        seconds: Wall time.
        records: Source records that it took.
        problems: Looks at what the run wrote, outside of the timing; what is wrong with it, one text each.
        steps: Seconds by step, where the contestant knows them.
        extra: Further figures of the run by name, for example MiB of memory.
        figures: What the contestant measures by itself besides its time, by name with the unit, for example ``p50_s``.
    """

    seconds: float
    records: int
    problems: Callable[[], Problems]
    steps: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

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
    """A figure: one contestant over another, in the same turn.

    Args:
        key: Its name in the report.
        over: The contestant above the line.
        under: The one below it.
        of: What is divided: records a second, or time a record.
        better: Which values are the good ones.
    """

    key: str
    over: str
    under: str
    of: Literal["rate", "time"] = "rate"
    better: Better = "bigger"

    def value(self, over_per_s: float, under_per_s: float) -> float:
        """The figure of a turn in which the two did so many records a second."""
        return over_per_s / under_per_s if self.of == "rate" else under_per_s / over_per_s


@dataclass(frozen=True)
class Contest:
    """What a case measures.

    Args:
        name: The case.
        contestants: They take turns.
        ratios: The figures.
        turns: Repetitions that are measured.
        warm_up_turns: Repetitions before, which do not count: the JVM's compiler settles over several runs.
        unit: What is counted a second.
        figures: Absolute figures that follow from a rate, by name with the unit, for example ``us_per_record``.
    """

    name: str
    contestants: Sequence[Contestant]
    ratios: Sequence[Ratio]
    turns: int
    warm_up_turns: int
    unit: str = "records"
    figures: Mapping[str, Callable[[float], float]] = field(default_factory=dict)


class Case(Protocol):
    """What one file of ``benchmarks/cases`` has, one or more.

    Attributes:
        name: Its name, for ``--case``.
        title: What it measures.
        full_only: Whether a quick run omits it, unless it is named.
    """

    name: str
    title: str
    full_only: bool

    def open(self, bench: Bench, sources: Sources) -> AbstractContextManager[Contest]:
        """Prepare the topics and the contestants; at the end leave nothing behind but the topics of ``sources``."""


@dataclass(frozen=True)
class Bench:
    """What every case works with.

    Args:
        bootstrap_servers: The broker.
        records: Source records of a full-size case.
        turns: Repetitions that are measured.
        warm_up_turns: Repetitions before them, in the first case.
        quick: Omit what a quick run does not need.
        first: Whether no case was measured before in this process.
        remote: Address of the Spark Connect server to measure on; None: Spark runs in this process.
    """

    bootstrap_servers: str
    records: int
    turns: int
    warm_up_turns: int = 2
    quick: bool = False
    first: bool = True
    remote: str | None = None

    def engine(self) -> kp.SparkEngine:
        """The warm Spark session that all contestants of a case share."""
        return kp.SparkEngine(remote=self.remote)

    @property
    def short_warm_up(self) -> int:
        """Repetitions before the measured ones in a later case: the compiler has seen most of the code by then.

        None in full size, where what is left to compile is a small part of a turn, and a turn takes half a minute; but
        one where the case is the first.
        """
        return min(self.warm_up_turns, 1) if self.quick or self.first else 0


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
        unit: What is counted a second.
        ratios: Figures that count.
        better: Which of their values are the good ones, by figure.
        rates: Records a second of each turn by contestant.
        steps: Median seconds by step and contestant.
        extra: Further figures by name and contestant, of the first measured turn: later ones find processes that
            keep the memory of the runs before.
        figures: Absolute figures of all measured turns, by contestant and name.
        took_s: Seconds of the whole case, checks and all.
        problems: What was wrong with what a contestant wrote; figures of such contestants are left out of ``ratios``.
    """

    case: str
    unit: str = "records"
    ratios: dict[str, Spread] = field(default_factory=dict)
    better: dict[str, Better] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    figures: dict[str, dict[str, Spread]] = field(default_factory=dict)
    took_s: float = 0.0
    problems: dict[str, Problems] = field(default_factory=dict)


def shown(rate: float) -> str:
    """Format a rate for people: whole numbers, or two decimals if it is small."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:,.2f}"


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since this call."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def measure(contest: Contest, log: Log) -> Result:
    """Let the contestants take turns, the order reversed each time, and take the ratios turn by turn.

    Args:
        contest: What to measure.
        log: Called with a line for each run.
    """
    result = Result(contest.name, contest.unit)
    steps: dict[str, list[Mapping[str, float]]] = {}
    figures: dict[str, list[Mapping[str, float]]] = {}
    for turn in range(contest.warm_up_turns + contest.turns):
        order = list(contest.contestants)
        if turn % 2:
            order.reverse()
        for contestant in order:
            run = contestant.run(turn)
            problems = run.problems()
            result.problems.setdefault(contestant.name, []).extend(f"turn {turn}: {text}" for text in problems)
            measured = turn - contest.warm_up_turns + 1
            what = f"turn {measured}/{contest.turns}" if measured > 0 else "warm-up"
            verdict = f"INVALID: {problems[0]}" if problems else "valid"
            rate = f"{shown(run.records_per_s)} {contest.unit}/s"
            log(f"{contest.name} {what}: {contestant.name} {rate}, {verdict}")
            if measured > 0:
                result.rates.setdefault(contestant.name, []).append(run.records_per_s)
                steps.setdefault(contestant.name, []).append(run.steps)
                derived = {name: figure(run.records_per_s) for name, figure in contest.figures.items()}
                figures.setdefault(contestant.name, []).append({**derived, **run.figures})
            if measured == 1:
                for name, value in run.extra.items():
                    result.extra.setdefault(name, {})[contestant.name] = value
    result.problems = {name: problems for name, problems in result.problems.items() if problems}
    result.steps = {name: _medians(runs) for name, runs in steps.items() if runs[0]}
    # As the ratios, they count only where the records are right.
    result.figures = {
        name: {figure: Spread.of([each[figure] for each in runs]) for figure in runs[0]}
        for name, runs in figures.items()
        if runs[0] and name not in result.problems
    }
    for ratio in contest.ratios:
        if not result.problems.keys() & {ratio.over, ratio.under}:
            turns = zip(result.rates[ratio.over], result.rates[ratio.under], strict=True)
            result.ratios[ratio.key] = Spread.of([ratio.value(over, under) for over, under in turns])
            result.better[ratio.key] = ratio.better
    return result


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {step: statistics.median(run.get(step, 0.0) for run in runs) for step in runs[0]}

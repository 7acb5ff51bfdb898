"""The report of a tick: its log, its skip reason and the summary in the cursor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe_platform.partitions.lost import LostRun
from kpipe_platform.sensors.tick.candidates import WHOLE, Target, place_of
from kpipe_platform.sensors.tick.cursor import Cursor
from kpipe_platform.sensors.tick.decision import Candidate, Decision, State
from kpipe_platform.sensors.tick.growth import Growth
from kpipe_platform.sensors.tick.in_flight import RunInFlight

# Maximum number of problems that one message lists in full; the others are counted.
_MAX_LISTED = 5


@dataclass(frozen=True)
class Problem:
    """A problem that needs operator action.

    Args:
        number: Kafka partition; ``WHOLE`` for an unpartitioned asset.
        what: Name of the problem. The problem is logged once for as long as the name stays the same.
        text: What happened and how to fix it.
    """

    number: int
    what: str
    text: str


def problems_of(
    target: Target, candidates: Sequence[Candidate], decision: Decision, growth: Growth | None
) -> list[Problem]:
    """Return the problems of a tick, in order of partition."""
    found = []
    for c in candidates:
        number = WHOLE if c.number is None else c.number
        state = decision.states[c.number]
        if state is State.BLOCKED and c.problem is not None:
            found.append(Problem(number, type(c.problem).__name__, str(c.problem)))
        elif state is State.EXHAUSTED:
            where = ", ".join(str(planned.range) for planned in c.ranges[:_MAX_LISTED])
            found.append(Problem(number, f"exhausted@{place_of(c.ranges)}", _exhausted(target, c, where)))
    left_out = growth.left_out if growth is not None else ()
    for number in left_out:
        text = (
            f"{target.topics[0]}/{number} has no Dagster partition: the asset has a fixed number of partitions\n"
            "  How to fix: raise count in kafka_partitions(topic, count=...) to the topic's number of partitions, or "
            "omit it to follow the topic"
        )
        found.append(Problem(number, "left out", text))
    return sorted(found, key=lambda problem: problem.number)


def problems_of_runs(running: Sequence[RunInFlight], lost: Sequence[LostRun]) -> list[Problem]:
    """Return a problem for each lost run. A lost run blocks its partitions until an operator releases it."""
    keys = {run.run_id: run.keys for run in running}
    return [Problem(min(map(int, keys[run.run_id]), default=WHOLE), f"lost run {run.run_id}", str(run)) for run in lost]


def _exhausted(target: Target, candidate: Candidate, where: str) -> str:
    return (
        f"{candidate.failures.count} runs of group {target.group} failed at {where}: the sensor requests no more "
        "runs for this offset\n"
        "  How to fix: correct the error that the last run reports, then materialize the partition; or move the "
        "group's offset with kpipe offsets set"
    )


def problem_text(problems: Sequence[Problem]) -> str:
    """Return the first problems in full and the number of the others."""
    return counted([problem.text for problem in problems])


def counted(texts: Sequence[str]) -> str:
    """Return the first texts and the number of further partitions."""
    lines = list(texts[:_MAX_LISTED])
    if len(texts) > _MAX_LISTED:
        lines.append(f"and {len(texts) - _MAX_LISTED:,} more partitions")
    return "\n".join(lines)


def unreported(problems: Sequence[Problem], cursor: Cursor) -> list[Problem]:
    """Return the problems that no earlier tick has logged; none if the cursor is full."""
    if cursor.is_full:
        return []
    return [problem for problem in problems if cursor.reported.get(problem.number) != problem.what]


def summary_of(
    candidates: Sequence[Candidate], decision: Decision, growth: Growth | None, downstream_lag: int | None
) -> dict[str, Any]:
    """Return the numbers of a tick. Their count does not grow with the number of partitions.

    Returns:
        partitions; waiting_offsets; runs (the number of requested runs); the number of partitions in each state; new,
        gone and left_out partitions if there are any; downstream_lag if there is a downstream asset.
    """
    states = Counter(state.value for state in decision.states.values())
    summary: dict[str, Any] = {
        "partitions": len(candidates),
        "waiting_offsets": sum(c.waiting_offsets for c in candidates),
        "runs": len(decision.runs),
        **dict(sorted(states.items())),
    }
    if growth is not None:
        counts = {"new": len(growth.new), "gone": len(growth.gone), "left_out": len(growth.left_out)}
        summary |= {name: count for name, count in counts.items() if count}
    if downstream_lag is not None:
        summary["downstream_lag"] = downstream_lag
    return summary


def shown(summary: Mapping[str, Any]) -> str:
    """Format a summary as one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in summary.items())

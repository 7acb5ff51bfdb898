"""Summary of a run: a table for people and a line for programs."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from examples.flights.run import RunResult


def summary(result: RunResult) -> RenderableType:
    """Return a table of steps with records, seconds and rates, and the reasons for dead letters."""
    table = Table(title="The year of flights" if not result.problems else "The year of flights: problems found")
    table.add_column("step")
    for name in ("records", "seconds", "records/s"):
        table.add_column(name, justify="right")
    for step in result.steps:
        records = "" if step.records is None else f"{step.records:,}"
        rate = "" if not step.rate else f"{step.rate:,.0f}"
        table.add_row(step.name, records, f"{step.seconds:.1f}", rate)
    table.add_section()
    table.add_row("all", f"{result.figures.records:,}", f"{result.seconds:.1f}", "")
    reasons = [
        f"{count:,} dead letters: {kind.replace('_', ' ')} {field or ''}".rstrip()
        for (kind, field), count in sorted(result.figures.reasons.items(), key=lambda item: -item[1])
    ]
    lines = [f"{result.materializations} materializations", *reasons]
    return Group(table, *(Text(line) for line in lines))


def result_line(result: RunResult) -> str:
    """Return the line ``RESULT records=... enriched=... dead_letters=... lost=... duplicated=... seconds=...``."""
    f = result.figures
    return (
        f"RESULT records={f.records} enriched={f.enriched} dead_letters={f.dead_letters} "
        f"lost={f.lost} duplicated={f.duplicated} seconds={result.seconds:.1f}"
    )

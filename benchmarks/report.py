"""What a run found: ``build/bench.json``, a table for the terminal, and one for docs/benchmarks.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Result

BEGIN = "<!-- figures: written by make bench -->"
END = "<!-- end of figures -->"

_NEW_PAGE = f"""# Benchmarks

`make bench` measures kpipe beside what you would pick instead: the same broker, the same records, the same output, one
warm Spark session for both sides. The sides take turns, and each figure is the ratio of records a second within a turn;
1.0 means equally fast. It counts only where the topics hold every record once, in order. `make bench QUICK=1` takes
fewer records; everything it found is in `build/bench.json`.

kpipe's side is a whole materialisation, exactly once and with dead letters; Structured Streaming's is at least once and
leaves out what does not decode.

- `json_1p`: the stage selects columns, so the outputs are the same bytes on both sides.
- `json_1p_with_source`: the stage keeps `_kafka`, so kpipe adds the header `kpipe.source` to each output.
- `json_1p_over_lz4`: as `json_1p`, with Structured Streaming's sink set to lz4 and larger batches, which are kpipe's
  defaults and not Spark's.

{BEGIN}
{END}
"""


def as_json(machine: Mapping[str, Any], settings: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """The content of bench.json.

    Returns:
        ``ratios`` (min, median, max by figure), ``absolute`` (records a second of each turn, by case and contestant),
        ``steps`` (median seconds, likewise), ``problems`` (why a figure is missing), ``machine`` and ``settings``.
    """
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "ratios": {key: _rounded(asdict(spread), 3) for result in results for key, spread in result.ratios.items()},
        "absolute": {
            result.case: {name: [round(rate) for rate in rates] for name, rates in result.rates.items()}
            for result in results
        },
        "steps": {
            result.case: {name: _rounded(steps, 3) for name, steps in result.steps.items()} for result in results
        },
        "problems": {result.case: result.problems for result in results if result.problems},
    }


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """Write bench.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the figures, the rates and the steps."""
    figures = Table("figure", "min", "median", "max", title="Ratios, bigger is better")
    for key, spread in report["ratios"].items():
        figures.add_row(key, *(f"{spread[name]:.2f}" for name in ("min", "median", "max")))
    rates = Table("case", "contestant", "records a second, each turn", "median", title="Absolute")
    for case, contestants in report["absolute"].items():
        for name, each in contestants.items():
            rates.add_row(case, name, " ".join(f"{rate:,}" for rate in each), f"{statistics.median(each):,.0f}")
    steps = Table("case", "contestant", "median seconds by step", title="Where the time goes")
    for case, contestants in report["steps"].items():
        for name, each in contestants.items():
            steps.add_row(case, name, "  ".join(f"{step} {seconds:.2f}" for step, seconds in each.items()))
    for table in (figures, rates, steps):
        console.print(table)
    for case, contestants in report["problems"].items():
        for name, problems in contestants.items():
            console.print(f"[red]{case}: the figures of {name} do not count: {problems[0]}[/red]")


def refresh_page(report: Mapping[str, Any], page: Path) -> None:
    """Put the figures between the markers of docs/benchmarks.md; make the page where there is none.

    Raises:
        ValueError: The page has no markers.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else _NEW_PAGE
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"{page} lacks the markers {BEGIN} and {END}"
        raise ValueError(msg)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{BEGIN}\n\n{_markdown(report)}\n{END}{after}", encoding="utf-8")


def _markdown(report: Mapping[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"{settings['records']:,} records, {settings['turns']} turns, on {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, Python {machine['python']}, Java {machine['java']}, {versions}.",
        "",
        "| figure | min | median | max |",
        "|---|---:|---:|---:|",
        *(
            f"| `{key}` | {spread['min']:.2f} | {spread['median']:.2f} | {spread['max']:.2f} |"
            for key, spread in report["ratios"].items()
        ),
        "",
        "| case | contestant | records a second, median | of the turns |",
        "|---|---|---:|---|",
        *(
            f"| `{case}` | {name} | {statistics.median(rates):,.0f} | {min(rates):,} to {max(rates):,} |"
            for case, contestants in report["absolute"].items()
            for name, rates in contestants.items()
        ),
        "",
        "| case | contestant | seconds by step, median |",
        "|---|---|---|",
        *(
            f"| `{case}` | {name} | {', '.join(f'{step} {seconds:.2f}' for step, seconds in steps.items())} |"
            for case, contestants in report["steps"].items()
            for name, steps in contestants.items()
        ),
        "",
    ]
    return "\n".join(lines)


def _rounded(values: Mapping[str, float], digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in values.items()}

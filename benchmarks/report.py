"""What a run found: ``build/bench.json``, tables for the terminal, and the figures of docs/reference/benchmarks.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.chart import bars
from benchmarks.measure import Result, shown

BEGIN = "<!-- figures: written by make bench -->"
END = "<!-- end of figures -->"

SPREAD = ("min", "median", "max")


def as_json(machine: Mapping[str, Any], settings: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Any]:
    """The content of bench.json.

    Returns:
        ``ratios`` (by figure: min, median, max, ``better``: bigger or smaller, and further figures by
        contestant, for example ``worker_rss_mib``), ``absolute`` (records a second of each turn, by case and
        contestant), ``units`` (what is counted instead of records, by case), ``steps`` (median seconds, by case and
        contestant), ``figures`` (min, median and max of absolute figures, by case, contestant and name with the
        unit), ``took_s`` (seconds by case), ``problems`` (why a figure is missing), ``machine`` and ``settings``.
    """
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "ratios": {key: _ratio(result, key) for result in results for key in result.ratios},
        "absolute": {
            result.case: {name: [_rate(rate) for rate in rates] for name, rates in result.rates.items()}
            for result in results
        },
        "units": {result.case: result.unit for result in results if result.unit != "records"},
        "steps": {
            result.case: {name: _rounded(steps, 3) for name, steps in result.steps.items()}
            for result in results
            if result.steps
        },
        "figures": {
            result.case: {
                name: {figure: _rounded(asdict(spread), 4) for figure, spread in figures.items()}
                for name, figures in result.figures.items()
            }
            for result in results
            if result.figures
        },
        "took_s": {result.case: round(result.took_s, 1) for result in results},
        "problems": {result.case: result.problems for result in results if result.problems},
    }


def _ratio(result: Result, key: str) -> dict[str, Any]:
    extra = {name: _rounded(by_contestant, 1) for name, by_contestant in result.extra.items()}
    return {**_rounded(asdict(result.ratios[key]), 3), "better": result.better[key], **extra}


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """Write bench.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the figures, the rates and the steps."""
    figures = Table("figure", *SPREAD, "better", title="Ratios")
    for key, ratio in report["ratios"].items():
        figures.add_row(key, *(f"{ratio[name]:.2f}" for name in SPREAD), ratio["better"])
    rates = Table("case", "contestant", "per second, each turn", "median", "unit", title="Absolute")
    for case, name, each, unit in _rates(report):
        rates.add_row(case, name, " ".join(map(shown, each)), shown(statistics.median(each)), unit)
    steps = Table("case", "contestant", "median seconds by step", title="Where the time goes")
    for case, name, each in _by_contestant(report["steps"]):
        steps.add_row(case, name, "  ".join(f"{step} {seconds:.2f}" for step, seconds in each.items()))
    extra = Table("ratio", "figure", "by contestant", title="Further figures")
    for key, name, each in _extra(report):
        extra.add_row(key, name, "  ".join(f"{contestant}: {value:,.0f}" for contestant, value in each.items()))
    absolute = Table("case", "contestant", "figure", *SPREAD, title="Absolute figures")
    for case, name, figure, spread in _figures(report):
        absolute.add_row(case, name, figure, *(_figure(spread[each]) for each in SPREAD))
    for table in (figures, rates, absolute, steps, extra):
        if table.row_count:
            console.print(table)
    for case, name, problems in _by_contestant(report["problems"]):
        console.print(f"[red]{case}: the figures of {name} are invalid: {problems[0]}[/red]")


def refresh_page(report: Mapping[str, Any], page: Path) -> None:
    """Put the figures between the markers of docs/reference/benchmarks.md, and their chart in a file next to it.

    Raises:
        ValueError: The page has no markers.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"{page} does not contain the markers {BEGIN} and {END}"
        raise ValueError(msg)
    picture = page.with_suffix(".svg")
    picture.write_text(bars(report["ratios"]), encoding="utf-8")
    page.write_text(f"{before}{BEGIN}\n\n{_markdown(report, picture.name)}\n{END}{after}", encoding="utf-8")


def _markdown(report: Mapping[str, Any], picture: str) -> str:
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"{settings['records']:,} records, {settings['turns']} turns, on {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, Python {machine['python']}, Java {machine['java']}, {versions}.",
        "",
        f"![Ratios, smallest to largest, on a logarithmic scale]({picture})",
        "",
        "| figure | min | median | max | better |",
        "|---|---:|---:|---:|---|",
        *(
            f"| `{key}` | {' | '.join(f'{ratio[name]:.2f}' for name in SPREAD)} | {ratio['better']} |"
            for key, ratio in report["ratios"].items()
        ),
        "",
        "| case | contestant | per second, median | range of the turns | unit |",
        "|---|---|---:|---|---|",
        *(
            f"| `{case}` | {name} | {middle} | {shown(min(each))} to {shown(max(each))} | {unit} |"
            for case, name, each, unit in _rates(report)
            for middle in [shown(statistics.median(each))]
        ),
        "",
    ]
    extra = [
        f"| `{key}` | {name} | {', '.join(f'{contestant}: {value:,.0f}' for contestant, value in each.items())} |"
        for key, name, each in _extra(report)
    ]
    if extra:
        lines += ["| ratio | figure | by contestant |", "|---|---|---|", *extra, ""]
    absolute = [
        f"| `{case}` | {name} | {figure} | {' | '.join(_figure(spread[each]) for each in SPREAD)} |"
        for case, name, figure, spread in _figures(report)
    ]
    if absolute:
        lines += ["| case | contestant | figure | min | median | max |", "|---|---|---|---:|---:|---:|", *absolute, ""]
    lines += ["| case | contestant | seconds by step, median |", "|---|---|---|"]
    lines += [
        f"| `{case}` | {name} | {', '.join(f'{step} {seconds:.2f}' for step, seconds in steps.items())} |"
        for case, name, steps in _by_contestant(report["steps"])
    ]
    return "\n".join([*lines, ""])


def _rates(report: Mapping[str, Any]) -> list[tuple[str, str, Any, str]]:
    units = report["units"]
    return [(case, name, each, units.get(case, "records")) for case, name, each in _by_contestant(report["absolute"])]


def _by_contestant(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, Any]]:
    return [(case, name, each) for case, contestants in found.items() for name, each in contestants.items()]


def _figures(report: Mapping[str, Any]) -> list[tuple[str, str, str, Mapping[str, float]]]:
    return [
        (case, name, figure, spread)
        for case, name, each in _by_contestant(report["figures"])
        for figure, spread in each.items()
    ]


def _figure(value: float) -> str:
    """Format a figure with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _extra(report: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, float]]]:
    return [
        (key, name, value)
        for key, ratio in report["ratios"].items()
        for name, value in ratio.items()
        if isinstance(value, Mapping)
    ]


def _rate(rate: float) -> float:
    return round(rate) if rate >= 100 else round(rate, 3)


def _rounded(values: Mapping[str, float], digits: int) -> dict[str, float]:
    return {name: round(value, digits) for name, value in values.items()}

"""Compare the ratios of a new quick run with the committed baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

NOISE = 0.8
"""A figure has dropped when its best turn is worse than this share of the baseline's worst turn."""

Verdict = Literal["unchanged", "better", "worse", "missing", "new"]


@dataclass(frozen=True)
class Comparison:
    """One figure, before and now.

    Args:
        key: The figure.
        verdict: What became of it.
        before: Its baseline; None for a new one.
        now: What was measured; None where it was not, or did not count.
    """

    key: str
    verdict: Verdict
    before: Mapping[str, Any] | None
    now: Mapping[str, Any] | None

    @property
    def fails(self) -> bool:
        """Whether it fails the check."""
        return self.verdict in ("worse", "missing")


class BaselineError(Exception):
    """The runs cannot be compared."""


def compare(baseline: Mapping[str, Any], report: Mapping[str, Any], keys: Sequence[str] | None) -> list[Comparison]:
    """Compare a run with the baseline, figure by figure.

    A figure is worse when all of its turns are past the noise: where bigger is better, its largest is below 0.8 times
    the baseline's smallest; where smaller is better, its smallest is above the baseline's largest divided by 0.8. It
    is better in the mirrored case, and unchanged otherwise.

    Args:
        baseline: Content of baseline.json.
        report: Content of a new bench.json.
        keys: Figures of the cases that were chosen; None: all of the baseline must be there.

    Raises:
        BaselineError: The two did not measure the same.
    """
    before, now = baseline["settings"], report["settings"]
    if before != now:
        msg = f"the baseline was measured with {_settings_text(before)}, but this run with {_settings_text(now)}"
        raise BaselineError(msg)
    old, new = baseline["ratios"], report["ratios"]
    wanted = [key for key in old if keys is None or key in keys]
    return [
        *(_compared(key, old[key], new.get(key)) for key in wanted),
        *(Comparison(key, "new", None, ratio) for key, ratio in new.items() if key not in old),
    ]


def _compared(key: str, before: Mapping[str, Any], now: Mapping[str, Any] | None) -> Comparison:
    if now is None:
        return Comparison(key, "missing", before, None)
    dropped, risen = now["max"] < NOISE * before["min"], now["min"] > before["max"] / NOISE
    worse, better = (dropped, risen) if before["better"] == "bigger" else (risen, dropped)
    return Comparison(key, "worse" if worse else "better" if better else "unchanged", before, now)


def write_baseline(report: Mapping[str, Any], path: Path) -> None:
    """Keep what a later run is compared with: the ratios, and where they come from."""
    kept = {name: report[name] for name in ("machine", "settings", "ratios")}
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def read_baseline(path: Path) -> dict[str, Any]:
    """Read the committed baseline.

    Raises:
        BaselineError: There is none.
    """
    if not path.exists():
        msg = (
            f"there is no baseline at {path}; on an idle machine, write one and commit it: "
            "make bench QUICK=1 BENCH_ARGS=--write-baseline"
        )
        raise BaselineError(msg)
    baseline: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return baseline


def show_comparison(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print the figures of the baseline and of this run, with a verdict on each."""
    table = Table("figure", "baseline", "now", "better", "verdict", title="Ratios and baseline, min to max")
    for each in comparisons:
        better = (each.before or each.now or {})["better"]
        color = "red" if each.fails else "green"
        table.add_row(each.key, _span(each.before), _span(each.now), better, f"[{color}]{each.verdict}[/{color}]")
    console.print(table)
    failed = [each.key for each in comparisons if each.fails]
    if failed:
        console.print(f"[red]Worse by more than noise, or missing: {', '.join(failed)}[/red]")


def _span(ratio: Mapping[str, Any] | None) -> str:
    return "-" if ratio is None else f"{ratio['min']:.2f} to {ratio['max']:.2f}"


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())

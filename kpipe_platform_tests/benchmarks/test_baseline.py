"""The regression guard tells a drop from noise."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.__main__ import BASELINE, check, main, options, publish
from benchmarks.baseline import BaselineError, compare, read_baseline, show_comparison, write_baseline

SETTINGS = {"records": 100, "turns": 3, "quick": True}


def report(
    *, settings: dict[str, Any] = SETTINGS, better: str = "bigger", **spans: tuple[float, float]
) -> dict[str, Any]:
    ratios = {
        key: {"min": low, "median": (low + high) / 2, "max": high, "better": better}
        for key, (low, high) in spans.items()
    }
    machine = {"cores": 2}
    rest: dict[str, Any] = {"absolute": {}, "units": {}, "steps": {}, "figures": {}, "problems": {}}
    return {"machine": machine, "settings": settings, "ratios": ratios, **rest}


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("now", "better", "verdict"),
    [
        ((0.5, 0.79), "bigger", "worse"),
        # The best turn is within the noise of the baseline's worst.
        ((0.5, 0.8), "bigger", "as before"),
        ((0.9, 2.0), "bigger", "as before"),
        ((1.49, 1.6), "bigger", "as before"),
        ((1.51, 1.6), "bigger", "better"),
        ((1.51, 1.6), "smaller", "worse"),
        ((1.49, 9.0), "smaller", "as before"),
        ((0.5, 0.8), "smaller", "as before"),
        ((0.5, 0.79), "smaller", "better"),
    ],
)
def test_a_figure_is_worse_where_all_turns_are_past_the_noise(
    now: tuple[float, float], better: str, verdict: str
) -> None:
    before = report(better=better, race=(1.0, 1.2))

    [found] = compare(before, report(better=better, race=now), None)

    assert found.verdict == verdict
    assert found.fails == (verdict == "worse")


def test_a_missing_figure_fails_and_a_new_one_does_not() -> None:
    before, now = report(race=(1.0, 1.2), gone=(1.0, 1.2)), report(race=(1.0, 1.2), new=(0.1, 0.2))

    found = {each.key: (each.verdict, each.fails) for each in compare(before, now, None)}

    assert found == {"race": ("as before", False), "gone": ("missing", True), "new": ("new", False)}
    assert [each.key for each in compare(before, now, ["race"])] == ["race", "new"]


@pytest.mark.parametrize("change", [{"records": 200}, {"quick": False}, {"turns": 5}])
def test_runs_of_other_sizes_are_not_compared(change: dict[str, Any]) -> None:
    with pytest.raises(BaselineError, match="the baseline was measured with records 100, turns 3, quick True, and"):
        compare(report(race=(1, 1)), report(settings={**SETTINGS, **change}, race=(1, 1)), None)


def test_the_table_names_what_failed() -> None:
    shown = console()

    show_comparison(compare(report(a=(1.0, 1.2), b=(1.0, 1.2)), report(a=(0.5, 0.6), b=(1.1, 1.3)), None), shown)

    assert "1.00 to 1.20" in said(shown)
    assert "0.50 to 0.60" in said(shown)
    assert "Past noise, or missing: a\n" in said(shown)


def test_without_a_baseline_the_check_fails_at_once_and_says_how_to_write_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--quick", "--check", "--baseline", str(tmp_path / "none.json")]) == 1

    told = " ".join(capsys.readouterr().out.split())
    assert "there is no baseline" in told
    assert "make bench QUICK=1 BENCH_ARGS=--write-baseline" in told


def test_a_baseline_is_written_by_a_quick_run_of_all_cases_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    where = ["--output", str(tmp_path / "bench.json"), "--baseline", str(path)]
    chosen = options(["--quick", "--write-baseline", *where])
    shown = console()

    assert publish(report(race=(1.0, 1.2)), chosen, shown) == 0
    assert read_baseline(path)["ratios"] == report(race=(1.0, 1.2))["ratios"]
    assert set(json.loads(path.read_text())) == {"machine", "settings", "ratios"}

    before, checked = read_baseline(path), options(["--quick", "--check", *where])
    assert check(report(race=(0.9, 1.0)), before, checked, console()) == 0
    assert check(report(race=(0.5, 0.6)), before, checked, console()) == 1
    assert check(report(), before, checked, console()) == 1
    assert check(report(settings={**SETTINGS, "records": 5}, race=(1, 1)), before, checked, console()) == 1
    # Of one case only its own figures are looked at.
    one = options(["--quick", "--check", "--case", "raw_1p", *where])
    assert check(report(), before, one, console()) == 0

    for other in (["--write-baseline", "--records", "5"], ["--quick", "--write-baseline", "--case", "raw_1p"]):
        with pytest.raises(SystemExit):
            options(other)
    assert "needs --quick and all cases" in capsys.readouterr().err


def test_figures_that_do_not_count_become_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    chosen = options(["--quick", "--write-baseline", "--output", str(tmp_path / "b.json"), "--baseline", str(path)])

    assert publish({**report(), "problems": {"race": {"ours": ["one is missing"]}}}, chosen, console()) == 1
    assert not path.exists()


def test_the_committed_baseline_is_of_a_quick_run() -> None:
    if not BASELINE.exists():
        pytest.skip("no baseline is committed yet")
    found = read_baseline(BASELINE)
    chosen = options(["--quick"])
    assert found["settings"] == {"records": chosen.records, "turns": chosen.repetitions, "quick": True}
    assert found["ratios"]
    assert compare(found, {**report(settings=found["settings"]), "ratios": found["ratios"]}, None)


def test_a_baseline_survives_its_file(tmp_path: Path) -> None:
    write_baseline(report(race=(1.0, 1.2)), tmp_path / "baseline.json")
    assert compare(read_baseline(tmp_path / "baseline.json"), report(race=(1.0, 1.2)), None)[0].verdict == "as before"

"""``python -m benchmarks``: start a broker, run the benchmarks, and write the figures."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster._utils.warnings import BetaWarning
from rich.console import Console

from benchmarks.baseline import BaselineError, compare, read_baseline, show_comparison, write_baseline
from benchmarks.cases import CASES
from benchmarks.machine import describe_machine
from benchmarks.measure import Bench, Case, Log, measure, stopwatch
from benchmarks.report import as_json, refresh_page, show, write_json
from benchmarks.topics import Sources, await_groups
from kpipe_platform.spark.connect.server import ConnectServer
from kpipe_platform.testing.broker.embedded import EmbeddedBroker

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / "benchmarks/baseline.json"
QUICK_RECORDS, FULL_RECORDS = 100_000, 1_000_000
QUICK_TURNS, FULL_TURNS = 3, 5
WARM_UP = 1


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``QUICK=1`` in the environment is ``--quick``."""
    quick = os.environ.get("QUICK", "") not in ("", "0")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure kpipe and its alternatives.")
    parser.add_argument("--quick", action="store_true", default=quick, help="use fewer records, turns and variants")
    parser.add_argument("--records", type=int, help=f"source records ({FULL_RECORDS:,}; quick: {QUICK_RECORDS:,})")
    parser.add_argument("--repetitions", type=int, help=f"measured turns ({FULL_TURNS}; quick: {QUICK_TURNS})")
    parser.add_argument(
        "--case", action="append", choices=[case.name for case in CASES], help="case to run; repeatable"
    )
    parser.add_argument("--connect", action="store_true", help="use a Spark Connect server instead of this process")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench.json", help="file to write the figures to")
    parser.add_argument(
        "--page",
        type=Path,
        help="page to update with the figures (default: docs/reference/benchmarks.md for all cases in full size)",
    )
    parser.add_argument("--check", action="store_true", help="fail if a ratio is worse than in the baseline")
    parser.add_argument("--write-baseline", action="store_true", help="make this run the new baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="file of the baseline")
    chosen = parser.parse_args(arguments)
    full_size = not (chosen.quick or chosen.connect or chosen.records or chosen.repetitions or chosen.case)
    if chosen.write_baseline and (chosen.case or chosen.connect or not chosen.quick):
        parser.error(
            "--write-baseline needs --quick, all cases and no --connect, because only quick runs have a baseline"
        )
    chosen.records = chosen.records or (QUICK_RECORDS if chosen.quick else FULL_RECORDS)
    chosen.repetitions = chosen.repetitions or (QUICK_TURNS if chosen.quick else FULL_TURNS)
    if chosen.page is None and full_size:
        chosen.page = ROOT / "docs/reference/benchmarks.md"
    return chosen


def chosen_cases(chosen: argparse.Namespace) -> list[Case]:
    """Return the cases to run: those that were named, or all of the run's size."""
    if chosen.case:
        return [case for case in CASES if case.name in chosen.case]
    return [case for case in CASES if not (chosen.quick and case.full_only)]


def run(bench: Bench, cases: Sequence[Case], log: Log) -> dict[str, Any]:
    """Run the cases, and return the content of bench.json."""
    machine = describe_machine()
    await_groups(bench.bootstrap_servers)
    results = []
    with Sources(bench.bootstrap_servers) as sources:
        for number, case in enumerate(cases):
            log(f"{case.name}: preparing: {case.title}")
            elapsed = stopwatch()
            with case.open(replace(bench, first=number == 0), sources) as contest:
                result = measure(contest, log)
            result.took_s = elapsed()
            log(f"{case.name}: finished in {result.took_s:.1f} s")
            results.append(result)
    settings: dict[str, Any] = {"records": bench.records, "turns": bench.turns, "quick": bench.quick}
    if bench.remote is not None:
        settings["engine"] = "connect"
    return as_json(machine, settings, results)


def publish(report: Mapping[str, Any], chosen: argparse.Namespace, console: Console) -> int:
    """Write and print the figures. If one is invalid, leave the page unchanged and return 1."""
    write_json(report, chosen.output)
    show(report, console)
    console.print(f"Wrote the figures to {chosen.output}")
    if report["problems"]:
        return 1
    if chosen.page is not None:
        refresh_page(report, chosen.page)
        console.print(f"Updated {chosen.page}")
    if chosen.write_baseline:
        write_baseline(report, chosen.baseline)
        console.print(f"Wrote the baseline to {chosen.baseline}")
    return 0


def check(report: Mapping[str, Any], baseline: Mapping[str, Any], chosen: argparse.Namespace, console: Console) -> int:
    """Compare with the baseline. Return 1 if a figure is worse or missing, or if the runs cannot be compared."""
    try:
        # Of a part of the cases only what they measured is looked at; a figure that did not count failed before.
        comparisons = compare(baseline, report, list(report["ratios"]) if chosen.case else None)
    except BaselineError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    show_comparison(comparisons, console)
    return int(any(each.fails for each in comparisons))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks, and return the exit code."""
    chosen = options(arguments)
    console = Console()
    # Backfill policies are beta in Dagster, which it says of every asset that is made.
    warnings.simplefilter("ignore", BetaWarning)
    baseline: Mapping[str, Any] = {}
    if chosen.check:
        try:
            # Before the minutes of measuring, not after them.
            baseline = read_baseline(chosen.baseline)
        except BaselineError as error:
            console.print(f"[red]{error}[/red]")
            return 1

    def log(line: str) -> None:
        console.print(line, highlight=False)

    cases = chosen_cases(chosen)
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(progress=log))
        remote = stack.enter_context(ConnectServer()).remote if chosen.connect else None
        bench = Bench(
            broker.bootstrap_servers, chosen.records, chosen.repetitions, WARM_UP, chosen.quick, remote=remote
        )
        report = run(bench, cases, log)
    code = publish(report, chosen, console)
    if chosen.check:
        code = check(report, baseline, chosen, console) or code
    return code


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks``: start a broker, measure, write down what was found."""

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
from benchmarks.measure import Bench, Case, Tell, measure, stopwatch
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="kpipe beside what one would use instead")
    parser.add_argument("--quick", action="store_true", default=quick, help="fewer records, turns and variants")
    parser.add_argument("--records", type=int, help=f"source records: {FULL_RECORDS:,}, quick {QUICK_RECORDS:,}")
    parser.add_argument("--repetitions", type=int, help=f"measured turns: {FULL_TURNS}, quick {QUICK_TURNS}")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--connect", action="store_true", help="on a Spark Connect server instead of in this process")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench.json", help="where the figures go")
    parser.add_argument(
        "--page",
        type=Path,
        help="page whose figures are refreshed: docs/reference/benchmarks.md for all cases in full size, else none",
    )
    parser.add_argument("--check", action="store_true", help="fail where a ratio is worse than in the baseline")
    parser.add_argument("--write-baseline", action="store_true", help="make this run the baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="where the baseline is")
    chosen = parser.parse_args(arguments)
    full_size = not (chosen.quick or chosen.connect or chosen.records or chosen.repetitions or chosen.case)
    if chosen.write_baseline and (chosen.case or chosen.connect or not chosen.quick):
        parser.error(
            "--write-baseline needs --quick, all cases and no --connect: it is what quick runs are compared with"
        )
    chosen.records = chosen.records or (QUICK_RECORDS if chosen.quick else FULL_RECORDS)
    chosen.repetitions = chosen.repetitions or (QUICK_TURNS if chosen.quick else FULL_TURNS)
    if chosen.page is None and full_size:
        chosen.page = ROOT / "docs/reference/benchmarks.md"
    return chosen


def chosen_cases(chosen: argparse.Namespace) -> list[Case]:
    """The cases of a run: those that were named, or all that belong to its size."""
    if chosen.case:
        return [case for case in CASES if case.name in chosen.case]
    return [case for case in CASES if not (chosen.quick and case.full_only)]


def run(bench: Bench, cases: Sequence[Case], tell: Tell) -> dict[str, Any]:
    """Measure the cases; returns the content of bench.json."""
    machine = describe_machine()
    await_groups(bench.bootstrap_servers)
    results = []
    with Sources(bench.bootstrap_servers) as sources:
        for number, case in enumerate(cases):
            tell(f"{case.name}: {case.title}; preparing")
            elapsed = stopwatch()
            with case.open(replace(bench, first=number == 0), sources) as contest:
                result = measure(contest, tell)
            result.took_s = elapsed()
            tell(f"{case.name}: took {result.took_s:.1f} s")
            results.append(result)
    settings: dict[str, Any] = {"records": bench.records, "turns": bench.turns, "quick": bench.quick}
    if bench.remote is not None:
        settings["engine"] = "connect"
    return as_json(machine, settings, results)


def publish(report: Mapping[str, Any], chosen: argparse.Namespace, console: Console) -> int:
    """Write the figures down and show them; 1 where one does not count, and then the page stays as it is."""
    write_json(report, chosen.output)
    show(report, console)
    console.print(f"Figures are in {chosen.output}")
    if report["problems"]:
        return 1
    if chosen.page is not None:
        refresh_page(report, chosen.page)
        console.print(f"and in {chosen.page}")
    if chosen.write_baseline:
        write_baseline(report, chosen.baseline)
        console.print(f"and in {chosen.baseline}, which later runs are compared with")
    return 0


def check(report: Mapping[str, Any], baseline: Mapping[str, Any], chosen: argparse.Namespace, console: Console) -> int:
    """Compare with the baseline; 1 where a figure is worse, or missing, or the two cannot be compared."""
    try:
        # Of a part of the cases only what they measured is looked at; a figure that did not count failed before.
        comparisons = compare(baseline, report, list(report["ratios"]) if chosen.case else None)
    except BaselineError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    show_comparison(comparisons, console)
    return int(any(each.fails for each in comparisons))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; returns the exit code."""
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

    def tell(line: str) -> None:
        console.print(line, highlight=False)

    cases = chosen_cases(chosen)
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(progress=tell))
        remote = stack.enter_context(ConnectServer()).remote if chosen.connect else None
        bench = Bench(
            broker.bootstrap_servers, chosen.records, chosen.repetitions, WARM_UP, chosen.quick, remote=remote
        )
        report = run(bench, cases, tell)
    code = publish(report, chosen, console)
    if chosen.check:
        code = check(report, baseline, chosen, console) or code
    return code


if __name__ == "__main__":
    sys.exit(main())

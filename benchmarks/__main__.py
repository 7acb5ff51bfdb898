"""``python -m benchmarks``: start a broker, measure, write down what was found."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cases import CASES
from benchmarks.machine import describe_machine
from benchmarks.measure import Bench, Case, Tell, measure
from benchmarks.report import as_json, refresh_page, show, write_json
from benchmarks.topics import await_groups
from kpipe_platform.testing.broker import EmbeddedBroker

ROOT = Path(__file__).parents[1]
QUICK_RECORDS, FULL_RECORDS = 200_000, 1_000_000
QUICK_TURNS, FULL_TURNS = 3, 5


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``QUICK=1`` in the environment is ``--quick``."""
    quick = os.environ.get("QUICK", "") not in ("", "0")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="kpipe beside Structured Streaming")
    parser.add_argument("--quick", action="store_true", default=quick, help="fewer records and turns")
    parser.add_argument("--records", type=int, help=f"source records: {FULL_RECORDS:,}, quick {QUICK_RECORDS:,}")
    parser.add_argument("--repetitions", type=int, help=f"measured turns: {FULL_TURNS}, quick {QUICK_TURNS}")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench.json", help="where the figures go")
    parser.add_argument(
        "--page",
        type=Path,
        help="page whose table is refreshed: docs/benchmarks.md for all cases in full size, else none",
    )
    chosen = parser.parse_args(arguments)
    full_size = not (chosen.quick or chosen.records or chosen.repetitions or chosen.case)
    chosen.records = chosen.records or (QUICK_RECORDS if chosen.quick else FULL_RECORDS)
    chosen.repetitions = chosen.repetitions or (QUICK_TURNS if chosen.quick else FULL_TURNS)
    if chosen.page is None and full_size:
        chosen.page = ROOT / "docs/benchmarks.md"
    return chosen


def run(bench: Bench, cases: Sequence[Case], tell: Tell) -> dict[str, Any]:
    """Measure the cases; returns the content of bench.json."""
    machine = describe_machine()
    await_groups(bench.bootstrap_servers)
    results = []
    for case in cases:
        tell(f"{case.name}: {case.title}; preparing {bench.records:,} records")
        with case.open(bench) as contest:
            results.append(measure(contest, tell))
    return as_json(machine, {"records": bench.records, "turns": bench.turns}, results)


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
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; returns the exit code."""
    chosen = options(arguments)
    console = Console()

    def tell(line: str) -> None:
        console.print(line, highlight=False)

    cases = [case for case in CASES if not chosen.case or case.name in chosen.case]
    with EmbeddedBroker(progress=tell) as broker:
        report = run(Bench(broker.bootstrap_servers, chosen.records, chosen.repetitions), cases, tell)
    return publish(report, chosen, console)


if __name__ == "__main__":
    sys.exit(main())

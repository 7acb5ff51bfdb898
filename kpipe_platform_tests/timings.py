"""Seconds of each test file, from JUnit reports: ``python -m kpipe_platform_tests.timings build/junit/*.xml``.

Prints the slowest files. With ``--record`` it also writes timings.json, by which the suite starts its slowest files
first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from kpipe_platform_tests.order import ROOT, TIMINGS


def seconds_of(reports: Iterable[Path]) -> dict[str, float]:
    """Seconds by file, with the set-up of fixtures that a file was the first to use."""
    found: dict[str, float] = defaultdict(float)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            parts = case.get("classname", "").split(".")
            # The class name ends with the class, where there is one.
            while parts and not (ROOT / Path(*parts)).with_suffix(".py").exists():
                parts.pop()
            if parts:
                found[Path(*parts).with_suffix(".py").as_posix()] += float(case.get("time", 0))
    return dict(found)


def main(arguments: list[str]) -> int:
    """Print, and record where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, help="JUnit reports")
    parser.add_argument("--most", type=int, default=20, help="files to print (20)")
    parser.add_argument("--record", action="store_true", help="write timings.json")
    options = parser.parse_args(arguments)
    found = seconds_of([report for report in options.reports if report.exists()])
    for file, seconds in sorted(found.items(), key=lambda item: -item[1])[: options.most]:
        sys.stdout.write(f"{seconds:8.1f} s  {file}\n")
    if options.record:
        if not found:
            parser.error("no report has a test file of this suite")
        before = json.loads(TIMINGS.read_text(encoding="utf-8")) if TIMINGS.exists() else {}
        known = {**{file: s for file, s in before.items() if (ROOT / file).exists()}, **found}
        rounded = {file: round(seconds, 1) for file, seconds in sorted(known.items())}
        TIMINGS.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Test cases on a Spark Connect server, run in a process of their own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = ROOT / "kpipe_platform_tests/io_managers"


def names_of(cases: str) -> list[str]:
    """The test functions of a file of cases."""
    body = ast.parse((CASES / cases).read_text(encoding="utf-8")).body
    return [each.name for each in body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]


def outcomes_of(cases: str, folder: Path, servers: str) -> dict[str, str | None]:
    """What went wrong in each case; None where nothing did.

    Args:
        cases: A file of ``kpipe_platform_tests/io_managers``.
        folder: For files.
        servers: Address of the broker.
    """
    report = folder / "report.xml"
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(CASES / cases)],
        cwd=ROOT,
        env={**os.environ, "KPIPE_TEST_SPARK": "connect", "KPIPE_TEST_BROKER": servers},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert report.exists(), answer.stdout + answer.stderr
    found: dict[str, str | None] = {}
    for case in ET.parse(report).iter("testcase"):
        failures = [child.text or child.get("message") or child.tag for child in case if child.tag != "system-out"]
        found[str(case.get("name"))] = "\n".join(failures) or None
    return found

"""The slice protocol on a Spark Connect server: cases that run in a process of their own, reported one by one."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CASES = ROOT / "kpipe_platform_tests/io_managers/connect_cases.py"
NAMES = [
    each.name
    for each in ast.parse(CASES.read_text(encoding="utf-8")).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What went wrong in each case; None where nothing did."""
    report = tmp_path_factory.mktemp("connect") / "report.xml"
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(CASES)],
        cwd=ROOT,
        env={**os.environ, "KPIPE_TEST_SPARK": "connect"},
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


@pytest.mark.parametrize("name", NAMES)
def test_connect(outcomes: dict[str, str | None], name: str) -> None:
    assert name in outcomes, f"{name} did not run"
    assert outcomes[name] is None, outcomes[name]

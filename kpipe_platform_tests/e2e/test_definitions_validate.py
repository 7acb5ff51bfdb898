"""The workspace at the root of the repository loads as Dagster's own tools load it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(180)
def test_definitions_of_the_workspace_are_valid(tmp_path: Path) -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("dagster"), "definitions", "validate", "-w", "workspace.yaml"],
        cwd=ROOT,
        # A home of its own: what the instance of a user or of another test says plays no part.
        env={**os.environ, "DAGSTER_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )

    assert result.returncode == 0, result.stdout
    # It also ends with 0 where the workspace names nothing to load.
    assert "Validation successful for code location kpipe" in result.stdout

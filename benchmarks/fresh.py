"""Python processes of their own, which end with a line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_DEADLINE_S = 180.0


def answer_of(*arguments: str) -> Any:
    """Run Python with these arguments in the project's folder; returns what its last line says.

    Raises:
        RuntimeError: It failed.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        msg = f"python {' '.join(arguments)} failed: {done.stderr[-2_000:]}"
        raise RuntimeError(msg)
    return json.loads(done.stdout.splitlines()[-1])

"""The end of a child's log file, for error messages."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["tail"]

_TAIL_BYTES = 64 * 1024


def tail(path: Path, lines: int, *, start: int = 0) -> str:
    """The last lines of a text file.

    Args:
        path: The file.
        lines: How many lines at most; no more than the last 64 KiB are looked at.
        start: Byte that nothing before is taken of.

    Returns:
        The lines, or an empty text when there is no such file.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])

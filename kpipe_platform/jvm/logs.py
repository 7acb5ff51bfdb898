"""Read the end of a child process's log file, for error messages."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["tail"]

_TAIL_BYTES = 64 * 1024


def tail(path: Path, lines: int, *, start: int = 0) -> str:
    """Return the last lines of a text file.

    Args:
        path: The file.
        lines: Maximum number of lines; only the last 64 KiB are read.
        start: Byte offset at which to start; earlier bytes are ignored. 0 by default.

    Returns:
        The lines, or an empty string if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])

"""Files that only their owner may read, for settings with passwords and for tokens that allow code execution."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["private_folder", "write_private"]


def private_folder(path: Path) -> None:
    """Create a folder that only its owner may access; an existing folder keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600 atomically: a reader gets either the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    # Remove a file left by a crash: O_EXCL would fail on it, and its mode may differ.
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)

"""Files that only their owner may read: settings may hold passwords, and a token lets its reader run code."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["private_folder", "write_private"]


def private_folder(path: Path) -> None:
    """Create a folder that only its owner may enter; one that exists keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, text: str) -> None:
    """Write a file with mode 0600; a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(f"{path.name}.tmp")
    # One that a crash left may have another mode, which opening it would keep.
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)

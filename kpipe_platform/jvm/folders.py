"""Where kpipe keeps what it downloads and what it remembers between commands."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["CACHE_DIR_VARIABLE", "STATE_DIR_VARIABLE", "cache_dir", "state_dir"]

CACHE_DIR_VARIABLE = "KPIPE_CACHE_DIR"
STATE_DIR_VARIABLE = "KPIPE_STATE_DIR"


def cache_dir() -> Path:
    """Folder of downloads that can be fetched again: jars and class archives.

    Returns:
        ``KPIPE_CACHE_DIR`` when set, else the platform's cache folder: ``$XDG_CACHE_HOME/kpipe``,
        ``~/.cache/kpipe``, or ``~/Library/Caches/kpipe`` on macOS. It may not exist yet.
    """
    return _own(CACHE_DIR_VARIABLE) or platformdirs.user_cache_path("kpipe")


def state_dir() -> Path:
    """Folder of what commands leave for later commands: pid files and a kept broker's data.

    Returns:
        ``KPIPE_STATE_DIR`` when set, else the platform's state folder: ``$XDG_STATE_HOME/kpipe``,
        ``~/.local/state/kpipe``, or ``~/Library/Application Support/kpipe`` on macOS. It may not exist yet.
    """
    return _own(STATE_DIR_VARIABLE) or platformdirs.user_state_path("kpipe")


def _own(variable: str) -> Path | None:
    folder = os.environ.get(variable)
    return Path(folder).expanduser().absolute() if folder else None

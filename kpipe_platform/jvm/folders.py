"""Folders for downloads and for state that kpipe keeps between commands."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["CACHE_DIR_VARIABLE", "STATE_DIR_VARIABLE", "cache_dir", "state_dir"]

CACHE_DIR_VARIABLE = "KPIPE_CACHE_DIR"
STATE_DIR_VARIABLE = "KPIPE_STATE_DIR"


def cache_dir() -> Path:
    """Return the cache folder, for files that can be downloaded or created again: jars and class archives.

    Returns:
        ``KPIPE_CACHE_DIR`` if set, else the platform's cache folder: ``$XDG_CACHE_HOME/kpipe``,
        ``~/.cache/kpipe``, or ``~/Library/Caches/kpipe`` on macOS. It may not exist yet.
    """
    return _own(CACHE_DIR_VARIABLE) or platformdirs.user_cache_path("kpipe")


def state_dir() -> Path:
    """Return the state folder, for files that later commands need: pid files and the data of a persistent broker.

    Returns:
        ``KPIPE_STATE_DIR`` if set, else the platform's state folder: ``$XDG_STATE_HOME/kpipe``,
        ``~/.local/state/kpipe``, or ``~/Library/Application Support/kpipe`` on macOS. It may not exist yet.
    """
    return _own(STATE_DIR_VARIABLE) or platformdirs.user_state_path("kpipe")


def _own(variable: str) -> Path | None:
    folder = os.environ.get(variable)
    return Path(folder).expanduser().absolute() if folder else None

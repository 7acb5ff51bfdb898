"""Where kpipe keeps what it downloads and what it remembers between commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["CACHE_DIR_VARIABLE", "STATE_DIR_VARIABLE", "cache_dir", "state_dir"]

CACHE_DIR_VARIABLE = "KPIPE_CACHE_DIR"
STATE_DIR_VARIABLE = "KPIPE_STATE_DIR"


def cache_dir() -> Path:
    """Folder of downloads that can be had again: jars and class archives.

    Returns:
        ``KPIPE_CACHE_DIR`` when set, else the platform's cache folder: ``$XDG_CACHE_HOME/kpipe``,
        ``~/.cache/kpipe``, or ``~/Library/Caches/kpipe`` on macOS. It may not exist yet.
    """
    return _folder(CACHE_DIR_VARIABLE, "XDG_CACHE_HOME", ".cache", "Library/Caches")


def state_dir() -> Path:
    """Folder of what commands leave for later commands: pid files and a kept broker's data.

    Returns:
        ``KPIPE_STATE_DIR`` when set, else the platform's state folder: ``$XDG_STATE_HOME/kpipe``,
        ``~/.local/state/kpipe``, or ``~/Library/Application Support/kpipe`` on macOS. It may not exist yet.
    """
    return _folder(STATE_DIR_VARIABLE, "XDG_STATE_HOME", ".local/state", "Library/Application Support")


def _folder(own_variable: str, xdg_variable: str, linux: str, mac: str) -> Path:
    own = os.environ.get(own_variable)
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get(xdg_variable)
    # The XDG specification says that a relative path is invalid and to be ignored.
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "kpipe"
    return Path.home() / (mac if sys.platform == "darwin" else linux) / "kpipe"

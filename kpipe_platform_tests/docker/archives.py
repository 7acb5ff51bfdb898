"""Looking into jars for the texts that their classes hold."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path


def class_files_contain(jars: Sequence[Path], text: str) -> bool:
    """Tell whether some class in the jars has exactly this text among its constants."""
    # A constant is stored with its length before it, which keeps "log.dir" from being found in "log.dirs".
    wanted = len(text).to_bytes(2, "big") + text.encode()
    return any(wanted in _config_classes(jar) for jar in jars)


@lru_cache(maxsize=64)
def _config_classes(jar: Path) -> bytes:
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.endswith(".class") and "Config" in name]
        return b"\0".join(archive.read(name) for name in names)

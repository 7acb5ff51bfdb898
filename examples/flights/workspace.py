"""The folder of one run, and a console that stays readable."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from kpipe_platform.errors import EnvironmentSetupError

_PREFIX = "kpipe-run-"
_LOCK = ".lock"


@contextmanager
def working_folder(kept: Path | None) -> Iterator[Path]:
    """A folder that nobody else uses, for everything that a run writes.

    Args:
        kept: A folder to keep; None: a temporary one, deleted at the end. What killed runs left is deleted first.

    Raises:
        EnvironmentSetupError: The folder is in use, or cannot be made.
    """
    try:
        if kept is None:
            _sweep(Path(tempfile.gettempdir()))
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            folder = kept.expanduser().absolute()
            folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        lock.acquire(timeout=0)
    except Timeout as error:
        msg = f"another run works in {kept}"
        raise EnvironmentSetupError(msg, fix="wait for its end, or choose another folder: --data-dir") from error
    except OSError as error:
        msg = f"the folder for the run cannot be made: {error}"
        raise EnvironmentSetupError(msg, fix="free some space, or set TMPDIR to a folder on another disk") from error
    try:
        yield folder
    finally:
        lock.release()
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # A lock that can be had belongs to nobody who lives; a folder without one is just being made.
        if not (folder / _LOCK).exists():
            continue
        with suppress(Timeout, OSError), FileLock(folder / _LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quiet_stderr(log: Path) -> Iterator[Console]:
    """Send what this process and its children write to stderr into a file.

    Spark's JVM and its workers write their own lines there, and would tear the progress bar apart.

    Args:
        log: The file.

    Yields:
        A console on the real stderr.
    """
    sys.stderr.flush()
    real = os.dup(2)
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with os.fdopen(real, "w", encoding=encoding, errors="backslashreplace") as stream:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        try:
            yield Console(file=stream, highlight=False)
        finally:
            sys.stderr.flush()
            stream.flush()
            os.dup2(stream.fileno(), 2)

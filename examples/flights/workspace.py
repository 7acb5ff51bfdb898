"""The working folder of a run, and a console without the output of other programs."""

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
    """Lock a folder for everything that a run writes.

    Args:
        kept: A folder to keep; None for a temporary one, which is deleted at the end. First deletes the folders
            of killed runs.

    Raises:
        EnvironmentSetupError: The folder is in use, or cannot be created.
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
        msg = f"another run uses the folder {kept}"
        raise EnvironmentSetupError(msg, fix="wait until it ends, or choose another folder: --data-dir") from error
    except OSError as error:
        msg = f"the folder for the run cannot be created: {error}"
        raise EnvironmentSetupError(msg, fix="free some space, or set TMPDIR to a folder on another disk") from error
    try:
        yield folder
    finally:
        lock.release()
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # If the lock is free, its run has ended. A folder without a lock file is still being created.
        if not (folder / _LOCK).exists():
            continue
        with suppress(Timeout, OSError), FileLock(folder / _LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quiet_stderr(log: Path) -> Iterator[Console]:
    """Redirect the standard error of this process and its children to a file.

    Otherwise the output of Spark's JVM and workers would break the progress bar.

    Args:
        log: The file.

    Yields:
        A console on the original standard error.
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

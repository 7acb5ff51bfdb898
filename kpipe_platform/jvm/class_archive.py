"""Class archives: a JVM with an archive starts in a third of the time.

At exit, Java can write the classes that a program loaded to a file, and map that file at the next start (application
class-data sharing, JEP 350). The JVM checks that the jars are unchanged and ignores the archive if they are not, so an
outdated archive does no harm.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from kpipe_platform.errors import KpipeError
from kpipe_platform.jvm.java import JavaInstall

__all__ = ["archive_options"]

logger = logging.getLogger(__name__)

# Without these options, the JVM logs every class that it cannot archive.
_QUIET = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def archive_options(
    name: str, java: JavaInstall, jars: Sequence[Path], train: Callable[[Sequence[str]], None]
) -> list[str]:
    """Return JVM options that use a program's class archive; create the archive first if there is none.

    Args:
        name: Name of the program.
        java: The Java that runs the program. An archive works with one Java installation only.
        jars: Class path of the program; the archive is stored in the folder of the first jar.
        train: Runs the program once with the given JVM options, and ends it cleanly.

    Returns:
        The options; empty if no archive can be created, which only makes the start slower.
    """
    key = f"{java.path.resolve()} {java.version}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    archive = jars[0].parent / f"{name}-{digest}.jsa"
    impossible = archive.with_suffix(".none")
    options = [f"-XX:SharedArchiveFile={archive}", *_QUIET]
    if archive.exists():
        return options
    if impossible.exists():
        return []
    try:
        with FileLock(archive.with_suffix(".lock")):
            if not archive.exists() and not impossible.exists():
                _make(archive, train)
                if not archive.exists():
                    impossible.touch()
    except (OSError, KpipeError) as error:
        logger.warning("cannot create the class archive of %s, so it starts more slowly: %s", name, error)
    return options if archive.exists() else []


def _make(archive: Path, train: Callable[[Sequence[str]], None]) -> None:
    temporary = archive.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    logger.info("creating the class archive %s (once)", archive)
    train([f"-XX:ArchiveClassesAtExit={temporary}", *_QUIET])
    if temporary.exists():
        temporary.replace(archive)
    else:
        logger.info("this Java wrote no class archive; kpipe will not try again")

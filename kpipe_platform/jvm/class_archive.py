"""Archives of loaded classes: a JVM that finds one starts in a third of the time.

Java can write the classes that a program loaded into a file when it ends, and map that file at the next start
(application class-data sharing, JEP 350). The JVM checks that the jars are the same, and does without the
archive when they are not; so an archive can make nothing wrong.
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

# The JVM would name every class that it cannot archive.
_QUIET = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def archive_options(
    name: str, java: JavaInstall, jars: Sequence[Path], train: Callable[[Sequence[str]], None]
) -> list[str]:
    """JVM options that use the archive of a program; the archive is made first when there is none.

    Args:
        name: Name of the program.
        java: The Java that runs it. Archives belong to one Java.
        jars: Its class path; the archive is kept beside the first of them.
        train: Runs the program once with the JVM options it is given, and ends it cleanly.

    Returns:
        The options; none where an archive cannot be made, which costs time and nothing else.
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
        logger.warning("no class archive for %s, so it starts more slowly: %s", name, error)
    return options if archive.exists() else []


def _make(archive: Path, train: Callable[[Sequence[str]], None]) -> None:
    temporary = archive.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    logger.info("making the class archive %s, once", archive)
    train([f"-XX:ArchiveClassesAtExit={temporary}", *_QUIET])
    if temporary.exists():
        temporary.replace(archive)
    else:
        logger.info("this Java wrote no class archive: it will not be asked again")

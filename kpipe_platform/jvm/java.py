"""Find a Java installation that is new enough."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kpipe_platform.errors import EnvironmentSetupError

__all__ = ["MINIMUM_JAVA", "JavaInstall", "find_java"]

logger = logging.getLogger(__name__)

# Spark 4 and Kafka 4 brokers require Java 17.
MINIMUM_JAVA = 17

# A cold JVM on a small, busy machine prints its version within about a second; after a minute, it hangs.
_VERSION_DEADLINE_S = 60.0

_REMEDY = (
    "install Java 17 or 21, for example `apt-get install openjdk-17-jre-headless` (Debian, Ubuntu), "
    "`dnf install java-17-openjdk-headless` (Fedora, RHEL) or `brew install openjdk@17` (macOS), "
    "or set JAVA_HOME to the folder of an installed one"
)


@dataclass(frozen=True)
class JavaInstall:
    """A Java installation.

    Attributes:
        path: Path of the ``java`` executable.
        version: Full version, for example ``17.0.15``.
    """

    path: Path
    version: str

    @property
    def major(self) -> int:
        """Feature release, for example 17; for Java 8 and older, the number after ``1.``."""
        return _major(self.version)


def find_java() -> JavaInstall:
    """Find the ``java`` executable for child processes.

    ``JAVA_HOME`` takes precedence over ``PATH``, as in Spark. If it is set, ``PATH`` is ignored.

    Returns:
        The executable and its version, 17 or newer.

    Raises:
        EnvironmentSetupError: No Java was found, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        where = f"JAVA_HOME={home}"
        if not os.access(path, os.X_OK):
            msg = f"JAVA_HOME is set to {home}, but that folder has no executable bin/java."
            raise EnvironmentSetupError(msg, fix=f"correct or unset JAVA_HOME; or {_REMEDY}")
    else:
        java = shutil.which("java")
        if java is None:
            msg = "No Java found: JAVA_HOME is not set and there is no `java` on PATH."
            raise EnvironmentSetupError(msg, fix=_REMEDY)
        path, where = Path(java), "first on PATH"
    version = _version_of(path)
    install = JavaInstall(path, version)
    if install.major < MINIMUM_JAVA:
        msg = f"Java {version} at {path} ({where}) is too old: kpipe needs Java {MINIMUM_JAVA} or newer."
        raise EnvironmentSetupError(msg, fix=_REMEDY, version=version)
    logger.debug("using Java %s at %s", version, path)
    return install


def _version_of(path: Path) -> str:
    # The `release` file of a JDK or JRE contains the version, so no JVM has to be started.
    try:
        release = (path.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except OSError:
        return _run_version(path)
    match = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return match.group(1) if match else _run_version(path)


@lru_cache(maxsize=8)
def _run_version(path: Path) -> str:
    try:
        answer = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{path} does not start: {error}"
        raise EnvironmentSetupError(msg, fix=_REMEDY) from error
    text = answer.stderr + answer.stdout
    match = re.search(r'version "([^"]+)"', text)
    if answer.returncode != 0 or match is None:
        # macOS ships a /usr/bin/java that only reports that no Java is installed.
        msg = f"{path} -version printed no version: {' '.join(text.split())[:300] or 'no output'}"
        raise EnvironmentSetupError(msg, fix=_REMEDY)
    return match.group(1)


def _major(version: str) -> int:
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return 0
    if numbers[0] == "1" and len(numbers) > 1:
        return int(numbers[1])
    return int(numbers[0])

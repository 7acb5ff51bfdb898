"""Run Apache Ivy, and classify its failures."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.jvm.folders import CACHE_DIR_VARIABLE
from kpipe_platform.jvm.java import find_java

__all__ = ["IVY_SETTINGS_VARIABLE", "Coordinate", "run_ivy"]

logger = logging.getLogger(__name__)

IVY_SETTINGS_VARIABLE = "KPIPE_IVY_SETTINGS"

_QUOTED_LINES = 12
# Lines of dots, bars and colons are only the frame of Ivy's messages.
_FRAME = re.compile(r"^[\s.:|\-=]*$")
_NO_NETWORK = re.compile(
    r"UnknownHost|unknown host|Connection refused|Connect to .* failed|timed out|unreachable|"
    r"Server access error|SSLHandshake|reset|407 ",
    re.IGNORECASE,
)
_NO_SPACE = "No space left on device"


@dataclass(frozen=True)
class Coordinate:
    """Coordinate of an artifact in a Maven repository.

    Attributes:
        group: Group id, for example ``org.apache.kafka``.
        artifact: Artifact id, for example ``kafka_2.13``.
        version: Version, for example ``4.2.0``.
        classifier: Which of several files of the artifact; None for its jar.
        extension: Extension of the file.
    """

    group: str
    artifact: str
    version: str
    classifier: str | None = None
    extension: str = "jar"

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """Parse ``group:artifact:version``, or ``group:artifact:version:classifier@extension``.

        Raises:
            ConfigError: The text does not have one of these forms.
        """
        match = re.fullmatch(r"([\w.\-]+):([\w.\-]+):([\w.\-]+)(?::([\w.\-]+)@([\w.\-]+))?", text)
        if match is None:
            msg = f"{text!r} is not a Maven coordinate."
            raise ConfigError(msg, fix="write it as group:artifact:version")
        group, artifact, version, classifier, extension = match.groups()
        return cls(group, artifact, version, classifier, extension or "jar")

    def __str__(self) -> str:
        suffix = "" if self.classifier is None else f":{self.classifier}@{self.extension}"
        return f"{self.group}:{self.artifact}:{self.version}{suffix}"


def run_ivy(
    coordinates: Sequence[Coordinate],
    *,
    exclude: Sequence[str],
    dependencies: bool,
    jars_dir: Path,
    ivy_cache: Path,
    into: Path,
    progress: Callable[[str], None],
) -> None:
    """Resolve artifacts, with or without their dependencies, and copy their files to a folder.

    Args:
        coordinates: Artifacts to resolve together.
        exclude: Groups to exclude.
        dependencies: Whether to resolve the artifacts' dependencies.
        jars_dir: Folder that contains the Ivy jar.
        ivy_cache: Folder for Ivy's downloads.
        into: Folder to copy the files to.
        progress: Called with a line of text for each artifact.

    Raises:
        EnvironmentSetupError: No Java, or Ivy failed. The error contains the reason, such as no network, no disk
            space, or an unknown artifact.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".xml", encoding="utf-8") as ivy_file:
        ivy_file.write(_ivy_xml(coordinates, exclude, dependencies))
        ivy_file.flush()
        command: list[str | Path] = [
            *(find_java().path, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
            *("-cp", f"{jars_dir}/*", "org.apache.ivy.Main"),
            *("-cache", ivy_cache, "-ivy", ivy_file.name, "-confs", "default"),
            # Some libraries publish their jar as an OSGi bundle.
            *("-types", "jar", "bundle", *{each.extension for each in coordinates} - {"jar"}),
            *("-retrieve", f"{into}/[artifact]-[revision].[ext]"),
        ]
        settings = os.environ.get(IVY_SETTINGS_VARIABLE)
        if settings:
            command += ["-settings", settings]
        code, lines = _run(command, progress)
    if code != 0 or not any(into.iterdir()):
        raise _failure(coordinates, ivy_cache.parent, lines)


def _run(command: Sequence[str | Path], progress: Callable[[str], None]) -> tuple[int, Sequence[str]]:
    lines: deque[str] = deque(maxlen=1000)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as ivy:
        assert ivy.stdout is not None  # noqa: S101  # set by stdout=PIPE
        for line in ivy.stdout:
            text = line.strip()
            lines.append(text)
            logger.debug("ivy: %s", text)
            if text.startswith("found "):
                progress("  " + text.split(" in ")[0])
            elif text.startswith("downloading "):
                progress("  downloading " + text.removesuffix(" ...").rpartition("/")[2])
    return ivy.returncode, lines


def _failure(coordinates: Sequence[Coordinate], folder: Path, lines: Sequence[str]) -> EnvironmentSetupError:
    names = ", ".join(str(each) for each in coordinates)
    messages = [line for line in lines if not _FRAME.match(line)]
    errors = [line for line in messages if "ERROR" in line or _NO_NETWORK.search(line)]
    quoted = "\n".join(f"    {line}" for line in [*errors[:3], *messages[-_QUOTED_LINES:]])
    text = "\n".join(lines)
    if _NO_SPACE in text:
        reason = "the disk is full"
        fix = f"free about 300 MB, or set {CACHE_DIR_VARIABLE} to a folder on another disk"
    elif _NO_NETWORK.search(text):
        reason = "the Maven repository cannot be reached"
        fix = (
            "connect to the network; kpipe downloads the jars only once. Without a network, copy "
            f"{folder} from a machine that ran the same command, or set {CACHE_DIR_VARIABLE} to a copy. "
            "Behind a proxy, set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'. "
            f"For a mirror, set {IVY_SETTINGS_VARIABLE} to an ivysettings.xml"
        )
    elif "not found" in text:
        reason = "the repository does not have the artifact"
        fix = "check the name and version"
    else:
        reason = "Ivy failed"
        fix = "see Ivy's messages above, then run the command again: it continues where it stopped"
    msg = f"Cannot download {names}: {reason}. The last lines of Ivy's output:\n{quoted}"
    return EnvironmentSetupError(msg, fix=fix, reason=reason)


def _ivy_xml(coordinates: Sequence[Coordinate], exclude: Sequence[str], dependencies: bool) -> str:
    transitive = "" if dependencies else ' transitive="false"'
    # "default" is the artifact with its runtime dependencies.
    wanted = "\n".join(
        f"<dependency org={quoteattr(each.group)} name={quoteattr(each.artifact)} "
        f'rev={quoteattr(each.version)} conf="default->default"{transitive}{_end(each)}'
        for each in coordinates
    )
    excludes = "\n".join(f"<exclude org={quoteattr(group)}/>" for group in exclude)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '<info organisation="kpipe" module="fetch" revision="1"/>\n'
        '<configurations><conf name="default"/></configurations>\n'
        f"<dependencies>\n{wanted}\n{excludes}\n</dependencies>\n"
        "</ivy-module>\n"
    )


def _end(coordinate: Coordinate) -> str:
    if coordinate.classifier is None:
        return "/>"
    extension = quoteattr(coordinate.extension)
    return (
        f"><artifact name={quoteattr(coordinate.artifact)} type={extension} ext={extension} "
        f"m:classifier={quoteattr(coordinate.classifier)}/></dependency>"
    )

"""`kpipe doctor`: check this machine, download missing jars, and report how to fix other problems."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kpipe_platform.cli.output import progress_lines
from kpipe_platform.errors import EnvironmentSetupError, KpipeError
from kpipe_platform.jvm.folders import CACHE_DIR_VARIABLE, cache_dir
from kpipe_platform.jvm.jars import kafka_broker_jars, schema_registry_jars, spark_connector_jars
from kpipe_platform.jvm.java import find_java

__all__ = ["Finding", "Level", "doctor", "examine"]

_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)
# The Spark project tests Spark 4.2 with these versions; a newer Java usually works.
_TESTED_JAVA = (17, 21)

_MIB = 1024 * 1024
# Brokers preallocate index files and Spark spills to disk. With less than the first value, jobs fail; with less than
# the second, large jobs may fail.
_DISK_NEEDED_BYTES = 500 * _MIB
_DISK_WANTED_BYTES = 2048 * _MIB
# Memory for a broker, a Spark driver and the Python process of a run, with a few hundred MB of heap each.
_MEMORY_WANTED_BYTES = 2560 * _MIB


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """Result of one check of the machine.

    Attributes:
        subject: What was checked, for example ``Java``.
        level: Severity.
        detail: Result of the check.
        fix: How to fix a problem or a warning; empty otherwise.
    """

    subject: str
    level: Level
    detail: str
    fix: str = ""


def examine(
    *, jars: bool = True, registry: bool = False, progress: Callable[[str], None] | None = None
) -> Iterator[Finding]:
    """Check Python, Java, disk, memory and network, and download missing jars.

    Args:
        jars: Whether to download the jars of the broker and of Spark's Kafka connector that the cache lacks.
        registry: Whether to download those of the schema registry too.
        progress: Called with a line of text while jars are downloaded.

    Yields:
        One finding for each subject, in the order in which to fix them.
    """
    yield python_finding(sys.version_info[:2])
    java = _java_finding()
    yield java
    for folder in dict.fromkeys((cache_dir(), Path(tempfile.gettempdir()), Path.cwd())):
        finding = disk_finding(folder, _free_bytes(folder))
        # Of several folders with enough space, only the cache folder is reported, to keep problems visible.
        if finding.level is not Level.OK or folder == cache_dir():
            yield finding
    memory = memory_finding(_available_memory_bytes())
    if memory is not None:
        yield memory
    yield _loopback_finding()
    if jars and java.level is not Level.PROBLEM:
        yield _jars_finding(registry, progress)


def python_finding(version: tuple[int, int]) -> Finding:
    """Check the version of Python."""
    text = f"Python {version[0]}.{version[1]}"
    if _OLDEST_PYTHON <= version <= _NEWEST_PYTHON:
        return Finding("Python", Level.OK, text)
    fix = "recreate the virtual environment with Python 3.10, 3.11, 3.12 or 3.13"
    return Finding("Python", Level.PROBLEM, f"{text} is not supported", fix)


def disk_finding(folder: Path, free_bytes: int) -> Finding:
    """Check the free space of a folder that kpipe writes to."""
    detail = f"{free_bytes / 1024 / _MIB:.1f} GB free in {folder}"
    if free_bytes < _DISK_NEEDED_BYTES:
        fix = f"free at least {_DISK_NEEDED_BYTES // _MIB} MB there, {_elsewhere(folder)}"
        return Finding("Disk", Level.PROBLEM, detail, fix)
    if free_bytes < _DISK_WANTED_BYTES:
        fix = f"have at least {_DISK_WANTED_BYTES // _MIB} MB free: large jobs may fill the disk"
        return Finding("Disk", Level.WARNING, detail, fix)
    return Finding("Disk", Level.OK, detail)


def memory_finding(available_bytes: int | None) -> Finding | None:
    """Check the available memory; None if the system does not report it."""
    if available_bytes is None:
        return None
    detail = f"{available_bytes / 1024 / _MIB:.1f} GB of memory available"
    if available_bytes < _MEMORY_WANTED_BYTES:
        fix = "close other programs: a broker and a Spark session need about 2.5 GB"
        return Finding("Memory", Level.WARNING, detail, fix)
    return Finding("Memory", Level.OK, detail)


def doctor(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only problems and warnings.")] = False,
    jars: Annotated[bool, typer.Option(help="Download the jars that the cache lacks.")] = True,
    registry: Annotated[bool, typer.Option("--registry", help="Also download the schema registry (140 MB).")] = False,
) -> None:
    """Check Python, Java, disk, memory and network, and download missing jars.

    Exits with 1 if a problem must be fixed before kpipe can run.
    """
    console = Console(highlight=False)
    with progress_lines() as show:
        findings = list(examine(jars=jars, registry=registry, progress=show))
    shown = [finding for finding in findings if not quiet or finding.level is not Level.OK]
    if not quiet:
        console.print(_table(findings))
    for finding in shown:
        if finding.fix:
            console.print(f"{finding.level.value}: {escape(finding.detail)}", style=_STYLES[finding.level])
            console.print(f"  How to fix: {escape(finding.fix)}")
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(1)


_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        label = {Level.OK: "ok", Level.WARNING: "warning", Level.PROBLEM: "PROBLEM"}[finding.level]
        # A detail that quotes a program's output has many lines; it is printed below with its fix.
        first_line = finding.detail.splitlines()[0]
        table.add_row(f"[{_STYLES[finding.level]}]{label}[/]", finding.subject, escape(first_line))
    return table


def _java_finding() -> Finding:
    try:
        java = find_java()
    except EnvironmentSetupError as error:
        return _as_finding("Java", error)
    detail = f"Java {java.version} at {java.path}"
    if java.major > max(_TESTED_JAVA):
        return Finding("Java", Level.WARNING, detail, "if Spark does not start, install Java 17 or 21")
    return Finding("Java", Level.OK, detail)


def _jars_finding(registry: bool, progress: Callable[[str], None] | None) -> Finding:
    spark_version = importlib.metadata.version("pyspark")
    programs = "Kafka and of Spark's Kafka connector"
    # Ivy requests one file at a time and mostly waits for responses, so concurrent downloads take no longer than the
    # slowest one.
    with ThreadPoolExecutor() as downloads:
        sets = [
            downloads.submit(kafka_broker_jars, progress=progress),
            downloads.submit(spark_connector_jars, spark_version, progress=progress),
        ]
        if registry:
            programs = "Kafka, of Spark's Kafka connector and of the schema registry"
            sets.append(downloads.submit(schema_registry_jars, progress=progress))
    try:
        count = sum(len(each.result()) for each in sets)
    except KpipeError as error:
        return _as_finding("Jars", error)
    return Finding("Jars", Level.OK, f"{count} jars of {programs} in {cache_dir() / 'jars'}")


def _loopback_finding() -> Finding:
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
    except OSError as error:
        fix = "allow programs to listen on 127.0.0.1: Kafka, Spark and the Dagster UI do"
        return Finding("Network", Level.PROBLEM, f"cannot listen on 127.0.0.1: {error}", fix)
    return Finding("Network", Level.OK, "programs can listen on 127.0.0.1")


def _as_finding(subject: str, error: KpipeError) -> Finding:
    return Finding(subject, Level.PROBLEM, error.message, error.fix or "")


def _elsewhere(folder: Path) -> str:
    if folder == cache_dir():
        return f"or set {CACHE_DIR_VARIABLE} to a folder on another disk"
    if folder == Path(tempfile.gettempdir()):
        return "or set TMPDIR to a folder on another disk"
    return "or work in a folder on another disk"


def _free_bytes(folder: Path) -> int:
    # The folder may not exist yet. The disk of its nearest existing parent counts then.
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _available_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    typer.run(doctor)

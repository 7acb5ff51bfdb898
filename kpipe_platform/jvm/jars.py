"""Jars from Maven repositories, downloaded once to a cache folder with the Ivy that pyspark ships.

A set of jars is stored in ``{cache_dir()}/jars/{name}/``, with a marker file that lists them. The folder is created by
a rename after all its files are written, so an interrupted download is never mistaken for a complete one. Later calls
only read the marker and the sizes of the jars, and need neither network nor lock.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from filelock import FileLock

from kpipe_platform.errors import EnvironmentSetupError
from kpipe_platform.jvm.folders import CACHE_DIR_VARIABLE, cache_dir
from kpipe_platform.jvm.ivy import Coordinate, run_ivy

__all__ = [
    "KAFKA_VERSION",
    "artifact_name",
    "cache_dir",
    "class_path",
    "connector_coordinate",
    "fetch_jars",
    "kafka_broker_jars",
    "pyspark_jars_dir",
    "schema_registry_jars",
    "spark_connector_jars",
]

logger = logging.getLogger(__name__)

KAFKA_VERSION = "4.2.0"
_SCALA = "2.13"
_CONNECTOR = f"spark-sql-kafka-0-10_{_SCALA}"
# Spark's from_avro and to_avro. A jar of 90 kB, so every session has it.
_AVRO = f"spark-avro_{_SCALA}"
# The Kafka distribution adds a logging backend that the broker's Maven dependencies do not include. This is the version
# of log4j-core that kafka_2.13 4.2.0 depends on.
_KAFKA_LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3"
# Built with its database, H2. The registry's other builds need a database server or Kafka.
_REGISTRY = "io.apicurio:apicurio-registry-app:2.6.13.Final:all@tar.gz"

# The broker's jars take 42 MB twice, in Ivy's cache and in the target folder; a Spark package takes less.
_NEEDED_BYTES = 300 * 1024 * 1024
# An archive of 142 MB, twice, and its contents.
_NEEDED_FOR_REGISTRY_BYTES = 500 * 1024 * 1024
_MARKER = "complete.json"

Progress = Callable[[str], None]


def kafka_broker_jars(*, progress: Progress | None = None) -> list[Path]:
    """Return the jars of the Apache Kafka broker and its tools; see `fetch_jars`."""
    return fetch_jars(f"org.apache.kafka:kafka_{_SCALA}:{KAFKA_VERSION}", _KAFKA_LOGGING, progress=progress)


def schema_registry_jars(*, progress: Progress | None = None) -> list[Path]:
    """Return the jars of Apicurio Registry, the one to start first; see `fetch_jars`."""
    return fetch_jars(_REGISTRY, dependencies=False, needed_bytes=_NEEDED_FOR_REGISTRY_BYTES, progress=progress)


def connector_coordinate(spark_version: str) -> str:
    """Return the Maven coordinate of the Kafka connector, for ``spark.jars.packages``."""
    return f"org.apache.spark:{_CONNECTOR}:{spark_version}"


def spark_connector_jars(
    spark_version: str,
    artifacts: Sequence[str] = (_CONNECTOR, _AVRO),
    *,
    progress: Progress | None = None,
) -> list[Path]:
    """Return the jars that a Spark session needs in addition to pyspark's own; see `fetch_jars`.

    Args:
        spark_version: Version of the installed pyspark, for example ``4.2.0``.
        artifacts: Modules of ``org.apache.spark``; by default the Kafka connector and the functions for Avro.
        progress: Called with a line of text for each step; details are indented.

    Returns:
        Paths for ``spark.jars``, without jars that pyspark already ships in some version.
    """
    coordinates = [f"org.apache.spark:{artifact}:{spark_version}" for artifact in artifacts]
    # pyspark always ships Hadoop and Scala, so excluding them saves a download of 60 MB.
    jars = fetch_jars(*coordinates, exclude=("org.apache.hadoop", "org.scala-lang"), progress=progress)
    shipped = {artifact_name(path.name) for path in pyspark_jars_dir().glob("*.jar")}
    return [path for path in jars if artifact_name(path.name) not in shipped]


def fetch_jars(
    coordinate: str,
    *more: str,
    exclude: Sequence[str] = (),
    dependencies: bool = True,
    needed_bytes: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Return the jars of an artifact and its dependencies, from the cache or from the network.

    If several processes need the same jars at the same time, one downloads them and the others wait.

    Args:
        coordinate: ``group:artifact:version``, or ``group:artifact:version:classifier@tar.gz`` for an archive, which is
            unpacked.
        *more: Further coordinates, resolved together with the first.
        exclude: Groups to exclude from the dependencies.
        dependencies: Whether to include dependencies, True by default; False if other jars already provide them.
        needed_bytes: Free disk space that the download needs, 300 MB by default.
        progress: Called with a line of text for each step; details are indented.

    Returns:
        Paths of the jars, sorted by path.

    Raises:
        ConfigError: A coordinate does not have this form.
        EnvironmentSetupError: No Java, no network, no such artifact, no disk space, or a cache folder that cannot be
            written.
    """
    coordinates = [Coordinate.parse(text) for text in (coordinate, *more)]
    folder = cache_dir() / "jars" / _folder_name(coordinates, exclude, dependencies)
    jars = _cached(folder)
    if jars is not None:
        return jars
    _make_room(folder.parent, needed_bytes or _NEEDED_BYTES)
    # One lock and one Ivy cache per set, so that different sets can be downloaded in parallel.
    with FileLock(folder.parent / f".{folder.name}.lock"):
        jars = _cached(folder)
        if jars is None:
            _download(coordinates, exclude, dependencies, folder, progress)
            jars = _cached(folder)
    if jars is None:
        msg = f"The jars in {folder} changed during the download."
        raise EnvironmentSetupError(msg, fix="run the command again")
    return jars


def pyspark_jars_dir() -> Path:
    """Return the folder of the jars that the installed pyspark ships, without importing pyspark.

    Raises:
        EnvironmentSetupError: pyspark is not installed, or is installed without jars.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        msg = "pyspark is not installed. kpipe downloads jars with the Ivy that it ships."
        raise EnvironmentSetupError(msg, fix="pip install pyspark")
    folder = Path(spec.origin).parent / "jars"
    if not any(folder.glob("ivy-*.jar")):
        msg = f"The installed pyspark has no Ivy in {folder}."
        raise EnvironmentSetupError(msg, fix="pip install pyspark (pyspark-client alone has no jars)")
    return folder


def class_path(jars: Iterable[Path]) -> str:
    """Render jars as the value of Java's ``-cp``."""
    return ":".join(str(path) for path in jars)


def artifact_name(file_name: str) -> str:
    """Remove version and extension from a jar's file name: ``slf4j-api-2.0.17.jar`` becomes ``slf4j-api``."""
    return re.sub(r"-\d+\.[^-]*(-[^-]+)?\.jar$", "", file_name)


def _folder_name(coordinates: Sequence[Coordinate], exclude: Sequence[str], dependencies: bool) -> str:
    first = coordinates[0]
    # Keep the name of sets with dependencies as it was before this option existed, so that existing caches stay valid.
    whole = [[str(each) for each in coordinates], sorted(exclude), *([] if dependencies else ["alone"])]
    digest = hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:8]
    return f"{first.artifact}-{first.version}-{digest}"


def _cached(folder: Path) -> list[Path] | None:
    try:
        sizes = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        jars = [folder / name for name in sorted(sizes)]
        complete = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return jars if complete else None


def _make_room(folder: Path, needed_bytes: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        msg = f"The cache folder {folder} cannot be created: {error}"
        raise EnvironmentSetupError(msg, fix=f"set {CACHE_DIR_VARIABLE} to a writable folder") from error
    if free_bytes < needed_bytes:
        raise _disk_full(folder, free_bytes, needed_bytes)


def _download(
    coordinates: Sequence[Coordinate],
    exclude: Sequence[str],
    dependencies: bool,
    folder: Path,
    progress: Progress | None,
) -> None:
    report = progress or (lambda _: None)
    names = ", ".join(str(each) for each in coordinates)
    logger.info("downloading %s into %s (once)", names, folder)
    report(f"Downloading {names} (once, about half a minute)")
    ivy_cache = folder.parent / f".ivy-{folder.name}"
    temporary = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder.parent))
    try:
        run_ivy(
            coordinates,
            exclude=exclude,
            dependencies=dependencies,
            jars_dir=pyspark_jars_dir(),
            ivy_cache=ivy_cache,
            into=temporary,
            progress=report,
        )
        for archive in temporary.glob("*.tar.gz"):
            shutil.unpack_archive(archive, temporary, filter="data")
            archive.unlink()
        sizes = {str(path.relative_to(temporary)): path.stat().st_size for path in temporary.rglob("*.jar")}
        (temporary / _MARKER).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        temporary.chmod(0o755)
        # The existing folder has no marker or does not match it, so no process can be using it.
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(folder, 0, _NEEDED_BYTES) from error
        msg = f"Cannot write the jars to {folder}: {error}"
        fix = f"set {CACHE_DIR_VARIABLE} to a writable folder"
        raise EnvironmentSetupError(msg, fix=fix) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    # After a failure the Ivy cache is kept, so that the next attempt continues from it.
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _disk_full(folder: Path, free_bytes: int, needed_bytes: int) -> EnvironmentSetupError:
    return EnvironmentSetupError(
        f"Not enough disk space for jars in {folder}: {free_bytes // 2**20} MB are free, "
        f"about {needed_bytes // 2**20} MB are needed.",
        fix=f"free some space, or set {CACHE_DIR_VARIABLE} to a folder on another disk",
    )

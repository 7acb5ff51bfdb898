"""An archive of the Python packages that slices need on a cluster's executors. Imports no Spark.

The archive contains kpipe, the packages that its tasks import, their requirements, and the user's additions. PySpark is
not included, because it comes with Spark. Spark unpacks the archive into the working folder of each executor.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import platform
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import kpipe_platform
from kpipe_platform.errors import ConfigError, EnvironmentSetupError

__all__ = ["ArchiveManifest", "read_manifest", "write_archive"]

TASK_PACKAGES = ("confluent-kafka", "lazy-loader", "numpy", "pandas", "pyarrow", "tenacity")
"""Distributions that tasks import, for the writer, Arrow batches, and row functions over pandas."""
OPTIONAL_PACKAGES = ("aws-msk-iam-sasl-signer-python", "fastavro", "jsonschema-rs", "protobuf", "ptars")
"""Distributions that tasks import for an extra. They are packed if they are installed here."""

MANIFEST = "kpipe-archive.json"
_OWN = "kpipe_platform"
# Not needed by tasks, and a third of the size.
_LEFT_OUT = frozenset({"__pycache__", "tests", "include"})
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)([^;]*)(?:;(.*))?$")
# Compression level. Level 9 takes four times as long and saves only 2%.
_LEVEL = 5
# A fixed timestamp, so that the same packages make an identical archive and its caches stay valid.
_TIME = 0


@dataclass(frozen=True)
class ArchiveManifest:
    """The contents of an archive.

    Attributes:
        python: Python feature release, for example ``3.11``. The executors' Python must have the same one.
        machine: Operating system and machine type, for example ``Linux x86_64``.
        kpipe: Digest of kpipe's own code.
        distributions: Versions of the distributions, by name.
        modules: Names of the user's modules.
    """

    python: str
    machine: str
    kpipe: str
    distributions: dict[str, str]
    modules: tuple[str, ...] = ()

    def check(self, path: Path) -> None:
        """Refuse an archive that does not match this process.

        Args:
            path: The archive, for the message.

        Raises:
            EnvironmentSetupError: The archive is for a different Python, or has different versions.
        """
        differing = []
        if self.python != _python():
            differing.append(f"it is for Python {self.python}, but this process runs {_python()}")
        if self.kpipe != _digest(_own_files()):
            differing.append("its kpipe_platform differs from the one that is installed here")
        for name, packed in self.distributions.items():
            here = _version(name)
            if here is not None and here != packed:
                differing.append(f"its {name} is {packed}, but {here} is installed here")
        if differing:
            msg = f"The archive {path} does not match this process: {'; '.join(differing)}."
            raise EnvironmentSetupError(msg, fix=f"create it again: kpipe spark pack --output {path}")


def write_archive(
    path: Path, *, packages: Sequence[str] = (), modules: Sequence[str] = (), without: Sequence[str] = ()
) -> ArchiveManifest:
    """Write the archive. An existing file is replaced only after the new one is complete.

    Args:
        path: Path of the archive. Its name must end in ``.tar.gz``.
        packages: Further distributions, which are packed with their requirements.
        modules: The user's modules or packages that can be imported here and are not part of a distribution.
        without: Distributions that the executors already have.

    Raises:
        ConfigError: The name has another ending, or a module or distribution is missing here.
    """
    if not path.name.endswith(".tar.gz"):
        msg = f"The archive name {path.name} does not end in .tar.gz."
        raise ConfigError(msg, fix="use a name that ends in .tar.gz, so that Spark can unpack the archive")
    distributions = _with_requirements([*TASK_PACKAGES, *packages], {_canonical(name) for name in without})
    own = _own_files()
    files = dict(own)
    for each in distributions.values():
        files.update(_distribution_files(each))
    for name in modules:
        files.update(_module_files(name))
    manifest = ArchiveManifest(
        python=_python(),
        machine=f"{platform.system()} {platform.machine()}",
        kpipe=_digest(own),
        distributions={name: each.version for name, each in sorted(distributions.items())},
        modules=tuple(modules),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with (
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", _LEVEL, raw, _TIME) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            # The manifest is the first member, so that it can be read without unpacking the archive.
            _add(archive, MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
            for name, file in sorted(files.items()):
                _add(archive, name, file.read_bytes())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return manifest


def read_manifest(path: Path) -> ArchiveManifest:
    """Read the manifest of an archive.

    Raises:
        ConfigError: The file cannot be read, or `write_archive` did not make it.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            first = archive.next()
            content = archive.extractfile(first) if first is not None and first.name == MANIFEST else None
            if content is None:
                msg = f"{path} was not created by kpipe spark pack."
                raise ConfigError(msg, fix=f"create an archive: kpipe spark pack --output {path}")
            fields = json.loads(content.read())
    except (OSError, tarfile.TarError) as error:
        msg = f"The archive {path} cannot be read: {error}"
        raise ConfigError(msg, fix=f"create it: kpipe spark pack --output {path}") from error
    return ArchiveManifest(**{**fields, "modules": tuple(fields["modules"])})


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    member.mtime = _TIME
    archive.addfile(member, io.BytesIO(content))


def _with_requirements(names: Iterable[str], without: set[str]) -> dict[str, Distribution]:
    """The distributions and their installed requirements, by canonical name."""
    distributions: dict[str, Distribution] = {}
    waiting = [*((name, True) for name in names), *((name, False) for name in OPTIONAL_PACKAGES)]
    while waiting:
        name, must = waiting.pop()
        key = _canonical(name)
        # PySpark and py4j come with Spark; kpipe is packed separately.
        if key in distributions or key in without or key in ("pyspark", "py4j", "kpipe-platform"):
            continue
        try:
            distributions[key] = distribution(name)
        except PackageNotFoundError as error:
            # A requirement for another platform or Python version is neither installed here nor needed there.
            if not must:
                continue
            msg = f"The package {name} is not installed here, so it cannot be packed."
            raise ConfigError(msg, fix=f"pip install {name}, or omit it") from error
        waiting += [(each, False) for each in _requirements(distributions[key])]
    return distributions


def _requirements(of: Distribution) -> Iterator[str]:
    for line in of.requires or ():
        match = _REQUIREMENT.match(line)
        # Requirements of extras are optional, so they are not packed.
        if match is not None and "extra" not in (match.group(3) or ""):
            yield match.group(1)


def _distribution_files(of: Distribution) -> Iterator[tuple[str, Path]]:
    if of.files is None:
        msg = f"The installed {of.metadata['Name']} does not list its files, so it cannot be packed."
        raise ConfigError(msg, fix="install it from a wheel, or name its packages with --module")
    for each in of.files:
        # Skip scripts and data outside the packages, whose paths begin with "..".
        if ".." in each.parts or _LEFT_OUT.intersection(each.parts):
            continue
        path = Path(str(of.locate_file(each)))
        if path.is_file():
            yield each.as_posix(), path


def _module_files(name: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(name)
    if "." in name or spec is None or (spec.origin is None and not spec.submodule_search_locations):
        msg = f"There is no top-level module or package {name!r} to pack."
        raise ConfigError(msg, fix="give the name of a module or package that can be imported from this folder")
    folders = spec.submodule_search_locations
    if not folders:
        file = Path(str(spec.origin))
        yield file.name, file
        return
    for folder in map(Path, folders):
        yield from _folder_files(folder)


def _own_files() -> dict[str, Path]:
    return dict(_folder_files(Path(str(kpipe_platform.__file__)).parent))


def _folder_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in folder.rglob("*"):
        inside = file.relative_to(folder.parent)
        if file.is_file() and not _LEFT_OUT.intersection(inside.parts):
            yield inside.as_posix(), file


def _digest(files: dict[str, Path]) -> str:
    whole = hashlib.sha256()
    for name, file in sorted(files.items()):
        whole.update(name.encode())
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def _version(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])

"""Compile the text of a ``.proto`` file. Only the driver does that: executors get descriptors."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kpipe_platform.codecs.protobuf import _compat
from kpipe_platform.errors import ConfigError, TransientError
from kpipe_platform.registry.model import Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

MAIN = "kpipe-schema.proto"
"""Name of the file that has no name in a registry: a schema that others do not refer to."""
# The compiler took 0.6 s for a schema of 10 MB here.
_TIMEOUT_S = 60
_MAX_QUOTED = 500

# Files that schemas import and that no registry has: Protobuf's, Google's common types and Confluent's.
_PACKAGES = {"google/": "google.", "confluent/": "confluent_kafka.schema_registry.confluent."}
_NAME = re.compile(r"(google/(?:protobuf|type)/|confluent/(?:types?/)?)(\w+)\.proto")
_IMPORT = re.compile(r'\bimport\s+(?:public\s+|weak\s+)?"([^"]+)"')
# Java's serializers write a map as a repeated message with this option, which the compiler refuses in a text. Another
# option of messages, which no schema has on the entries of a map, takes its place until the text is compiled.
_MAP_ENTRY = re.compile(r"\boption\s+map_entry\s*=\s*true\s*;")
_STAND_IN = "deprecated_legacy_json_field_conflicts"


@lru_cache(maxsize=1024)
def compiled(schema: Schema) -> str:
    """Compile a schema, and those that it refers to.

    Args:
        schema: Its text is that of a ``.proto`` file, or a ``FileDescriptorProto`` in base64, as confluent-kafka's
            serializer registers it.

    Returns:
        A serialized ``FileDescriptorSet`` in base64. Its last file is that of the schema.

    Raises:
        ConfigError: The compiler refuses the schema.
        TransientError: The compiler did not finish in time, or was killed.
        EnvironmentSetupError: The extra ``protobuf`` is not installed.
    """
    _compat.require()
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    named = {name: each.text for name, each in schema.dependencies().items()}
    descriptor = _descriptor(schema.text)
    main = MAIN if descriptor is None else descriptor.name
    files = {**named, main: schema.text}
    with tempfile.TemporaryDirectory(prefix="kpipe-protoc-") as folder:
        known = Path(folder, "known.bin")
        descriptors, imports = [], list[str]()
        for name, text in files.items():
            descriptor = _descriptor(text)
            if descriptor is None:
                _write(Path(folder, "src"), name, _MAP_ENTRY.sub(f"option {_STAND_IN} = true;", text))
                imports += _IMPORT.findall(text)
            else:
                descriptor.name = name
                descriptors.append(descriptor)
                imports += descriptor.dependency
        own = _own_files([name for name in imports if name not in files])
        known.write_bytes(FileDescriptorSet(file=[*own, *descriptors]).SerializeToString())
        found = _run(Path(folder), main)
    if any(map(_MAP_ENTRY.search, files.values())):
        found = _with_maps(found)
    return base64.b64encode(found).decode("ascii")


def _with_maps(data: bytes) -> bytes:
    """Turn the messages that stand for the entries of maps into these."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    def convert(messages: Iterable[DescriptorProto]) -> None:
        for each in messages:
            if each.options.HasField(_STAND_IN) and [one.name for one in each.field] == ["key", "value"]:
                each.options.ClearField(_STAND_IN)
                each.options.map_entry = True
            convert(each.nested_type)

    found = FileDescriptorSet.FromString(data)
    for file in found.file:
        for message in file.message_type:
            convert(message.nested_type)
    return bytes(found.SerializeToString())


def _run(folder: Path, main: str) -> bytes:
    source, out = folder / "src", folder / "out.bin"
    source.mkdir(exist_ok=True)
    arguments = [
        f"-I{source}",
        f"--descriptor_set_in={folder / 'known.bin'}",
        "--include_imports",
        f"--descriptor_set_out={out}",
        main,
    ]
    done: subprocess.CompletedProcess[str] | None = None
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            _compat.protoc_command(arguments), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    if done is None or done.returncode < 0:
        # Says nothing about the schema, so its records must not become dead letters.
        how = f"did not finish within {_TIMEOUT_S:g} s" if done is None else f"was killed by signal {-done.returncode}"
        msg = f"the Protobuf compiler {how}, so a schema cannot be used"
        raise TransientError(msg, fix="run again; if it is not the load of the machine, check the schema")
    if done.returncode:
        lines = [each for each in done.stderr.splitlines() if not re.match(r"WARNING: All log|[WI]\d{4} ", each)]
        said = " ".join(" ".join(lines).replace(f"{source}/", "").split())
        reason = said[:_MAX_QUOTED] or f"exit code {done.returncode}"
        raise ConfigError(f"the Protobuf compiler refuses the schema: {reason}", fix="correct the schema")
    return out.read_bytes()


def _descriptor(text: str) -> FileDescriptorProto | None:
    """Return the file that a text in base64 represents; None for any other text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if found.name else None


def _write(folder: Path, name: str, text: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        msg = f"a Protobuf schema refers to another as {name!r}, which is not the relative path of a file"
        raise ConfigError(msg, fix="correct the reference in the registry")
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def own_file(name: str) -> FileDescriptorProto | None:
    """Return a file that no registry has, such as ``google/protobuf/timestamp.proto``; None for any other name."""
    from google.protobuf import descriptor_pool
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if not _NAME.fullmatch(name):
        return None
    root, _, path = name.removesuffix(".proto").partition("/")
    try:
        importlib.import_module(f"{_PACKAGES[f'{root}/']}{path.replace('/', '.')}_pb2")
        return FileDescriptorProto.FromString(descriptor_pool.Default().FindFileByName(name).serialized_pb)
    except (ImportError, KeyError):
        return None


def _own_files(names: list[str]) -> list[FileDescriptorProto]:
    """Return these of the names that are such files, each after those that it imports."""
    found: dict[str, FileDescriptorProto] = {}

    def add(name: str) -> None:
        file = None if name in found else own_file(name)
        if file is not None:
            for each in file.dependency:
                add(each)
            found[name] = file

    for each in names:
        add(each)
    return list(found.values())

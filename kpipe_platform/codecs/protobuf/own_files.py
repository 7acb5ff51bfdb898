"""Files that schemas import and that no registry has: Protobuf's, Google's common types and Confluent's."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_PACKAGES = {"google/": "google.", "confluent/": "confluent_kafka.schema_registry.confluent."}
_NAME = re.compile(r"(google/(?:protobuf|type)/|confluent/(?:types?/)?)(\w+)\.proto")
_IMPORT = re.compile(r'\bimport\s+(?:public\s+|weak\s+)?"([^"]+)"')


def own_file(name: str) -> FileDescriptorProto | None:
    """Return such a file, for example ``google/protobuf/timestamp.proto``; None for any other name."""
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


def own_files(names: list[str]) -> list[FileDescriptorProto]:
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


def imports_of(text: str) -> list[str]:
    """Return the names of the files that the text of a ``.proto`` file imports."""
    return _IMPORT.findall(text)

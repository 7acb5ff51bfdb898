"""Descriptors of message types: from a file, a generated class, or text."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kpipe_platform.codecs.protobuf import _compat
from kpipe_platform.codecs.protobuf.compiler import compiled, own_file
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

_FIX = (
    "give the path of a file that protoc wrote with --include_imports --descriptor_set_out, its bytes, the text of a "
    '.proto file, a generated message class, or its import path, such as "shop.orders_pb2:Order"'
)
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PROTO_TEXT = re.compile(r"\b(message|syntax|edition)\b[^;{]*[;{=]")


def descriptors_of(schema: object) -> tuple[str, str | None]:
    """Find the descriptors of a message type.

    Args:
        schema: In one of the forms that ``ProtobufCodec`` takes.

    Returns:
        A serialized ``FileDescriptorSet`` in base64, in which each file comes after those that it imports, and the
        message type's full name if the schema is a class.

    Raises:
        ConfigError: There are no descriptors, or they are incomplete.
        EnvironmentSetupError: An optional package is missing.
    """
    _compat.require()
    if isinstance(schema, str):
        if _IMPORT_PATH.fullmatch(schema):
            return _of_class(_imported(schema))
        if _PROTO_TEXT.search(schema):
            return compiled(Schema(schema, "PROTOBUF")), None
        return _parsed(_bytes_of(schema)), None
    if isinstance(schema, bytes | bytearray):
        return _parsed(bytes(schema)), None
    if isinstance(schema, Path):
        return _parsed(_read(schema)), None
    return _of_class(schema)


def message_type(descriptors: str, message: str | None) -> Descriptor:
    """Return the descriptor of a message type.

    Args:
        descriptors: A serialized ``FileDescriptorSet`` in base64.
        message: The type's full name. None: the only message type at the top level of the last file.

    Raises:
        ConfigError: There is no such type, or there are several, or a descriptor is invalid.
    """
    _compat.require()
    pool, last = _pool(descriptors)
    if message is not None:
        try:
            return pool.FindMessageTypeByName(message)
        except KeyError:
            names = ", ".join(_names(pool.FindFileByName(last).message_types_by_name.values()))
            msg = f"the Protobuf schema has no message type {message!r}"
            raise ConfigError(msg, fix=f"give a full name; {last} has: {names or 'none'}") from None
    found = list(pool.FindFileByName(last).message_types_by_name.values())
    if len(found) != 1:
        names = ", ".join(each.full_name for each in found)
        msg = f"the Protobuf schema {last} has {len(found)} message types: {names}"
        raise ConfigError(msg, fix='name the type of the records: ProtobufCodec(message="...")')
    return found[0]


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """Return the path of a message type within its file, as Confluent's wire format has it."""
    path: list[int] = []
    each: Descriptor | None = message
    while each is not None:
        parent = each.containing_type
        siblings = each.file.message_types_by_name if parent is None else parent.nested_types_by_name
        path.append(list(siblings).index(each.name))
        each = parent
    return tuple(reversed(path))


def files_of(file: FileDescriptor) -> dict[str, FileDescriptorProto]:
    """Return a file and those that it imports by name, each after those that it imports itself."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    files: dict[str, FileDescriptorProto] = {}

    def add(file: FileDescriptor) -> None:
        if file.name not in files:
            for each in file.dependencies:
                add(each)
            files[file.name] = FileDescriptorProto.FromString(file.serialized_pb)

    add(file)
    return files


def _encoded(files: Iterable[FileDescriptorProto]) -> str:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    data = FileDescriptorSet(file=files).SerializeToString(deterministic=True)
    return base64.b64encode(data).decode("ascii")


def last_file(descriptors: str) -> FileDescriptorProto:
    """Return the last file, which is the one that others were imported for."""
    return _set(base64.b64decode(descriptors)).file[-1]


@lru_cache(maxsize=256)
def _pool(descriptors: str) -> tuple[DescriptorPool, str]:
    from google.protobuf.descriptor_pool import DescriptorPool

    pool, files = DescriptorPool(), _set(base64.b64decode(descriptors)).file
    for each in files:
        try:
            pool.AddSerializedFile(each.SerializeToString())
        except TypeError as error:
            msg = f"the Protobuf descriptor of {each.name!r} is invalid: {error}"
            raise ConfigError(msg, fix=_FIX) from error
    return pool, files[-1].name


def _names(messages: Iterable[Descriptor]) -> Iterator[str]:
    for each in messages:
        yield each.full_name
        yield from _names(one for one in each.nested_types if not one.GetOptions().map_entry)


def _set(data: bytes) -> FileDescriptorSet:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(data)
    except DecodeError as error:
        raise ConfigError("schema: these bytes are not a serialized FileDescriptorSet", fix=_FIX) from error
    if not found.file or not all(each.name for each in found.file):
        raise ConfigError("schema: the FileDescriptorSet has no files", fix=_FIX)
    return found


def _parsed(data: bytes) -> str:
    """Sort the files, and add those of Protobuf itself."""
    found = _set(data)
    known, sorted_files = {each.name: each for each in found.file}, dict[str, Any]()

    def add(name: str, importer: str) -> None:
        if name in sorted_files:
            return
        file = known.get(name) or own_file(name)
        if file is None:
            msg = f"schema: the FileDescriptorSet lacks {name!r}, which {importer!r} imports"
            raise ConfigError(msg, fix="write it with protoc --include_imports --descriptor_set_out=FILE")
        sorted_files[name] = None  # a circle of imports, which the pool refuses
        for each in file.dependency:
            add(each, name)
        del sorted_files[name]
        sorted_files[name] = file

    for each in found.file:
        add(each.name, "")
    # The last file of the set is the one that protoc was called for.
    sorted_files[found.file[-1].name] = sorted_files.pop(found.file[-1].name)
    return _encoded(sorted_files.values())


def _of_class(schema: object) -> tuple[str, str]:
    from google.protobuf.descriptor import Descriptor

    message = getattr(schema, "DESCRIPTOR", schema)
    if not isinstance(message, Descriptor):
        msg = f"schema: {schema!r} is not a Protobuf schema"
        raise ConfigError(msg, fix=_FIX)
    return _encoded(files_of(message.file).values()), message.full_name


def _imported(path: str) -> object:
    module, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"schema: the message class {path!r} cannot be imported: {error}"
        raise ConfigError(msg, fix="generate the module with protoc --python_out, and check its path") from error
    return found


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return _read(Path(text))


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}..."
        raise ConfigError(f"schema: the file {shown!r} cannot be read: {error}"[:500], fix=_FIX) from error
    if path.suffix == ".proto":
        msg = f"schema: {path} is the text of a .proto file, which may import others"
        raise ConfigError(msg, fix="compile it: protoc --include_imports --descriptor_set_out=orders.desc orders.proto")
    return data

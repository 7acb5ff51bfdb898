"""Write a file descriptor as the text of a ``.proto`` file, which is what every registry accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kpipe_platform.codecs.protobuf import types as P
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
    )

_NAMES = {
    P.DOUBLE: "double",
    P.FLOAT: "float",
    P.INT64: "int64",
    P.UINT64: "uint64",
    P.INT32: "int32",
    P.FIXED64: "fixed64",
    P.FIXED32: "fixed32",
    P.BOOL: "bool",
    P.STRING: "string",
    P.BYTES: "bytes",
    P.UINT32: "uint32",
    P.SFIXED32: "sfixed32",
    P.SFIXED64: "sfixed64",
    P.SINT32: "sint32",
    P.SINT64: "sint64",
}
_LABELS = {2: "required ", 3: "repeated "}
_MAX_NUMBER = 2**29


def proto_text(file: FileDescriptorProto) -> str:
    """Return the text of a file, without its services, its extensions, and options that are extensions.

    Raises:
        ConfigError: The file is of an edition; its features have no place here.
    """
    syntax = file.syntax or "proto2"
    if syntax not in ("proto2", "proto3"):
        msg = f"{file.name!r} is of a Protobuf edition, which kpipe reads, but cannot register"
        raise ConfigError(msg, fix="register the schema with another tool; kpipe uses the registered schema")
    lines = [f'syntax = "{syntax}";']
    if file.package:
        lines.append(f"package {file.package};")
    public = set(file.public_dependency)
    for i, name in enumerate(file.dependency):
        lines.append(f"import {'public ' if i in public else ''}{json.dumps(name)};")
    lines += [f"option {each};" for each in _options(file.options)]
    for enum in file.enum_type:
        lines += _enum(enum)
    for message in file.message_type:
        lines += _message(message, syntax)
    return "\n".join(lines) + "\n"


def _message(message: DescriptorProto, syntax: str) -> Iterator[str]:
    yield f"message {message.name} {{"
    yield from _indented(_body(message, syntax))
    yield "}"


def _body(message: DescriptorProto, syntax: str) -> Iterator[str]:
    nested = {each.name: each for each in message.nested_type}
    groups = {each.type_name.rpartition(".")[2] for each in message.field if each.type == P.GROUP}
    yield from (f"option {each};" for each in _options(message.options))
    for enum in message.enum_type:
        yield from _enum(enum)
    for each in message.nested_type:
        if not each.options.map_entry and each.name not in groups:
            yield from _message(each, syntax)
    in_oneofs: dict[int, list[FieldDescriptorProto]] = {}
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            in_oneofs.setdefault(field.oneof_index, []).append(field)
        else:
            yield from _field(field, nested, syntax)
    for index, members in in_oneofs.items():
        yield f"oneof {message.oneof_decl[index].name} {{"
        for field in members:
            yield from _indented(_field(field, nested, syntax, in_oneof=True))
        yield "}"
    yield from _reserved([(each.start, each.end - 1) for each in message.reserved_range], message.reserved_name)
    for span in message.extension_range:
        yield f"extensions {span.start} to {_end(span.end - 1)};"


def _field(
    field: FieldDescriptorProto, nested: dict[str, DescriptorProto], syntax: str, *, in_oneof: bool = False
) -> Iterator[str]:
    label = _LABELS.get(field.label, "optional " if field.proto3_optional or syntax == "proto2" else "")
    entry = nested.get(field.type_name.rpartition(".")[2])
    if field.type == P.GROUP and entry is not None:
        yield f"{'' if in_oneof else label}group {entry.name} = {field.number} {{"
        yield from _indented(_body(entry, syntax))
        yield "}"
        return
    kind = _NAMES.get(field.type, field.type_name)
    if entry is not None and entry.options.map_entry:
        key, value = entry.field
        kind, label = f"map<{_NAMES[key.type]}, {_NAMES.get(value.type, value.type_name)}>", ""
    options = list(_options(field.options))
    if field.HasField("default_value"):
        options.append(f"default = {_default(field)}")
    yield f"{'' if in_oneof else label}{kind} {field.name} = {field.number}{_listed(options)};"


def _default(field: FieldDescriptorProto) -> str:
    if field.type == P.STRING:
        return json.dumps(field.default_value, ensure_ascii=False)
    # The default of bytes is escaped already.
    return f'"{field.default_value}"' if field.type == P.BYTES else field.default_value


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from _indented(f"option {each};" for each in _options(enum.options))
    for value in enum.value:
        options = list(_options(value.options))
        yield f"  {value.name} = {value.number}{_listed(options)};"
    yield from _indented(_reserved([(each.start, each.end) for each in enum.reserved_range], enum.reserved_name))
    yield "}"


def _reserved(spans: list[tuple[int, int]], names: Sequence[str]) -> Iterator[str]:
    for start, end in spans:
        yield f"reserved {start};" if start == end else f"reserved {start} to {_end(end)};"
    if names:
        yield f"reserved {', '.join(map(json.dumps, names))};"


def _end(number: int) -> str:
    return "max" if number >= _MAX_NUMBER - 1 else str(number)


def _options(options: Any) -> Iterator[str]:
    for field, value in options.ListFields():
        if field.is_extension or field.is_repeated or field.message_type is not None or field.name == "map_entry":
            continue
        if field.enum_type is not None:
            yield f"{field.name} = {field.enum_type.values_by_number[value].name}"
        else:
            yield f"{field.name} = {json.dumps(value, ensure_ascii=False)}"


def _listed(options: list[str]) -> str:
    return f" [{', '.join(options)}]" if options else ""


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {each}" for each in lines)

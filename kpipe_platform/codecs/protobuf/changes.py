"""Whether a reader's message type can read what was written with another version of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpipe_platform.codecs.protobuf import types as P
from kpipe_platform.codecs.types import field_path

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# What a reader's type may read besides its own: types with the same encoding, all of whose values it holds.
_ALSO_READS: dict[int, frozenset[int]] = {
    P.INT32: frozenset({P.BOOL, P.ENUM}),
    P.INT64: frozenset({P.BOOL, P.ENUM, P.INT32, P.UINT32}),
    P.UINT32: frozenset({P.BOOL}),
    P.UINT64: frozenset({P.BOOL, P.UINT32}),
    P.SINT64: frozenset({P.SINT32}),
    P.ENUM: frozenset({P.BOOL, P.INT32}),
    P.STRING: frozenset({P.BYTES}),
    P.BYTES: frozenset({P.STRING}),
}


def unreadable(writer: Descriptor, reader: Descriptor) -> str | None:
    """Find a field that the reader would misread. Fields are compared by number, so they may have other names.

    The Protobuf runtime does not check that: it would ignore the field, or change its value.

    Args:
        writer: Message type that the records were written with.
        reader: Message type that they are read with.

    Returns:
        The first such field and both of its types; None if there is none.
    """
    return _unreadable(writer, reader, "", set())


def _unreadable(writer: Descriptor, reader: Descriptor, path: str, met: set[tuple[str, str]]) -> str | None:
    pair = (writer.full_name, reader.full_name)
    if pair in met:
        return None
    met.add(pair)
    for field in reader.fields:
        written = writer.fields_by_number.get(field.number)
        if written is None:
            continue
        where = field_path(path, field.name)
        if not _reads(field, written):
            return f"field {where!r} (number {field.number}) was written as {_shown(written)}, read as {_shown(field)}"
        if field.message_type is not None:
            inner = _unreadable(written.message_type, field.message_type, where, met)
            if inner is not None:
                return inner
    return None


def _reads(reader: FieldDescriptor, writer: FieldDescriptor) -> bool:
    if writer.is_repeated and not reader.is_repeated:
        return False
    return bool(reader.type == writer.type or writer.type in _ALSO_READS.get(reader.type, ()))


def _shown(field: FieldDescriptor) -> str:
    names = {getattr(field, name): name[5:].lower() for name in dir(field) if name.startswith("TYPE_")}
    kind = field.message_type.full_name if field.message_type is not None else names[field.type]
    return f"repeated {kind}" if field.is_repeated else str(kind)

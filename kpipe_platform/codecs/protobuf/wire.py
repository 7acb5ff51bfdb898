"""Why bytes are not a Protobuf message. The runtime only says that they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpipe_platform.codecs.protobuf import types as P

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _BYTES, _START, _END, _FIXED32 = range(6)
_VARINT_BYTES = 10


class _WireError(Exception):
    pass


def problem_of(data: bytes, message: Descriptor) -> str | None:
    """Find the first problem of bytes that the runtime refuses.

    Args:
        data: The bytes.
        message: The type that they should be of.

    Returns:
        The problem with its field and position; None if there is none of those that are known here.
    """
    try:
        _check(data, 0, len(data), message, "")
    except _WireError as error:
        return str(error)
    except RecursionError:
        return "its messages and groups are nested too deeply"
    return None


def _check(data: bytes, at: int, end: int, message: Descriptor | None, path: str, group: int | None = None) -> int:
    while at < end:
        start = at
        tag, at = _varint(data, at, end, path)
        number, wire = tag >> 3, tag & 7
        if wire == _END and number == group:
            return at
        field = None if message is None else message.fields_by_number.get(number)
        where = _where(path, number, None if field is None else str(field.name))
        if not 1 <= number < 2**29 or wire not in (_VARINT, _FIXED64, _BYTES, _START, _FIXED32):
            raise _WireError(f"byte {start} does not begin a field (number {number}, wire type {wire}){_in(path)}")
        if wire == _VARINT:
            _, at = _varint(data, at, end, where)
        elif wire == _START:
            at = _check(data, at, end, None, where, number)
        elif wire == _BYTES:
            length, at = _varint(data, at, end, where)
            if length > end - at:
                raise _WireError(f"{where} should have {length} bytes, but only {end - at} follow")
            if field is not None and field.type == P.STRING:
                _check_text(data, at, at + length, where)
            elif field is not None and field.type == P.MESSAGE:
                _check(data, at, at + length, field.message_type, where)
            at += length
        else:
            at += 8 if wire == _FIXED64 else 4
            if at > end:
                raise _WireError(f"the data ends within {where}")
    if group is not None:
        raise _WireError(f"the data ends within {path}, a group")
    return at


def _check_text(data: bytes, at: int, end: int, where: str) -> None:
    try:
        str(data[at:end], "utf-8")
    except UnicodeDecodeError as error:
        byte = data[at + error.start]
        raise _WireError(f"{where} is not UTF-8: byte 0x{byte:02x} at position {error.start}") from None


def _varint(data: bytes, at: int, end: int, where: str) -> tuple[int, int]:
    value = 0
    for position in range(at, min(at + _VARINT_BYTES, end)):
        value |= (data[position] & 0x7F) << (7 * (position - at))
        if data[position] < 0x80:
            return value, position + 1
    if end - at < _VARINT_BYTES:
        raise _WireError(f"the data ends within a number{_in(where)}")
    raise _WireError(f"byte {at} begins a number of more than {_VARINT_BYTES} bytes{_in(where)}")


def _where(path: str, number: int, name: str | None) -> str:
    own = f"{number}" if name is None else name
    return f"{path}.{own}" if path else f"field {own}"


def _in(path: str) -> str:
    return f", in {path}" if path else ""

"""Confluent's wire format: how a record names the schema that it was written with.

The id is in front of the data, or in a record header, in which case the value or key contains only the data:

- a zero byte and the schema's id in the registry, 4 bytes, big-endian
- a one byte and the schema's globally unique id, 16 bytes

For Protobuf, the path of the message type within its file follows the id: the number of indexes and each index, as
zigzag varints; a zero byte stands for the first message. The path of a nested message has one index a level.

Source: confluent-kafka-python, ``schema_registry/common/serde.py``; Confluent's documentation of the wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

from kpipe_platform.errors import DecodeFault

__all__ = [
    "BAD_INDEXES",
    "KEY_HEADER",
    "TRUNCATED_FRAME",
    "VALUE_HEADER",
    "WRONG_MAGIC_BYTE",
    "SchemaId",
    "frame",
    "frame_indexes",
    "split",
    "split_indexes",
]

KEY_HEADER = "__key_schema_id"
"""Record header with the id of the key's schema."""
VALUE_HEADER = "__value_schema_id"
"""Record header with the id of the value's schema."""

WRONG_MAGIC_BYTE = "wrong_magic_byte"
"""The data does not begin with the magic byte of the wire format."""
TRUNCATED_FRAME = "truncated_frame"
"""The data ends before the id of its schema does."""
BAD_INDEXES = "bad_message_indexes"
"""The path of the Protobuf message type is incomplete or invalid."""

SchemaId = int | UUID
"""Id of a schema: the registry's id, or the globally unique id."""

_ID_MAGIC, _GUID_MAGIC = 0, 1
_ID = struct.Struct(">bI")
_GUID_END = 17
# Java reads at most 5 bytes, for a number of 32 bits.
_VARINT_BYTES = 5


def split(data: bytes) -> tuple[SchemaId, bytes]:
    """Split a framed value or key, or the value of a `VALUE_HEADER` or `KEY_HEADER`.

    Args:
        data: Bytes of a value, a key or a header.

    Returns:
        The id of the schema, and the bytes after it. In a header, only the indexes of Protobuf follow.

    Raises:
        DecodeFault: The first byte is not a magic byte, or bytes are missing.
    """
    if not data:
        msg = "there are 0 bytes where Confluent's wire format begins with a magic byte and the id of a schema"
        raise DecodeFault(msg, kind=TRUNCATED_FRAME)
    magic = data[0]
    if magic == _ID_MAGIC:
        if len(data) < _ID.size:
            raise _truncated(data, _ID.size)
        return _ID.unpack_from(data)[1], data[_ID.size :]
    if magic == _GUID_MAGIC:
        if len(data) < _GUID_END:
            raise _truncated(data, _GUID_END)
        return UUID(bytes=bytes(data[1:_GUID_END])), data[_GUID_END:]
    msg = f"the first byte is 0x{magic:02x}, not the magic byte 0x00 or 0x01 of Confluent's wire format"
    raise DecodeFault(msg, kind=WRONG_MAGIC_BYTE)


def frame(schema_id: SchemaId, payload: bytes = b"") -> bytes:
    """Put the id of the schema in front of encoded data. Without data, the result is the value of a header."""
    if isinstance(schema_id, UUID):
        return bytes((_GUID_MAGIC,)) + schema_id.bytes + payload
    return _ID.pack(_ID_MAGIC, schema_id) + payload


def split_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Split the path of a Protobuf message type from what follows it.

    Args:
        data: Bytes after the id, as `split` returns them.

    Returns:
        The indexes, one a level, and the bytes after them.

    Raises:
        DecodeFault: The path is incomplete, or a number in it is negative or too long.
    """
    count, at = _read(data, 0)
    # Each index takes a byte at least, so a wrong count does not cost memory.
    if count > len(data) - at:
        msg = f"the Protobuf message path should have {count} indexes, but only {len(data) - at} bytes follow"
        raise DecodeFault(msg, kind=BAD_INDEXES)
    indexes = []
    for _ in range(count):
        index, at = _read(data, at)
        indexes.append(index)
    return tuple(indexes) or (0,), data[at:]


def frame_indexes(indexes: Sequence[int], payload: bytes = b"") -> bytes:
    """Put the path of a Protobuf message type in front of the encoded message."""
    if tuple(indexes) == (0,):
        return b"\x00" + payload
    return b"".join(_varint(each) for each in (len(indexes), *indexes)) + payload


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint that is not negative; return it and the position after it."""
    value = 0
    for position in range(at, min(at + _VARINT_BYTES, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << (7 * (position - at))
        if byte < 0x80:
            if value & 1:
                msg = f"the Protobuf message path contains the negative number {-(value >> 1) - 1}"
                raise DecodeFault(msg, kind=BAD_INDEXES)
            return value >> 1, position + 1
    if len(data) - at < _VARINT_BYTES:
        msg = f"the data ends within the Protobuf message path, after {len(data)} bytes of it"
    else:
        msg = f"the Protobuf message path contains a number of more than {_VARINT_BYTES} bytes"
    raise DecodeFault(msg, kind=BAD_INDEXES)


def _varint(number: int) -> bytes:
    value, encoded = number << 1, bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _truncated(data: bytes, needed: int) -> DecodeFault:
    msg = f"there are only {len(data)} bytes, but the magic byte and the id of the schema take {needed}"
    return DecodeFault(msg, kind=TRUNCATED_FRAME)

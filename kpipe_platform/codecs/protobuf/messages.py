"""The codec of one message type that has its descriptors in itself, so that executors can use it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.batches import decode_each, encode_each
from kpipe_platform.codecs.faults import NOT_ENCODABLE, NOT_PROTOBUF, DecodeFault, EncodeFault
from kpipe_platform.codecs.framed import UNKNOWN_SCHEMA_ID
from kpipe_platform.codecs.json.write import plain_value
from kpipe_platform.codecs.protobuf import _compat
from kpipe_platform.codecs.protobuf.arrow import arrow_converter
from kpipe_platform.codecs.protobuf.descriptors import message_type
from kpipe_platform.codecs.protobuf.types import struct_of
from kpipe_platform.codecs.protobuf.values import read_message, write_message
from kpipe_platform.codecs.protobuf.wire import problem_of
from kpipe_platform.codecs.types import stage_type
from kpipe_platform.errors import UnknownSchemaIdError
from kpipe_platform.registry.wire import frame_indexes, split, split_indexes

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import types as T

WRONG_MESSAGE = "wrong_message_type"
"""The record is a message of another type."""
OTHER_SCHEMA = "incompatible_schema"
"""The schema that the record was written with differs from the reader's in a way that Protobuf would misread."""

# Where a batch does not decode as a whole, its halves are tried down to this size, then each record.
_FEW = 32
_NOTHING = pa.scalar(b"", pa.binary())


@dataclass(frozen=True)
class Writer:
    """A schema that records were written with.

    Args:
        frame: The bytes in front of a record's data that name the schema.
        indexes: Path of the reader's message type in the schema; None if the schema does not have the type.
        problem: Why records of this schema cannot be read; None if they can.
    """

    frame: bytes
    indexes: tuple[int, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class MessageCodec(Codec):
    """Decodes and encodes messages of one type.

    Args:
        descriptors: Serialized ``FileDescriptorSet`` in base64.
        message: Full name of the message type.
        writers: Schemas of the records; None if values are plain messages.
        prefix: The bytes in front of each message that is written.
    """

    name: ClassVar[str] = "protobuf"
    is_struct: ClassVar[bool] = True
    descriptors: str
    message: str
    writers: tuple[Writer, ...] | None = None
    prefix: bytes = b""

    @property
    def fields(self) -> T.StructType:
        """The fields of the message type."""
        return fields_of(self.descriptors, self.message)

    @property
    def value_type(self) -> T.DataType:
        """The struct of the fields."""
        return stage_type(self.fields)

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value."""
        return self.writers is not None

    def _decode(self, data: bytes) -> Any:
        return self._read(data if self.writers is None else self._split(data))

    def _encode(self, value: Any) -> bytes:
        message = self._class()()
        write_message(message, plain_value(value))
        try:
            return self.prefix + bytes(message.SerializeToString())
        except ValueError as error:  # larger than 2 GiB
            raise EncodeFault(f"the message cannot be encoded: {error}", kind=NOT_ENCODABLE) from None

    def decode_batch(self, data: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode a batch as a whole if possible, else the records one by one."""
        converter = arrow_converter(_decoded(self.descriptors), self.message)
        if converter is None:
            return decode_each(self._decoded_or_none, data, kind)
        usable, payload = self._payloads(data)
        found = _by_halves(
            payload, lambda part: converter.decode(part, kind), lambda part: decode_each(self._read, part, kind)
        )
        if len(payload) == len(data):
            return found
        # A record that is not in the batch is null, or has another prefix than most.
        others = data.filter(pc.invert(usable))
        rest = decode_each(self._decoded_or_none, others, kind)
        at = pc.sort_indices(pa.concat_arrays([pc.indices_nonzero(usable), pc.indices_nonzero(pc.invert(usable))]))
        return pa.concat_arrays([found, rest]).take(at)

    def encode_batch(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Encode a batch as a whole if possible, else the values one by one."""
        converter = arrow_converter(_decoded(self.descriptors), self.message)
        if converter is None:
            return encode_each(self.encode, values)

        def as_whole(part: pa.Array) -> pa.Array:
            made = converter.encode(part)
            if self.prefix:
                made = pc.binary_join_element_wise(
                    pa.scalar(self.prefix, pa.binary()), made, pa.scalar(b"", pa.binary())
                )
            data = made if part.null_count == 0 else pc.if_else(part.is_valid(), made, None)
            return _encoded(data, pa.nulls(len(part), pa.string()))

        found = _by_halves(values, as_whole, lambda part: _encoded(*encode_each(self.encode, part)))
        return found.field("data"), found.field("misfit")

    # Frames

    def _split(self, data: bytes) -> bytes:
        schema_id, rest = split(data)
        own = data[: len(data) - len(rest)]
        writer = _writers(self.writers or ()).get(own)
        if writer is None:
            raise UnknownSchemaIdError(f"schema {schema_id} of a record was not known when the slice was read")
        if writer.problem is not None and writer.indexes is None:
            raise DecodeFault(f"schema {schema_id} {writer.problem}", kind=UNKNOWN_SCHEMA_ID)
        indexes, payload = split_indexes(rest)
        if indexes != writer.indexes:
            msg = f"the record is message type {list(indexes)} of schema {schema_id}, not {self.message}"
            raise DecodeFault(msg, kind=WRONG_MESSAGE)
        if writer.problem is not None:
            raise DecodeFault(f"schema {schema_id}: {writer.problem}", kind=OTHER_SCHEMA)
        return payload

    def _payloads(self, data: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return which records begin with a known frame, and their messages."""
        if self.writers is None:
            usable = data.is_valid()
            return usable, data.drop_null() if data.null_count else data
        prefixes = _prefixes(self.writers)
        left, parts, places = data.is_valid(), [], []
        for prefix in prefixes:
            own = pc.and_(left, pc.fill_null(pc.starts_with(data, pattern=prefix), False))
            if not pc.any(own).as_py():
                continue
            parts.append(pc.binary_slice(data.filter(own), len(prefix)))
            places.append(pc.indices_nonzero(own))
            left = pc.and_not(left, own)
            if not pc.any(left).as_py():
                break
        usable = pc.and_not(data.is_valid(), left)
        if not parts:
            return usable, data.slice(0, 0)
        if len(parts) == 1:
            return usable, parts[0]
        return usable, pa.concat_arrays(parts).take(pc.sort_indices(pa.concat_arrays(places)))

    # One record

    def _read(self, payload: bytes | None) -> Any:
        from google.protobuf.message import DecodeError

        if payload is None:
            return None
        found = self._class()
        try:
            message = found.FromString(payload)
        except DecodeError as error:
            reason = problem_of(payload, found.DESCRIPTOR) or str(error)
            raise DecodeFault(f"not a message of type {self.message}: {reason}", kind=NOT_PROTOBUF) from None
        return read_message(message)

    def _decoded_or_none(self, data: bytes | None) -> Any:
        try:
            return self.decode(data)
        except UnknownSchemaIdError:
            # The driver gets the error when it asks why the record does not decode.
            return None

    def _class(self) -> Any:
        return _message_class(self.descriptors, self.message)


@lru_cache(maxsize=64)
def fields_of(descriptors: str, message: str) -> T.StructType:
    """Return the columns of a message type."""
    return struct_of(descriptor_of(descriptors, message))


def descriptor_of(descriptors: str, message: str | None) -> Descriptor:
    """Return the descriptor of a message type. See `message_type`."""
    _compat.require()
    return message_type(_decoded(descriptors), message)


@lru_cache(maxsize=64)
def _message_class(descriptors: str, message: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor_of(descriptors, message))


@lru_cache(maxsize=64)
def _decoded(descriptors: str) -> bytes:
    return base64.b64decode(descriptors)


@lru_cache(maxsize=64)
def _writers(writers: tuple[Writer, ...]) -> dict[bytes, Writer]:
    return {each.frame: each for each in writers}


@lru_cache(maxsize=64)
def _prefixes(writers: tuple[Writer, ...]) -> tuple[bytes, ...]:
    """Return the usual bytes in front of messages that can be read, the newest schema first."""
    usable = [each for each in writers if each.problem is None and each.indexes is not None]
    return tuple(each.frame + frame_indexes(each.indexes or ()) for each in reversed(usable))


def _encoded(data: pa.Array, misfits: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([data, misfits], names=["data", "misfit"])


def _by_halves(
    batch: pa.Array, whole: Callable[[pa.Array], pa.Array], each: Callable[[pa.Array], pa.Array]
) -> pa.Array:
    """Convert a batch; if that fails, its halves, so that a few bad records do not make the others slow."""
    try:
        return whole(batch)
    except ValueError:
        pass
    except BaseException as error:
        if not _compat.is_panic(error):
            raise
    if len(batch) <= _FEW:
        return each(batch)
    middle = len(batch) // 2
    halves = (batch.slice(0, middle), batch.slice(middle))
    return pa.concat_arrays([_by_halves(half, whole, each) for half in halves])

"""The codec of one message type that has its descriptors in itself, so that executors can use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.faults import NOT_ENCODABLE, NOT_PROTOBUF, DecodeFault, EncodeFault
from kpipe_platform.codecs.framed import UNKNOWN_SCHEMA_ID, payload_of
from kpipe_platform.codecs.json.write import plain_value
from kpipe_platform.codecs.protobuf.descriptors import message_type
from kpipe_platform.codecs.protobuf.types import struct_of
from kpipe_platform.codecs.protobuf.values import read_message, write_message
from kpipe_platform.codecs.protobuf.wire import problem_of
from kpipe_platform.codecs.types import stage_type
from kpipe_platform.errors import UnknownSchemaIdError
from kpipe_platform.registry.wire import frame_indexes, split, split_indexes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as T

WRONG_MESSAGE = "wrong_message_type"
"""The record is a message of another type."""
OTHER_SCHEMA = "incompatible_schema"
"""The schema that the record was written with differs from the reader's in a way that Protobuf would misread."""


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
        return self.read_payload(payload_of(data, self.prefix) if self.writers is None else self._split(data))

    def _encode(self, value: Any) -> bytes:
        message = self._class()()
        write_message(message, plain_value(value))
        try:
            return self.prefix + bytes(message.SerializeToString())
        except ValueError as error:  # larger than 2 GiB
            raise EncodeFault(f"the message cannot be encoded: {error}", kind=NOT_ENCODABLE) from None

    def decode_batch(self, data: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode a batch as a whole if possible, else the records one by one."""
        from kpipe_platform.codecs.protobuf.batches import decode_messages

        return decode_messages(self, data, kind)

    def encode_batch(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Encode a batch as a whole if possible, else the values one by one."""
        from kpipe_platform.codecs.protobuf.batches import encode_messages

        return encode_messages(self, values)

    @property
    def prefixes(self) -> tuple[bytes, ...] | None:
        """The usual bytes in front of the messages that can be read; None if values are plain messages."""
        return None if self.writers is None else _prefixes(self.writers)

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

    # One record

    def read_payload(self, payload: bytes | None) -> Any:
        """Decode a message without what is in front of it.

        Raises:
            DecodeFault: The bytes do not decode.
        """
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

    def _class(self) -> Any:
        return _message_class(self.descriptors, self.message)


@lru_cache(maxsize=64)
def fields_of(descriptors: str, message: str) -> T.StructType:
    """Return the columns of a message type."""
    return struct_of(message_type(descriptors, message))


@lru_cache(maxsize=64)
def _message_class(descriptors: str, message: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(message_type(descriptors, message))


@lru_cache(maxsize=64)
def _writers(writers: tuple[Writer, ...]) -> dict[bytes, Writer]:
    return {each.frame: each for each in writers}


@lru_cache(maxsize=64)
def _prefixes(writers: tuple[Writer, ...]) -> tuple[bytes, ...]:
    """Return the usual bytes in front of messages that can be read, the newest schema first."""
    usable = [each for each in writers if each.problem is None and each.indexes is not None]
    return tuple(each.frame + frame_indexes(each.indexes or ()) for each in reversed(usable))

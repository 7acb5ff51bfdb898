"""The Protobuf codec."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from kpipe_platform.codecs.base import Codec, Part
from kpipe_platform.codecs.framed import FramedCodec, WriterSchemas
from kpipe_platform.codecs.protobuf.changes import unreadable
from kpipe_platform.codecs.protobuf.compiler import compiled
from kpipe_platform.codecs.protobuf.descriptors import descriptors_of, indexes_of, message_type
from kpipe_platform.codecs.protobuf.messages import MessageCodec, Writer, fields_of
from kpipe_platform.codecs.protobuf.registered import as_schema, registered
from kpipe_platform.codecs.types import stage_type
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaType
from kpipe_platform.registry.wire import frame, frame_indexes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as T


@dataclass(frozen=True)
class ProtobufCodec(FramedCodec):
    """Decodes and encodes Protobuf messages of one type: each field is a column.

    Args:
        schema: The message type's descriptors: the path or the bytes of a file that
            ``protoc --include_imports --descriptor_set_out`` wrote, the text of a ``.proto`` file, a generated message
            class, or its import path, such as ``"shop.orders_pb2:Order"``. None: the latest schema of the subject in
            the schema registry. Stored as base64 text.
        message: Full name of the message type, such as ``"shop.Order"``. May be left out if ``schema`` is a class, or
            if the file has one message type.
        framing: ``confluent``, the default: the id of the schema is in front of each value, or in a header. ``none``:
            values are plain messages, so that ``schema`` must be given and no registry is used.
        subject: Strategy for the subject's name: ``topic`` (the default), ``record`` or ``topic-record``.
        register: Whether to register the schema of what is written. False: it must be registered already.

    Raises:
        ConfigError: The schema is invalid, has no such message type, contains itself, or has names that differ only in
            case, which Spark does not distinguish.
        EnvironmentSetupError: The extra ``protobuf`` is not installed.

    Source: https://protobuf.dev/programming-guides/encoding/, Confluent's documentation of the wire format.
    """

    name: ClassVar[str] = "protobuf"
    schema_type: ClassVar[SchemaType] = "PROTOBUF"
    is_struct: ClassVar[bool] = True
    schema: Any = None
    message: str | None = None

    def __post_init__(self) -> None:
        if self.schema is not None:
            descriptors, name = descriptors_of(self.schema)
            object.__setattr__(self, "schema", descriptors)
            message = message_type(descriptors, self.message or name).full_name
            object.__setattr__(self, "message", message)
            fields_of(descriptors, message)
        super().__post_init__()

    @property
    def fields(self) -> T.StructType:
        """The fields of the message type."""
        from pyspark.sql.types import StructType

        return StructType() if self._plain is None else self._plain.fields

    @property
    def value_type(self) -> T.DataType:
        """The struct of the fields."""
        return stage_type(self.fields)

    # The messages without a registry

    @property
    def _plain(self) -> MessageCodec | None:
        return None if self.schema is None else MessageCodec(self.schema, self.message or "")

    def _messages(self) -> MessageCodec:
        if self._plain is None or self.is_framed:
            raise self._unresolved()
        return self._plain

    def _decode(self, data: bytes) -> Any:
        return self._messages()._decode(data)

    def _encode(self, value: Any) -> bytes:
        return self._messages()._encode(value)

    def decode_batch(self, data: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode a batch as a whole if possible, else the records one by one."""
        return self._messages().decode_batch(data, kind)

    def encode_batch(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Encode a batch as a whole if possible, else the values one by one."""
        return self._messages().encode_batch(values)

    # The schema registry

    @property
    def given(self) -> Schema | None:
        """The descriptors as the registry stores them; None if none were given."""
        if self.schema is None or self.message is None:
            return None
        return as_schema(self.schema, self.message)

    def schema_for(self, kind: T.DataType) -> Schema:
        """Refuse to make a schema: the fields of a message type have numbers, which columns do not have."""
        msg = f"ProtobufCodec() cannot make a message type of {kind.simpleString()}"
        raise ConfigError(msg, fix='give it: ProtobufCodec(schema="orders.desc", message="shop.Order")')

    def record_name(self, schema: Schema) -> str:
        """Return the full name of the message type."""
        return self.message or message_type(compiled(schema), None).full_name

    def reading(self, schema: Schema, writers: WriterSchemas) -> Codec:
        """Return the codec that reads the records of the writers' schemas into the fields of the message type."""
        descriptors = self.schema or compiled(schema)
        message = message_type(descriptors, self.message).full_name
        fields_of(descriptors, message)
        known = tuple(_writer(own, found, descriptors, message) for own, found in writers.known)
        return MessageCodec(descriptors, message, known)

    def resolved_to_write(
        self, registry: RegistryClient | None, topic: str, part: Part, kind: T.DataType | None
    ) -> Codec:
        """Return the codec to write with, whose schema is registered, as are those that it imports."""
        if not self.is_framed:
            return self
        registry = self._registry(registry, topic, part)
        if self.schema is None or self.message is None:
            return self.writing(self._latest(registry, topic, part))
        subject = self._subject(topic, part, Schema("", "PROTOBUF"))
        return self.writing(registered(registry, subject, self.schema, self.message, self.register))

    def writing(self, schema: RegisteredSchema) -> Codec:
        """Return the codec that writes messages with the id of the schema in front."""
        own = compiled(schema)
        message = message_type(own, self.message)
        prefix = frame(schema.id, frame_indexes(indexes_of(message)))
        descriptors = self.schema or own
        fields_of(descriptors, message.full_name)
        return MessageCodec(descriptors, message.full_name, (), prefix)


@lru_cache(maxsize=1024)
def _writer(own: bytes, schema: Schema | None, descriptors: str, message: str) -> Writer:
    if schema is None:
        return Writer(own, problem="is not in the schema registry")
    if schema.type != "PROTOBUF":
        return Writer(own, problem=f"in the schema registry is {schema.type}, not PROTOBUF")
    try:
        written = message_type(compiled(schema), message)
    except ConfigError as error:
        return Writer(own, problem=f"does not have the message type {message}: {error.message}")
    return Writer(own, indexes_of(written), unreadable(written, message_type(descriptors, message)))

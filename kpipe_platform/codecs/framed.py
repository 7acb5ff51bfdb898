"""Codecs whose records name their schema in Confluent's wire format.

On the driver, such a codec asks the registry for the schemas of a slice and becomes a codec that needs no registry.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from kpipe_platform.codecs.base import Codec, Part
from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.errors import ConfigError, SchemaNotFoundError, UnknownSchemaIdError
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaType
from kpipe_platform.registry.wire import frame, split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql import types as T

UNKNOWN_SCHEMA_ID = "unknown_schema_id"
"""The registry does not have the schema that the record names, or it is a schema of another format."""

SubjectStrategy = Literal["topic", "record", "topic-record"]
"""How a subject is named: TOPIC-value or TOPIC-key; the record's full name; TOPIC-RECORD."""


@dataclass(frozen=True)
class WriterSchemas:
    """The schemas of a slice's records.

    Args:
        type: The format that they must have.
        known: Each schema, by the bytes in front of a record's data. None for an id that the registry does not have.
    """

    type: SchemaType
    known: tuple[tuple[bytes, Schema | None], ...] = ()

    @property
    def found(self) -> list[tuple[bytes, Schema]]:
        """The schemas that decode records, by the bytes in front of the data."""
        return [(each, schema) for each, schema in self.known if schema is not None and schema.type == self.type]

    def split(self, data: bytes) -> tuple[Schema, bytes]:
        """Return the schema that a record was written with, and the bytes after its id.

        Raises:
            DecodeFault: The bytes do not begin with the id of a schema, or the registry does not have the schema.
            UnknownSchemaIdError: The schema of this id was not read from the registry.
        """
        schema_id, payload = split(data)
        own = data[: len(data) - len(payload)]
        for each, schema in self.known:
            if each != own:
                continue
            if schema is None:
                msg = f"the schema registry has no schema {schema_id}"
                raise DecodeFault(msg, kind=UNKNOWN_SCHEMA_ID)
            if schema.type != self.type:
                msg = f"schema {schema_id} in the schema registry is {schema.type}, not {self.type}"
                raise DecodeFault(msg, kind=UNKNOWN_SCHEMA_ID)
            return schema, payload
        msg = f"schema {schema_id} of a record was not known when the slice was read"
        raise UnknownSchemaIdError(msg)


def frame_column(data: Column) -> Column:
    """The bytes in front of the data that name the schema: the magic byte and the id."""
    from pyspark.sql import functions as F

    is_guid = F.substring(data, 1, 1) == F.lit(b"\x01")
    return F.when(is_guid, F.substring(data, 1, 17)).otherwise(F.substring(data, 1, 5))


def payload_of(data: bytes, own: bytes) -> bytes:
    """Return the bytes after the id of the schema that a codec writes with.

    Raises:
        DecodeFault: The bytes do not begin with the id of a schema.
        ConfigError: It is the id of another schema.
    """
    if data.startswith(own):
        return data[len(own) :]
    msg = f"the value names schema {split(data)[0]}; the schema of the topic is {split(own)[0]}"
    raise ConfigError(msg, fix="return values that kpipe encodes, or write the topic with RawCodec()")


@dataclass(frozen=True, kw_only=True)
class PinnedCodec(Codec):
    """Base of the codecs that have their schema, and need no registry.

    Args:
        schema: The schema of the columns, and of what is written.
        writers: The schemas of the records; None: there are no ids, and all records have ``schema``.
        frame: The bytes of the id of ``schema``, which are written in front of each value.
    """

    schema: Schema
    writers: WriterSchemas | None = None
    frame: bytes = b""

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value that is read."""
        return self.writers is not None

    def _split(self, data: bytes) -> tuple[Schema, bytes]:
        """Return the schema that a record was written with, and the bytes after its id."""
        return (self.schema, payload_of(data, self.frame)) if self.writers is None else self.writers.split(data)


@dataclass(frozen=True, kw_only=True)
class FramedCodec(Codec):
    """Base of the codecs with a schema registry.

    Args:
        schema: The schema; None to use the registry's.
        framing: ``confluent``: the id of the schema is in front of each value, or in a header. ``none``: values are
            plain, so that a schema must be given and no registry is used.
        subject: Strategy for the subject's name: ``topic`` (the default), ``record`` or ``topic-record``.
        register: Whether to register the schema of what is written. False: it must be registered already.
    """

    schema_type: ClassVar[SchemaType]
    schema: Any = None
    framing: Literal["confluent", "none"] = "confluent"
    subject: SubjectStrategy = "topic"
    register: bool = True

    def __post_init__(self) -> None:
        for setting, known in (("framing", ("confluent", "none")), ("subject", get_args(SubjectStrategy))):
            if getattr(self, setting) not in known:
                msg = f"{type(self).__name__}({setting}={getattr(self, setting)!r})"
                raise ConfigError(msg, fix=f"use one of {', '.join(map(repr, known))}", setting=setting)
        if self.framing == "none" and self.schema is None:
            msg = f"{type(self).__name__}(framing='none') has no schema"
            raise ConfigError(msg, fix="give the schema, or use the schema registry: framing='confluent'")
        if self.subject != "topic" and self.schema is None:
            msg = f"{type(self).__name__}(subject={self.subject!r}) needs a schema"
            raise ConfigError(msg, fix="give the schema: its name is part of the subject's name")

    # What a format implements

    @property
    @abstractmethod
    def given(self) -> Schema | None:
        """The schema that the user gave; None to use the registry's."""

    @abstractmethod
    def schema_for(self, kind: T.DataType) -> Schema:
        """Make the schema to write a column, or a struct of the value's columns, with.

        Raises:
            ConfigError: The format cannot represent the type.
        """

    @abstractmethod
    def record_name(self, schema: Schema) -> str:
        """Return the full name of the record type, for the subjects of the strategies ``record`` and ``topic-record``.

        Raises:
            ConfigError: The schema has no name.
        """

    @abstractmethod
    def plain(self) -> Codec:
        """Return the codec of values without an id, which have the schema that the user gave."""

    @abstractmethod
    def reading(self, schema: Schema, writers: WriterSchemas) -> Codec:
        """Return the codec that reads the writers' records into the columns of a schema. It needs no registry.

        Raises:
            ConfigError: The schema cannot be represented in Spark.
        """

    @abstractmethod
    def writing(self, schema: RegisteredSchema) -> Codec:
        """Return the codec that writes with a registered schema. It needs no registry."""

    # What they share

    def _unresolved(self) -> ConfigError:
        """Return the error for single values that are to be converted without a registered schema."""
        cls = type(self).__name__
        if self.given is None:
            msg = f"{cls}() has no schema to convert single values with, such as those of a list[KafkaRecord]"
            return ConfigError(msg, fix=f"give the schema of the topic: {cls}(schema=...), or return a DataFrame")
        msg = f"{cls}(...) needs a schema registry to convert single values, and there is none"
        return ConfigError(msg, fix='KafkaConnection(schema_registry=SchemaRegistry(url="http://..."), ...)')

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value."""
        return self.framing == "confluent"

    def resolved(
        self, registry: RegistryClient | None, topic: str, part: Part, ids: Collection[bytes] | None = None
    ) -> Codec:
        """Return the codec to read with, with the schemas of the ids, or else of the subject."""
        if not self.is_framed:
            return self
        registry = self._registry(registry, topic, part)
        reader = self.given or self._latest(registry, topic, part)
        if ids is None:
            # One request for each slice. Without it, a slice with a schema that is new to it would be read twice.
            name = self._subject(topic, part, reader)
            frames = [frame(schema_id) for schema_id in registry.versions(name)]
        else:
            frames = sorted(ids)
        return self.reading(reader, WriterSchemas(self.schema_type, tuple(_found(registry, frames))))

    def resolved_to_write(
        self, registry: RegistryClient | None, topic: str, part: Part, kind: T.DataType | None
    ) -> Codec:
        """Return the codec to write with, whose schema is registered."""
        if not self.is_framed:
            return self
        registry = self._registry(registry, topic, part)
        schema = self.given or (None if kind is None else self.schema_for(kind))
        if schema is None:
            return self
        return self.writing(_registered(registry, self._subject(topic, part, schema), schema, self.register))

    # Without a registry, the codec reads and writes itself.

    def parse(self, data: Column) -> Column | None:
        """Parse in one expression, if the format has one."""
        return self._plain().parse(data)

    def value(self, parsed: Column) -> Column:
        """Return the decoded value."""
        return self._plain().value(parsed)

    def fault(self, data: Column, parsed: Column) -> Column | None:
        """Return whether the bytes do not decode."""
        return self._plain().fault(data, parsed)

    def write(self, value: Column, kind: T.DataType) -> Column | None:
        """Encode in one expression, if the format has one."""
        return self._plain().write(value, kind)

    def misfit(self, value: Column, kind: T.DataType) -> Column | None:
        """Why the schema does not allow a value."""
        return self._plain().misfit(value, kind)

    def decode_batch(self, data: pa.Array, kind: pa.DataType) -> pa.Array:
        """Decode a batch."""
        return self._plain().decode_batch(data, kind)

    def encode_batch(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Encode a batch."""
        return self._plain().encode_batch(values)

    def _decode(self, data: bytes) -> Any:
        return self._plain()._decode(data)

    def _encode(self, value: Any) -> bytes:
        return self._plain()._encode(value)

    def _plain(self) -> Codec:
        if self.is_framed:
            raise self._unresolved()
        return self.plain()

    def _keep_schema_as_text(self, what: str) -> None:
        """Store a schema in JSON, which is given as text, a dict or a list, as text."""
        if isinstance(self.schema, Mapping | list):
            object.__setattr__(self, "schema", json.dumps(self.schema))
        if self.schema is not None and not isinstance(self.schema, str):
            msg = f"{type(self).__name__}(schema=...): {type(self.schema).__name__} is not {what}"
            raise ConfigError(msg, fix="give JSON text or a dict", setting="schema")

    def _registry(self, registry: RegistryClient | None, topic: str, part: Part) -> RegistryClient:
        if registry is None:
            cls = type(self).__name__
            msg = f"topic {topic!r}: the {part} codec {cls} needs a schema registry, and the connection has none"
            fix = (
                'KafkaConnection(schema_registry=SchemaRegistry(url="http://..."), ...), or framing="none" and a schema'
            )
            raise ConfigError(msg, fix=fix, topic=topic)
        return registry

    def _latest(self, registry: RegistryClient, topic: str, part: Part) -> RegisteredSchema:
        try:
            found = registry.latest(f"{topic}-{part}")
        except SchemaNotFoundError as error:
            msg = f"topic {topic!r}: the schema registry has no subject {topic}-{part}, or it was deleted"
            fix = f"give the schema to read with: {type(self).__name__}(schema=...), or register it under this subject"
            raise SchemaNotFoundError(msg, fix=fix, topic=topic) from error
        if found.type != self.schema_type:
            msg = f"topic {topic!r}: the schema of subject {topic}-{part} is {found.type}, not {self.schema_type}"
            raise ConfigError(msg, fix=f"use the codec for {found.type}", topic=topic)
        return found

    def _subject(self, topic: str, part: Part, schema: Schema) -> str:
        if self.subject == "topic":
            return f"{topic}-{part}"
        name = self.record_name(schema)
        return name if self.subject == "record" else f"{topic}-{name}"


def _found(registry: RegistryClient, frames: Iterable[bytes]) -> Iterable[tuple[bytes, Schema | None]]:
    for each in frames:
        try:
            schema_id, rest = split(each)
        except DecodeFault:
            continue  # a fault of the record, for which the registry is not needed
        if rest:
            continue
        try:
            schema: Schema | None
            if isinstance(schema_id, int):
                schema = registry.schema_by_id(schema_id)
            else:
                schema = registry.schema_by_guid(schema_id)
        except SchemaNotFoundError:
            schema = None
        yield each, schema


@lru_cache(maxsize=256)
def _registered(registry: RegistryClient, subject: str, schema: Schema, register: bool) -> RegisteredSchema:
    if not register:
        try:
            return registry.lookup(subject, schema)
        except SchemaNotFoundError as error:
            msg = f"the schema registry does not have the schema under the subject {subject!r}, and register is False"
            fix = "register exactly this schema, or let kpipe register it: register=True"
            raise SchemaNotFoundError(msg, fix=fix, subject=subject) from error
    # Its answer has all reasons; that of a registration may have none.
    registry.check_compatible(subject, schema)
    return registry.register(subject, schema)

"""The Avro codec, with a schema registry or with a given schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.avro.columns import (
    avro_type,
    avro_value,
    checked_type,
    is_bad_avro,
    misfit_avro,
    parse_avro_column,
    to_avro_column,
)
from kpipe_platform.codecs.avro.made import made_schema
from kpipe_platform.codecs.avro.records import decode_avro, encode_avro, require_fastavro
from kpipe_platform.codecs.avro.schema import parse_avro
from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.framed import FramedCodec, WriterSchemas
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaType
from kpipe_platform.registry.wire import frame, split

_MADE_NAME = "Record"


@dataclass(frozen=True)
class AvroReader(Codec):
    """Reads Avro without a registry.

    Args:
        schema: The schema of the columns.
        writers: The schemas of the records; None: there are no ids, and all records have ``schema``.
    """

    name: ClassVar[str] = "avro"
    schema: Schema
    writers: WriterSchemas | None = None

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value."""
        return self.writers is not None

    @property
    def value_type(self) -> T.DataType:
        """The Spark type of the schema."""
        return avro_type(self.schema)

    def parse(self, data: Column) -> Column:
        """Parse with ``from_avro``, each record with the schema that it was written with."""
        if self.writers is None:
            return parse_avro_column(data, [(b"", self.schema)], self.schema)
        # Most records of a slice have one of the newest schemas.
        return parse_avro_column(data, reversed(self.writers.found), self.schema)

    def value(self, parsed: Column) -> Column:
        """Return the decoded value."""
        return avro_value(self.schema, parsed)

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the bytes are not a value of their schema."""
        return data.isNotNull() & is_bad_avro(self.schema, parsed)

    def _decode(self, data: bytes) -> Any:
        writer, payload = (self.schema, data) if self.writers is None else self.writers.split(data)
        return decode_avro(payload, writer, self.schema)

    def _encode(self, value: Any) -> bytes:
        return encode_avro(value, self.schema)


@dataclass(frozen=True)
class AvroWriter(Codec):
    """Writes Avro without a registry.

    Args:
        schema: The schema.
        frame: The bytes of its id, which are written in front of each value.
    """

    name: ClassVar[str] = "avro"
    schema: Schema
    frame: bytes = b""

    @property
    def value_type(self) -> T.DataType:
        """The Spark type of the schema."""
        return avro_type(self.schema)

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Encode a column with ``to_avro``. Null for a `misfit`, on which ``to_avro`` would fail."""
        value = checked_type(self.schema, value, kind)
        encoded = to_avro_column(self.schema, value, self.frame)
        misfit = misfit_avro(self.schema, value)
        return encoded if misfit is None else F.when(misfit.isNull(), encoded)

    def misfit(self, value: Column, kind: T.DataType) -> Column | None:
        """Why the schema does not allow a value."""
        return misfit_avro(self.schema, checked_type(self.schema, value, kind))

    def _decode(self, data: bytes) -> Any:
        if self.frame:
            schema_id, payload = split(data)
            if frame(schema_id) != self.frame:
                own, _ = split(self.frame)
                msg = f"the value names schema {schema_id}; the schema of the topic is {own}"
                raise ConfigError(msg, fix="return values that kpipe encodes, or write the topic with RawCodec()")
            data = payload
        return decode_avro(data, self.schema, self.schema)

    def _encode(self, value: Any) -> bytes:
        return self.frame + encode_avro(value, self.schema)


@dataclass(frozen=True)
class AvroCodec(FramedCodec):
    """Decodes and encodes Avro, by default in Confluent's wire format with a schema registry.

    Columns have the types that Spark's ``from_avro`` gives them, except time-micros, which is a BIGINT. A union of
    several types is a struct of ``member0``, ``member1`` and so on, of which one is not null. A schema that is not a
    record has one column, ``value``. The codec refuses all bytes that ``from_avro`` refuses, and also bytes after the
    value, text that is not UTF-8, a decimal with more digits than declared, and times outside the years 1 to 9999.

    Args:
        schema: An Avro schema as JSON text or as a dict. It is the reader's schema of a topic that is read, and the
            schema of what is written. None: to read, the latest schema of the subject when the slice is planned; to
            write, a schema that is made from the columns, in which each may be null. Stored as text.
        framing: ``confluent``: the id of the schema is in front of each value, or in a header. ``none``: plain Avro
            with ``schema``, without a registry.
        subject: Strategy for the subject's name: ``topic`` (the default), ``record`` or ``topic-record``.
        register: Whether to register the schema of what is written. False: it must be registered already.

    Raises:
        ConfigError: The schema is invalid or cannot be represented in Spark, for example because it is recursive.
        EnvironmentSetupError: The extra ``avro`` is not installed.

    Source: Apache Avro 1.12 specification; Spark ``from_avro`` and ``to_avro``.
    """

    name: ClassVar[str] = "avro"
    schema_type: ClassVar[SchemaType] = "AVRO"
    schema: Any = None

    def __post_init__(self) -> None:
        require_fastavro()
        if isinstance(self.schema, Mapping | list):
            object.__setattr__(self, "schema", json.dumps(self.schema))
        if self.schema is not None and not isinstance(self.schema, str):
            msg = f"AvroCodec(schema=...): {type(self.schema).__name__} is not an Avro schema"
            raise ConfigError(msg, fix="give JSON text or a dict", setting="schema")
        super().__post_init__()
        if self.given is not None:
            avro_type(self.given)

    @property
    def given(self) -> Schema | None:
        """The schema that the user gave."""
        return None if self.schema is None else Schema(self.schema)

    @property
    def value_type(self) -> T.DataType:
        """The Spark type of the schema; a struct without fields if the schema is not known yet."""
        return T.StructType() if self.given is None else avro_type(self.given)

    def schema_for(self, kind: T.DataType) -> Schema:
        """Make the schema of a Spark type."""
        if self.subject != "topic":
            msg = f"AvroCodec(subject={self.subject!r}) needs a schema to write, because its name is in the subject's"
            raise ConfigError(msg, fix="give the schema: AvroCodec(schema=...)")
        return Schema(json.dumps(made_schema(kind, _MADE_NAME)))

    def record_name(self, schema: Schema) -> str:
        """Return the full name of the record."""
        name = parse_avro(schema).name
        if name is None:
            msg = f"AvroCodec(subject={self.subject!r}): the schema has no name, because it is not a record"
            raise ConfigError(msg, fix='use subject="topic", or a schema with a name')
        return name

    def reading(self, schema: Schema, writers: WriterSchemas) -> Codec:
        """Return the codec to read with."""
        avro_type(schema)
        return AvroReader(schema, writers)

    def writing(self, schema: RegisteredSchema) -> Codec:
        """Return the codec to write with."""
        return AvroWriter(Schema(schema.text, schema.type, schema.references), frame(schema.id))

    # Without a registry, the codec reads and writes itself.

    def parse(self, data: Column) -> Column:
        """Parse with ``from_avro``."""
        return AvroReader(self._plain).parse(data)

    def value(self, parsed: Column) -> Column:
        """Return the decoded value."""
        return AvroReader(self._plain).value(parsed)

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the bytes are not a value of the schema."""
        return AvroReader(self._plain).fault(data, parsed)

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Encode a column with ``to_avro``."""
        return AvroWriter(self._plain).write(value, kind)

    def misfit(self, value: Column, kind: T.DataType) -> Column | None:
        """Why the schema does not allow a value."""
        return AvroWriter(self._plain).misfit(value, kind)

    def _decode(self, data: bytes) -> Any:
        return decode_avro(data, self._plain, self._plain)

    def _encode(self, value: Any) -> bytes:
        return encode_avro(value, self._plain)

    @property
    def _plain(self) -> Schema:
        if self.is_framed or self.given is None:
            raise self._unresolved()
        return self.given

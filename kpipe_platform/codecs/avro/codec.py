"""The Avro codec, with a schema registry or with a given schema."""

from __future__ import annotations

import json
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
from kpipe_platform.codecs.framed import FramedCodec, PinnedCodec, WriterSchemas
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaType
from kpipe_platform.registry.wire import frame

_MADE_NAME = "Record"


@dataclass(frozen=True)
class PinnedAvroCodec(PinnedCodec):
    """Reads and writes Avro without a registry."""

    name: ClassVar[str] = "avro"

    @property
    def value_type(self) -> T.DataType:
        """The Spark type of the schema."""
        return avro_type(self.schema)

    def parse(self, data: Column) -> Column:
        """Parse with ``from_avro``, each record with the schema that it was written with."""
        # Most records of a slice have one of the newest schemas.
        writers = [(b"", self.schema)] if self.writers is None else reversed(self.writers.found)
        return parse_avro_column(data, writers, self.schema)

    def value(self, parsed: Column) -> Column:
        """Return the decoded value."""
        return avro_value(self.schema, parsed)

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the bytes are not a value of their schema."""
        return data.isNotNull() & is_bad_avro(self.schema, parsed)

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
        writer, payload = self._split(data)
        return decode_avro(payload, writer, self.schema)

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
        self._keep_schema_as_text("an Avro schema")
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
        return Schema(json.dumps(made_schema(kind, _MADE_NAME)))

    def record_name(self, schema: Schema) -> str:
        """Return the full name of the record."""
        name = parse_avro(schema).name
        if name is None:
            msg = f"AvroCodec(subject={self.subject!r}): the schema has no name, because it is not a record"
            raise ConfigError(msg, fix='use subject="topic", or a schema with a name')
        return name

    def plain(self) -> Codec:
        """Return the codec of plain Avro with the given schema."""
        assert self.given is not None  # noqa: S101  # plain values have a given schema
        return PinnedAvroCodec(schema=self.given)

    def reading(self, schema: Schema, writers: WriterSchemas) -> Codec:
        """Return the codec to read with."""
        avro_type(schema)
        return PinnedAvroCodec(schema=schema, writers=writers)

    def writing(self, schema: RegisteredSchema) -> Codec:
        """Return the codec to write with."""
        return PinnedAvroCodec(schema=schema.plain, frame=frame(schema.id))

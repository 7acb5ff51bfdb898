"""The codec for JSON with a JSON Schema, with a schema registry or with a given schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.faults import NOT_ENCODABLE, DecodeFault, EncodeFault
from kpipe_platform.codecs.framed import FramedCodec, WriterSchemas
from kpipe_platform.codecs.json.codec import JsonCodec
from kpipe_platform.codecs.json_schema.columns import columns_of, schema_of_columns
from kpipe_platform.codecs.json_schema.documents import document, is_valid, require, validator, violation
from kpipe_platform.codecs.schema import schema_of, to_ddl
from kpipe_platform.errors import ConfigError, UnknownSchemaIdError
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaType
from kpipe_platform.registry.wire import frame, split

_ID_BYTES, _GUID_BYTES = 5, 17


@dataclass(frozen=True)
class JsonSchemaReader(Codec):
    """Reads JSON with a JSON Schema, without a registry.

    Args:
        columns: The columns, as DDL text.
        formats: Whether formats are validated.
        schema: The schema of all records; None if the records have ids.
        writers: The schemas of the records, by id; None if they have no ids.
    """

    name: ClassVar[str] = "json_schema"
    columns: str
    formats: bool
    schema: Schema | None = None
    writers: WriterSchemas | None = None

    is_struct: ClassVar[bool] = True

    @cached_property
    def _json(self) -> JsonCodec:
        return _json_codec(self.columns, False)

    @property
    def is_framed(self) -> bool:
        """Whether the id of its schema is in front of each value."""
        return self.writers is not None

    @property
    def fields(self) -> T.StructType:
        """The columns."""
        return self._json.fields

    @property
    def value_type(self) -> T.DataType:
        """The struct of the columns, in the types that a stage gets."""
        return self._json.value_type

    def parse(self, data: Column) -> Column:
        """Parse with ``from_json``, and validate Arrow batches with jsonschema-rs."""
        valid = _function(_Validate(self), T.BooleanType())(data)
        return F.struct(self._json.parse(self._payload(data)).alias("json"), valid.alias("valid"))

    def value(self, parsed: Column) -> Column:
        """Return the struct of the columns."""
        return self._json.value(parsed["json"])

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the bytes are not JSON that is valid and fits the columns."""
        bad = self._json.fault(self._payload(data), parsed["json"])
        return data.isNotNull() & (bad | ~F.coalesce(parsed["valid"], F.lit(False)))

    def _payload(self, data: Column) -> Column:
        if not self.is_framed:
            return data
        is_guid = F.substring(data, 1, 1) == F.lit(b"\x01")
        # The functions of Spark count from 1. A truncated frame leaves no bytes.
        return F.substring(data, F.when(is_guid, _GUID_BYTES + 1).otherwise(_ID_BYTES + 1), F.length(data))

    def accepts(self, data: bytes) -> bool:
        """Return whether the schema of a record, if it is known, accepts the record."""
        try:
            schema, payload = self._split(data)
        except (DecodeFault, UnknownSchemaIdError):
            return False
        return is_valid(schema, payload, self.formats)

    def _split(self, data: bytes) -> tuple[Schema, bytes]:
        if self.writers is not None:
            return self.writers.split(data)
        assert self.schema is not None  # noqa: S101 # one of both is set
        return self.schema, data

    def _decode(self, data: bytes) -> Any:
        schema, payload = self._split(data)
        syntax = JsonCodec().diagnose(payload)
        fault = syntax or violation(schema, payload.decode(), self.formats)
        if fault is not None:
            raise fault
        return self._json.decode(payload)

    def _encode(self, value: Any) -> bytes:
        msg = "this codec only reads"
        raise EncodeFault(msg, kind=NOT_ENCODABLE)


@dataclass(frozen=True)
class JsonSchemaWriter(Codec):
    """Writes JSON with a JSON Schema, without a registry.

    Args:
        schema: The schema.
        formats: Whether formats are validated.
        columns: Declared columns, as DDL text; empty if none are.
        include_nulls: Whether null fields are written.
        frame: The bytes of the schema's id, which are written in front of each value.
    """

    name: ClassVar[str] = "json_schema"
    schema: Schema
    formats: bool
    columns: str = ""
    include_nulls: bool = False
    frame: bytes = b""

    is_struct: ClassVar[bool] = True

    @cached_property
    def _json(self) -> JsonCodec:
        return _json_codec(self.columns, self.include_nulls)

    @property
    def fields(self) -> T.StructType:
        """The declared columns."""
        return self._json.fields

    @property
    def value_type(self) -> T.DataType:
        """The struct of the declared columns."""
        return self._json.value_type

    @property
    def has_schema(self) -> bool:
        """Whether columns are declared. Otherwise the JSON Schema alone says what can be written."""
        return bool(self.columns)

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Write a struct with ``to_json``."""
        check_columns(self.schema, kind)
        return F.concat(F.lit(self.frame), self._json.write(value, kind))

    def misfit(self, value: Column, kind: T.DataType) -> Column:
        """Why the schema does not accept a value."""
        return _function(_Refuse(self), T.StringType())(self._json.write(value, kind))

    def refusal(self, payload: bytes) -> str | None:
        """Return why the schema does not accept a JSON text; None if it does."""
        if is_valid(self.schema, payload, self.formats):
            return None
        fault = violation(self.schema, payload.decode(), self.formats)
        return None if fault is None else f"violates the JSON Schema: {fault.message}"

    def _decode(self, data: bytes) -> Any:
        payload = data[len(self.frame) :]
        if not data.startswith(self.frame):
            schema_id, _ = split(data)
            msg = f"the value names schema {schema_id}; the schema of the topic is {split(self.frame)[0]}"
            raise ConfigError(msg, fix="return values that kpipe encodes, or write the topic with RawCodec()")
        fault = JsonCodec().diagnose(payload) or violation(self.schema, payload.decode(), self.formats)
        if fault is not None:
            raise fault
        return self._json.decode(payload)

    def _encode(self, value: Any) -> bytes:
        payload = self._json.encode(value) or b""
        refusal = self.refusal(payload)
        if refusal is not None:
            raise EncodeFault(refusal, kind=NOT_ENCODABLE)
        return self.frame + payload


@dataclass(frozen=True)
class JsonSchemaCodec(FramedCodec):
    """Decodes and encodes JSON objects that a JSON Schema validates, by default with a schema registry.

    Each record is validated by the schema that it was written with, in drafts 4 to 2020-12. Without ``$schema``, it is
    draft 7, as in Confluent's serializers. The first violation is the fault of the record.

    The columns are ``columns``, or the properties of the schema: ``integer`` is BIGINT, ``number`` DOUBLE, an object
    STRUCT, or MAP if it has no ``properties``. A property is NOT NULL if it is required and cannot be null. A text of
    the format ``date`` is DATE, of ``date-time`` TIMESTAMP. What may have several types, or any, is STRING, which has
    its JSON text. Alternatives (``oneOf``, ``anyOf``) of objects are one STRUCT with all their properties.

    Args:
        schema: A JSON Schema, as JSON text or as a dict: the reader's schema of a topic that is read, which gives the
            columns, and the schema of what is written. None: to read, the latest schema of the subject when the slice
            is planned; to write, a schema that is made from the columns. Stored as text.
        columns: The columns instead of those of the schema, as in `JsonCodec`.
        formats: Whether a text must have the ``format`` that its schema gives it. False: formats are ignored, and
            dates and times are STRING.
        include_nulls: Write null fields as ``null``. By default they are omitted.
        framing: ``confluent``: the id of the schema is in front of each value, or in a header. ``none``: plain JSON
            with ``schema``, without a registry.
        subject: Strategy for the subject's name: ``topic`` (the default), ``record`` or ``topic-record``. The name of
            the record is the ``title`` of the schema.
        register: Whether to register the schema of what is written. False: it must be registered already.

    Raises:
        ConfigError: The schema is invalid, too large, or has no columns, for example because it is recursive.
        EnvironmentSetupError: The extra ``jsonschema`` is not installed.

    Source: JSON Schema, drafts 4 to 2020-12; Confluent's ``KafkaJsonSchemaSerializer``.
    """

    name: ClassVar[str] = "json_schema"
    schema_type: ClassVar[SchemaType] = "JSON"
    schema: Any = None
    columns: Any = None
    formats: bool = True
    include_nulls: bool = False

    is_struct: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require()
        if isinstance(self.schema, Mapping):
            object.__setattr__(self, "schema", json.dumps(self.schema))
        if self.schema is not None and not isinstance(self.schema, str):
            msg = f"JsonSchemaCodec(schema=...): {type(self.schema).__name__} is not a JSON Schema"
            raise ConfigError(msg, fix="give JSON text or a dict", setting="schema")
        super().__post_init__()
        if self.columns is not None:
            fields = JsonCodec(self.columns).fields
            object.__setattr__(self, "columns", to_ddl(fields))
        if self.given is not None:
            validator(self.given, self.formats)
            _json_codec(self._columns(self.given), False)

    @property
    def given(self) -> Schema | None:
        """The schema that the user gave."""
        return None if self.schema is None else Schema(self.schema, "JSON")

    @property
    def fields(self) -> T.StructType:
        """The columns; none if the schema is not known yet."""
        if self.columns is None and self.given is None:
            return T.StructType()
        return JsonCodec(self.columns or self._columns(self.given)).fields

    @property
    def value_type(self) -> T.DataType:
        """The struct of the columns, in the types that a stage gets."""
        fields = self.fields
        return JsonCodec(fields).value_type if fields else fields

    def schema_for(self, kind: T.DataType) -> Schema:
        """Make the schema of a struct."""
        if self.subject != "topic":
            msg = (
                f"JsonSchemaCodec(subject={self.subject!r}) needs a schema to write; its title is in the subject's name"
            )
            raise ConfigError(msg, fix="give the schema: JsonSchemaCodec(schema=...)")
        declared = schema_of(self.columns) if self.columns is not None else kind
        return Schema(json.dumps(schema_of_columns(declared)), "JSON")

    def record_name(self, schema: Schema) -> str:
        """Return the title of the schema."""
        root = document(schema)
        title = root.get("title") if isinstance(root, dict) else None
        if not isinstance(title, str) or not title:
            msg = f"JsonSchemaCodec(subject={self.subject!r}): the schema has no title"
            raise ConfigError(msg, fix='use subject="topic", or a schema with a title')
        return title

    def reading(self, schema: Schema, writers: WriterSchemas) -> Codec:
        """Return the codec to read with."""
        for _, each in writers.found:
            validator(each, self.formats)
        columns = self._columns(schema)
        _json_codec(columns, False)
        return JsonSchemaReader(columns, self.formats, writers=writers)

    def writing(self, schema: RegisteredSchema) -> Codec:
        """Return the codec to write with."""
        plain = Schema(schema.text, schema.type, schema.references)
        validator(plain, self.formats)
        return self._writer(plain, frame(schema.id))

    def _columns(self, schema: Schema | None) -> str:
        if self.columns is not None or schema is None:
            return self.columns or ""
        return to_ddl(columns_of(schema, self.formats))

    def _writer(self, schema: Schema, frame: bytes) -> JsonSchemaWriter:
        return JsonSchemaWriter(schema, self.formats, self.columns or "", self.include_nulls, frame)

    # Without a registry, the codec reads and writes itself.

    def parse(self, data: Column) -> Column:
        """Parse with ``from_json``, and validate."""
        return self._plain_reader.parse(data)

    def value(self, parsed: Column) -> Column:
        """Return the struct of the columns."""
        return self._plain_reader.value(parsed)

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the bytes are not JSON that is valid and fits the columns."""
        return self._plain_reader.fault(data, parsed)

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Write a struct with ``to_json``."""
        return self._plain_writer.write(value, kind)

    def misfit(self, value: Column, kind: T.DataType) -> Column:
        """Why the schema does not accept a value."""
        return self._plain_writer.misfit(value, kind)

    def _decode(self, data: bytes) -> Any:
        return self._plain_reader._decode(data)

    def _encode(self, value: Any) -> bytes:
        return self._plain_writer._encode(value)

    @property
    def _plain(self) -> Schema:
        if self.given is None:
            raise self._unresolved()
        return self.given

    @property
    def _plain_reader(self) -> JsonSchemaReader:
        return JsonSchemaReader(self._columns(self._plain), self.formats, self._plain)

    @property
    def _plain_writer(self) -> JsonSchemaWriter:
        return self._writer(self._plain, b"")


def check_columns(schema: Schema, kind: T.DataType) -> None:
    """Check that an output has the properties that a schema requires, and none that it refuses.

    Raises:
        ConfigError: It has not.
    """
    root = document(schema)
    if not isinstance(root, dict) or not isinstance(kind, T.StructType):
        return
    properties = root.get("properties") or {}
    missing = [name for name in root.get("required") or () if name not in kind.names]
    is_closed = root.get("additionalProperties") is False and not root.get("patternProperties")
    unknown = [name for name in kind.names if is_closed and name not in properties]
    problems = [f"{name!r} is required but not returned" for name in missing]
    problems += [f"{name!r} is returned but not a property" for name in unknown]
    if problems:
        msg = f"the stage's output does not match the JSON Schema: {'; '.join(problems)}"
        raise ConfigError(msg, fix="select the columns, or correct the schema")


@dataclass(frozen=True)
class _Validate:
    """Validates batches. An object, so that Spark pickles the codec with it."""

    reader: JsonSchemaReader

    def __call__(self, data: pa.Array) -> pa.Array:
        accepts = self.reader.accepts
        return pa.array([None if each is None else accepts(each) for each in data.to_pylist()], pa.bool_())


@dataclass(frozen=True)
class _Refuse:
    """Says why values of batches are refused."""

    writer: JsonSchemaWriter

    def __call__(self, data: pa.Array) -> pa.Array:
        refusal = self.writer.refusal
        return pa.array([None if each is None else refusal(each) for each in data.to_pylist()], pa.string())


def _function(call: Callable[[pa.Array], pa.Array], kind: T.DataType) -> Callable[[Column], Column]:
    def convert(data: pa.Array) -> pa.Array:
        return call(data)

    functions: Any = F
    made: Callable[[Column], Column] = functions.arrow_udf(convert, returnType=kind)
    return made


@lru_cache(maxsize=256)
def _json_codec(columns: str, include_nulls: bool) -> JsonCodec:
    return JsonCodec(columns or None, include_nulls=include_nulls)

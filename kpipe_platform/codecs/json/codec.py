"""The JSON codec, which checks values against a schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import Codec
from kpipe_platform.codecs.faults import (
    EMPTY,
    NOT_AN_OBJECT,
    NOT_ENCODABLE,
    NOT_JSON,
    DecodeFault,
    EncodeFault,
)
from kpipe_platform.codecs.json.columns import encode_json, is_bad_json, json_value, parse_json
from kpipe_platform.codecs.json.fields import read_fields, shown
from kpipe_platform.codecs.json.scalars import with_doubles
from kpipe_platform.codecs.json.syntax import JsonSyntaxError, read_json
from kpipe_platform.codecs.json.write import write_json
from kpipe_platform.codecs.schema import schema_of, to_ddl
from kpipe_platform.codecs.text import not_utf8
from kpipe_platform.codecs.types import field_path, require_distinct_names, stage_type
from kpipe_platform.errors import ConfigError

_WHITE_SPACE = " \t\r\n"


@dataclass(frozen=True)
class JsonCodec(Codec):
    r"""Decodes and encodes one JSON object per value, in UTF-8.

    The codec refuses all values that Spark's ``from_json`` refuses. It also refuses bytes that are not UTF-8, a
    required field that is missing or null, text after the object, and values that Spark would change because the type
    cannot hold them: a TINYINT above 127, a DECIMAL with more digits after the point than its scale, a text longer than
    its VARCHAR, seconds outside the range of a TIMESTAMP, a key that occurs twice in a MAP, and a lone surrogate.
    Otherwise it is as lenient as Spark: a STRING field accepts any value as JSON text, and names that are not in the
    schema are ignored. Names are case-sensitive. kpipe adds two types: TIMESTAMP_MILLIS and TIMESTAMP_MICROS are
    integers since 1970 in JSON, and TIMESTAMP columns in the stage.

    The fault of a value is the first of these: not UTF-8; empty; not JSON; not an object; the first field of the schema
    that is missing, null or of a wrong type; text after the object.

    Args:
        schema: The fields of the value: DDL text such as ``"dep_time INT NOT NULL, tailnum STRING"``, the
            JSON text of a Spark schema, or a pyspark ``StructType``. NOT NULL marks a required field. None is
            for a codec that only writes, or that accepts any object. Stored as DDL text.
        include_nulls: Write null fields as ``null``. By default they are omitted, as in Spark.

    Raises:
        ConfigError: The schema is invalid, has a map whose keys are not strings, or has names that differ only in
            case, which Spark does not distinguish.

    Source: Spark ``from_json`` and ``to_json``, mode PERMISSIVE, ANSI.
    """

    name: ClassVar[str] = "json"
    schema: Any = None
    include_nulls: bool = False
    _fields: T.StructType = field(init=False, repr=False, compare=False, default_factory=T.StructType)

    def __post_init__(self) -> None:
        if self.schema is None:
            return
        fields = schema_of(self.schema)
        require_distinct_names(fields, "schema")
        _require_text_keys(fields)
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "schema", to_ddl(fields))

    is_struct: ClassVar[bool] = True

    @property
    def fields(self) -> T.StructType:
        """The declared fields."""
        return self._fields

    @property
    def value_type(self) -> T.DataType:
        """The struct of the fields, in the types that a stage gets."""
        return stage_type(self._fields)

    @property
    def has_schema(self) -> bool:
        """Whether the codec has a schema, which is required to decode values to columns."""
        return self.schema is not None

    def misfit(self, value: Column, kind: T.DataType) -> None:
        """Return None, because all values of the type can be encoded."""

    def parse(self, data: Column) -> Column:
        """Parse JSON text with ``from_json``."""
        return parse_json(self._fields, data)

    def value(self, parsed: Column) -> Column:
        """Return the struct of the fields."""
        return json_value(self._fields, parsed)

    def fault(self, data: Column, parsed: Column) -> Column:
        """Return whether the text is not a JSON object that fits the fields."""
        bad = is_bad_json(self._fields, data, parsed)
        return data.isNotNull() & F.coalesce(bad, F.lit(True))

    def write(self, value: Column, kind: T.DataType) -> Column:
        """Write a struct as JSON text with ``to_json``."""
        return encode_json(self._fields, value, kind, include_nulls=self.include_nulls)

    def _encode(self, value: Any) -> bytes:
        try:
            return write_json(value, include_nulls=self.include_nulls, kind=self.fields or None).encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = error.object[error.start]
            message = f"a text has a lone surrogate ({surrogate!r}), which UTF-8 cannot encode"
            raise EncodeFault(message, kind=NOT_ENCODABLE) from None

    def _decode(self, data: bytes) -> dict[str, Any]:
        try:
            text = str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None
        if not text or (text.isspace() and not text.strip(_WHITE_SPACE)):
            what = "is empty" if not text else "contains only white space"
            raise DecodeFault(f"the value {what}; expected a JSON object", kind=EMPTY)
        try:
            value, end = read_json(text)
        except JsonSyntaxError as error:
            raise DecodeFault(f"not JSON: {error}", kind=NOT_JSON) from None
        if not isinstance(value, dict):
            raise DecodeFault(f"expected a JSON object, found {shown(value)}", kind=NOT_AN_OBJECT)
        fields: dict[str, Any] = read_fields(self.fields, value) if self.has_schema else with_doubles(value)
        if end != len(text) and text[end:].strip(_WHITE_SPACE):
            rest = text[end:].lstrip(_WHITE_SPACE)
            problem = JsonSyntaxError(f"text after the object, {rest[:12]!r},", text, len(text) - len(rest))
            raise DecodeFault(f"not JSON: {problem}", kind=NOT_JSON)
        return fields


def _require_text_keys(kind: T.DataType, where: str = "") -> None:
    if isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, T.StringType):
            msg = f"schema: field {where!r} is {kind.simpleString()}, but the keys of a JSON object are strings"
            raise ConfigError(msg, fix="use MAP<STRING, ...>", field=where)
        _require_text_keys(kind.valueType, where)
    elif isinstance(kind, T.ArrayType):
        _require_text_keys(kind.elementType, where)
    elif isinstance(kind, T.StructType):
        for field in kind:
            _require_text_keys(field.dataType, field_path(where, field.name))

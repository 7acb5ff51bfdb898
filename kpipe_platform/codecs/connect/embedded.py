"""The schema that Kafka Connect's ``JsonConverter`` puts into each record (``schemas.enable=true``).

Source: Kafka Connect ``JsonSchema`` and ``JsonConverter``.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import any_of
from kpipe_platform.codecs.connect.row import Row
from kpipe_platform.codecs.connect.semantics import ExactDecimal, PlainDecimal
from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.codecs.types import TimestampMicrosType, TimestampMillisType, field_path
from kpipe_platform.errors import ConfigError

SCHEMA_MISMATCH = "schema_mismatch"
"""The schema in the record gives a field another semantic type than the codec's declaration."""

_PARAMETERS = T.StructType().add("scale", T.StringType())
FIELDS = T.ArrayType(
    T.StructType().add("field", T.StringType()).add("name", T.StringType()).add("parameters", _PARAMETERS)
)
"""The part of a struct's schema that is checked."""

_TYPES: dict[type[T.DataType], str] = {
    T.BooleanType: "boolean",
    T.ByteType: "int8",
    T.ShortType: "int16",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.VarcharType: "string",
    T.CharType: "string",
    T.BinaryType: "bytes",
}
_EPOCH_NAMES: dict[type[T.DataType], str] = {
    TimestampMillisType: "org.apache.kafka.connect.data.Timestamp",
    TimestampMicrosType: "io.debezium.time.MicroTimestamp",
}


def differs(row: Row, fields: Column) -> Column:
    """A condition that is true if the schema of a record contradicts the declaration of a column.

    Args:
        row: The declaration.
        fields: The fields of the record's schema, of type `FIELDS`; null if the record has no schema.
    """
    expected = _expected(row)

    def contradicts(field: Column) -> Column:
        conditions = [
            (field["field"] == column)
            & (~F.coalesce(field["name"], F.lit("")).isin(*names) | _other_scale(field["parameters"]["scale"], scale))
            for column, names, scale in expected
        ]
        return F.coalesce(any_of(conditions), F.lit(False))

    return F.coalesce(F.exists(fields, contradicts), F.lit(False)) if expected else F.lit(False)


def check(row: Row, fields: Any, where: str = "") -> None:
    """Check in Python what `differs` checks.

    Raises:
        DecodeFault: The schema of the record contradicts the declaration of a column.
    """
    found = {field["field"]: field for field in fields or () if field is not None}
    for column, names, scale in _expected(row):
        field = found.get(column)
        if field is None:
            continue
        name, own_scale = field["name"] or "", (field["parameters"] or {}).get("scale")
        if name not in names or (scale is not None and own_scale != scale):
            own = f"{name or 'no semantic type'}{f' of scale {own_scale}' if own_scale is not None else ''}"
            declared = f"{names[0] or 'no semantic type'}{f' of scale {scale}' if scale is not None else ''}"
            path = field_path(where, column)
            message = f'field "{path}": its schema in the record has {own}, but the codec expects {declared}'
            raise DecodeFault(message, kind=SCHEMA_MISMATCH, field=path, fix="correct the codec's types or decimals")


def schema_for(row: Row) -> dict[str, Any]:
    """Make the schema of a row, as ``JsonConverter`` writes it."""
    return {**_struct(row, row.fields, ""), "optional": False}


def _expected(row: Row) -> list[tuple[str, tuple[str, ...], str | None]]:
    found = []
    for field in row.fields:
        semantic = row.semantic(field.name)
        if semantic is None or isinstance(field.dataType, T.ArrayType | T.MapType | T.StructType):
            continue
        is_exact = isinstance(semantic, ExactDecimal) and isinstance(field.dataType, T.DecimalType)
        scale = str(field.dataType.scale) if is_exact and isinstance(field.dataType, T.DecimalType) else None
        # The declared name first, for messages.
        names = sorted(semantic.names, key=lambda name: name != row.type_name(field.name))
        found.append((field.name, ("",) if isinstance(semantic, PlainDecimal) else tuple(names), scale))
    return found


def _other_scale(own: Column, scale: str | None) -> Column:
    return F.lit(False) if scale is None else F.coalesce(own, F.lit("")) != scale


def _struct(row: Row, kind: T.StructType, path: str) -> dict[str, Any]:
    fields = [
        {**_schema(row, field.dataType, field_path(path, field.name)), "optional": field.nullable}
        | {"field": field.name}
        for field in kind
    ]
    return {"type": "struct", "fields": fields}


def _schema(row: Row, kind: T.DataType, path: str) -> dict[str, Any]:
    if isinstance(kind, T.StructType):
        return _struct(row, kind, path)
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": {**_schema(row, kind.elementType, path), "optional": True}}
    if isinstance(kind, T.MapType):
        values = {**_schema(row, kind.valueType, path), "optional": True}
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": values}
    semantic = row.semantic(path)
    if semantic is None:
        if type(kind) in _EPOCH_NAMES:
            return {"type": "int64", "name": _EPOCH_NAMES[type(kind)], "version": 1}
        if type(kind) not in _TYPES:
            msg = f"column {path!r} is {kind.simpleString()}, which Kafka Connect has no type for"
            raise ConfigError(msg, fix="declare another type", column=path)
        return {"type": _TYPES[type(kind)]}
    if isinstance(semantic, PlainDecimal):
        return {"type": "string" if semantic.names == ("STRING",) else "double"}
    named: dict[str, Any] = {"name": row.type_name(path), "version": 1}
    physical = semantic.physical(kind)
    if isinstance(semantic, ExactDecimal) and isinstance(kind, T.DecimalType):
        named["parameters"] = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
    if isinstance(physical, T.StructType):
        fields = [{"type": "int32", "optional": False, "field": "scale"}]
        return {"type": "struct", "fields": [*fields, {"type": "bytes", "optional": False, "field": "value"}], **named}
    return {"type": _TYPES[type(physical)], **named}

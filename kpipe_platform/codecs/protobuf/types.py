"""Spark types of Protobuf fields.

Source: https://protobuf.dev/programming-guides/proto3/#scalar, Spark's ``from_protobuf``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as T

from kpipe_platform.codecs.types import field_path, require_distinct_names
from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Numbers of FieldDescriptor.TYPE_*.
DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING, GROUP, MESSAGE, BYTES = range(1, 13)
UINT32, ENUM, SFIXED32, SFIXED64, SINT32, SINT64 = range(13, 19)

UNSIGNED_LONG = T.DecimalType(20, 0)
SCALARS: dict[int, T.DataType] = {
    DOUBLE: T.DoubleType(),
    FLOAT: T.FloatType(),
    **dict.fromkeys((INT32, SINT32, SFIXED32), T.IntegerType()),
    **dict.fromkeys((INT64, SINT64, SFIXED64, UINT32, FIXED32), T.LongType()),
    **dict.fromkeys((UINT64, FIXED64), UNSIGNED_LONG),
    BOOL: T.BooleanType(),
    STRING: T.StringType(),
    BYTES: T.BinaryType(),
    ENUM: T.StringType(),
}
"""Spark type of each scalar type. Spark has no unsigned numbers."""

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
"""Messages with one field, ``value``. Their Spark type is that of the field."""
JSON_TEXT = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""Messages that are JSON text in Spark, because they contain themselves."""

MIN_SECONDS, MAX_SECONDS = -62_135_596_800, 253_402_300_799
"""Range of a Timestamp: the years 1 to 9999."""
MAX_DURATION_S = 315_576_000_000
"""Range of a Duration, in both directions: about 10,000 years."""
MAX_NANOS = 999_999_999


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    message = field.message_type
    return bool(field.is_repeated and message is not None and message.GetOptions().map_entry)


def is_plain_message(message: Descriptor | None) -> bool:
    """Whether a message type is a struct in Spark."""
    name = None if message is None else message.full_name
    return name is not None and name not in (TIMESTAMP, DURATION) and name not in WRAPPERS and name not in JSON_TEXT


def struct_of(message: Descriptor) -> T.StructType:
    """Return the columns of a message type. ``nullable=False`` marks a required field of proto2.

    Raises:
        ConfigError: A message type contains itself, or names differ only in case.
    """
    kind = _struct(message, (), "")
    require_distinct_names(kind, f"Protobuf message type {message.full_name}")
    return kind


def _struct(message: Descriptor, within: tuple[Descriptor, ...], path: str) -> T.StructType:
    if any(each.full_name == message.full_name for each in within):
        names = " > ".join(each.full_name for each in (*within, message))
        msg = f"the Protobuf message type {message.full_name!r} contains itself, at {path!r}: {names}"
        fix = "a Spark column cannot be recursive: read the topic with RawCodec() and decode it in the stage"
        raise ConfigError(msg, fix=fix, field=path)
    within = (*within, message)
    kinds = [
        (each.name, _field(each, within, field_path(path, each.name)), not each.is_required) for each in message.fields
    ]
    return T.StructType([T.StructField(*each) for each in kinds])


def _field(field: FieldDescriptor, within: tuple[Descriptor, ...], path: str) -> T.DataType:
    if is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return T.MapType(_single(key, within, path), _single(value, within, path))
    kind = _single(field, within, path)
    return T.ArrayType(kind) if field.is_repeated else kind


def _single(field: FieldDescriptor, within: tuple[Descriptor, ...], path: str) -> T.DataType:
    message = field.message_type
    if message is None:
        return SCALARS[field.type]
    if message.full_name == TIMESTAMP:
        return T.TimestampType()
    if message.full_name == DURATION:
        return T.DayTimeIntervalType()
    if message.full_name in JSON_TEXT:
        return T.StringType()
    if message.full_name in WRAPPERS:
        return SCALARS[message.fields_by_name["value"].type]
    return _struct(message, within, path)

"""The types of a record's fields: PySpark's types, and two kpipe types for times stored as numbers.

Every schema is a PySpark ``StructType``. ``nullable=False`` marks a required field; the metadata ``comment`` holds its
comment. Importing the types does not need a Spark session.

Source: Spark SQL reference, "Data Types".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

from pyspark.sql import types as T

from kpipe_platform.errors import ConfigError


class EpochType(T.DataType):
    """A TIMESTAMP column in the stage, and an integer since 1970 in JSON."""

    per_second: ClassVar[int]
    """Units per second."""


class TimestampMillisType(EpochType):
    """Milliseconds since 1970."""

    per_second = 1_000

    @classmethod
    def typeName(cls) -> str:
        """Return the type's name in DDL."""
        return "timestamp_millis"


class TimestampMicrosType(EpochType):
    """Microseconds since 1970."""

    per_second = 1_000_000

    @classmethod
    def typeName(cls) -> str:
        """Return the type's name in DDL."""
        return "timestamp_micros"


SCALARS: dict[str, type[T.DataType]] = {
    "boolean": T.BooleanType,
    "tinyint": T.ByteType,
    "byte": T.ByteType,
    "smallint": T.ShortType,
    "short": T.ShortType,
    "int": T.IntegerType,
    "integer": T.IntegerType,
    "bigint": T.LongType,
    "long": T.LongType,
    "float": T.FloatType,
    "real": T.FloatType,
    "double": T.DoubleType,
    "decimal": T.DecimalType,
    "dec": T.DecimalType,
    "numeric": T.DecimalType,
    "string": T.StringType,
    "varchar": T.VarcharType,
    "char": T.CharType,
    "character": T.CharType,
    "binary": T.BinaryType,
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "timestamp_ltz": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
    "timestamp_millis": TimestampMillisType,
    "timestamp_micros": TimestampMicrosType,
}
"""The scalar types by their names in DDL."""


def types_in(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield the type and all types nested in it, at any depth, except map keys."""
    yield kind
    if isinstance(kind, T.StructType):
        for field in kind:
            yield from types_in(field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from types_in(kind.elementType)
    elif isinstance(kind, T.MapType):
        yield from types_in(kind.valueType)


def field_path(path: str, name: str) -> str:
    """Path of a field within a struct that has a path; empty for the outermost struct."""
    return f"{path}.{name}" if path else name


def map_fields(
    struct: T.StructType,
    change: Callable[[T.DataType, str], T.DataType],
    path: str = "",
    *,
    keep_not_null: bool = False,
) -> T.StructType:
    """Return the fields with each scalar type replaced by ``change``, which gets the type and its path.

    The elements of an array and the values of a map have its path. Comments are dropped. NOT NULL is dropped too,
    unless ``keep_not_null`` is set.
    """
    fields = []
    for field in struct:
        kind = _map_type(field.dataType, change, field_path(path, field.name), keep_not_null)
        fields.append(T.StructField(field.name, kind, field.nullable or not keep_not_null))
    return T.StructType(fields)


def _map_type(
    kind: T.DataType, change: Callable[[T.DataType, str], T.DataType], path: str, keep_not_null: bool
) -> T.DataType:
    if isinstance(kind, T.StructType):
        return map_fields(kind, change, path, keep_not_null=keep_not_null)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_map_type(kind.elementType, change, path, keep_not_null))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, _map_type(kind.valueType, change, path, keep_not_null))
    return change(kind, path)


def is_type(returned: T.DataType, declared: T.DataType) -> bool:
    """Whether a column has the declared type. Struct fields match in any order; a NullType matches every type."""
    if isinstance(returned, T.NullType):
        return True
    if isinstance(declared, T.ArrayType):
        return isinstance(returned, T.ArrayType) and is_type(returned.elementType, declared.elementType)
    if isinstance(declared, T.MapType):
        return (
            isinstance(returned, T.MapType)
            and is_type(returned.keyType, declared.keyType)
            and is_type(returned.valueType, declared.valueType)
        )
    if isinstance(declared, T.StructType):
        return (
            isinstance(returned, T.StructType)
            and set(returned.names) == set(declared.names)
            and all(is_type(field.dataType, declared[field.name].dataType) for field in returned)
        )
    # A string with any collation is a string.
    return returned == declared or (isinstance(declared, T.StringType) and isinstance(returned, T.StringType))


def require_distinct_names(kind: T.DataType, what: str, path: str = "") -> None:
    """Refuse names of fields that differ only in case, which Spark does not distinguish.

    Args:
        kind: The type.
        what: What it is the type of, for the message.
        path: Its path.

    Raises:
        ConfigError: There are such names.
    """
    if isinstance(kind, T.StructType):
        known: dict[str, str] = {}
        for field in kind:
            where = field_path(path, field.name)
            twin = known.setdefault(field.name.lower(), field.name)
            if twin != field.name:
                msg = f"{what}: fields {twin!r} and {where!r} differ only in case, which Spark does not distinguish"
                raise ConfigError(msg, fix="declare one of them, or read the topic with RawCodec()", field=where)
            require_distinct_names(field.dataType, what, where)
    elif isinstance(kind, T.ArrayType | T.MapType):
        element = kind.elementType if isinstance(kind, T.ArrayType) else kind.valueType
        require_distinct_names(element, what, f"{path}[]")


def stage_type(kind: T.DataType, *, keep_not_null: bool = False) -> T.DataType:
    """Return the column type in a stage: VARCHAR and CHAR become STRING, integers since 1970 become TIMESTAMP."""
    return _map_type(kind, partial(_replaced, epoch=T.TimestampType()), "", keep_not_null)


def json_type(struct: T.StructType) -> T.StructType:
    """Return the type to pass to Spark's ``from_json``.

    NOT NULL is dropped, because ``from_json`` does not check it but relies on it with some settings. VARCHAR and CHAR
    become STRING, because ``from_json`` refuses both. Integers since 1970 become BIGINT.
    """
    return map_fields(struct, partial(_replaced, epoch=T.LongType()))


def _replaced(scalar: T.DataType, path: str, epoch: T.DataType) -> T.DataType:
    if isinstance(scalar, EpochType):
        return epoch
    return T.StringType() if isinstance(scalar, T.VarcharType | T.CharType) else scalar

"""Make the Avro schema of a Spark type.

Every column is a union with null, with null as its default, so that columns can be added and removed later without
breaking compatibility, and so that the schema does not depend on what Spark knows about nulls in a slice.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import types as T

from kpipe_platform.codecs.types import field_path
from kpipe_platform.errors import ConfigError

_SCALARS: dict[type[T.DataType], Any] = {
    T.BooleanType: "boolean",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_name(text: str) -> str:
    """Make a name in Avro from a text such as the name of a topic."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return name if _NAME.fullmatch(name) else f"_{name}"


def made_schema(kind: T.DataType, name: str) -> Any:
    """Make a schema, as JSON values.

    Args:
        kind: A struct of the columns, or the type of a key.
        name: Name of the record.

    Raises:
        ConfigError: Avro has no such type, or a column's name is not a name in Avro.
    """
    return _made(kind, name, "")


def _made(kind: T.DataType, name: str, path: str) -> Any:
    if isinstance(kind, T.StructType):
        return {"type": "record", "name": name, "fields": [_field(each, name, path) for each in kind]}
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": ["null", _made(kind.elementType, f"{name}_item", f"{path}[]")]}
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return {"type": "map", "values": ["null", _made(kind.valueType, f"{name}_value", f"{path}[]")]}
    if isinstance(kind, T.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if type(kind) not in _SCALARS:
        msg = f"column {path or 'key'!r} is {kind.simpleString()}, which kpipe does not write as Avro"
        raise ConfigError(msg, fix="cast it in the stage, or give AvroCodec a schema", column=path)
    return _SCALARS[type(kind)]


def _field(field: T.StructField, name: str, path: str) -> dict[str, Any]:
    where = field_path(path, field.name)
    if not _NAME.fullmatch(field.name):
        msg = f"column {where!r} is not a name in Avro, which has only letters, digits and _"
        raise ConfigError(msg, fix="rename it in the stage: df.withColumnRenamed(...)", column=where)
    return {
        "name": field.name,
        "type": ["null", _made(field.dataType, f"{name}_{field.name}", where)],
        "default": None,
    }

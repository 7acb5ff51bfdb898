"""Convert schemas from the forms that users provide, and to DDL text."""

from __future__ import annotations

import json
import re

from pyspark.sql import types as T

from kpipe_platform.codecs.ddl import parse_ddl
from kpipe_platform.errors import ConfigError

_FIX = 'give DDL text such as "id BIGINT NOT NULL, name STRING", or a pyspark StructType'


def schema_of(schema: object) -> T.StructType:
    """Convert a schema in any supported form to a PySpark type.

    Args:
        schema: DDL text, the JSON text of a Spark schema (``StructType.json()``), or a pyspark
            ``StructType``, whose ``nullable=False`` marks a field as required. ``containsNull`` and
            ``valueContainsNull`` are ignored: elements may be null. Of the metadata, only the comment is kept.

    Returns:
        The type, which contains only structs, arrays, maps and the types in `SCALARS`.

    Raises:
        ConfigError: The schema is invalid or not a struct.
    """
    if isinstance(schema, str) and not schema.lstrip().startswith("{"):
        return parse_ddl(schema)
    kind = _from_json(schema) if isinstance(schema, str) else schema
    if not isinstance(kind, T.DataType):
        msg = f"schema: {type(kind).__name__} is not a schema"
        raise ConfigError(msg, fix=_FIX)
    if not isinstance(kind, T.StructType):
        msg = f"schema: a record needs a struct, found {kind.simpleString()}"
        raise ConfigError(msg, fix=_FIX)
    # The parser refuses types that kpipe does not support, and reports their position.
    return parse_ddl(to_ddl(kind))


def _from_json(text: str) -> T.DataType:
    try:
        # `StructType.fromJson` parses any type only as the type of a field.
        field = {"name": "schema", "type": json.loads(text), "nullable": True}
        return T.StructType.fromJson({"fields": [field]}).fields[0].dataType
    except json.JSONDecodeError as error:
        msg = f"schema: the text starts with {{ but is not JSON ({error})"
    except KeyError as error:
        msg = f"schema: the JSON text lacks {error}"
    except Exception as error:  # noqa: BLE001 - PySpark raises errors of many types
        msg = f"schema: the JSON text is not a Spark schema ({error})"
    raise ConfigError(msg, fix=_FIX)


def to_ddl(struct: T.StructType) -> str:
    """Return the fields as DDL text, which `kpipe_platform.codecs.ddl.parse_ddl` parses to the same type."""
    return ", ".join(_column(field, " ") for field in struct)


def _column(field: T.StructField, separator: str) -> str:
    text = f"{quoted_name(field.name)}{separator}{_type_ddl(field.dataType)}"
    if not field.nullable:
        text += " NOT NULL"
    if "comment" in field.metadata:
        escaped = field.metadata["comment"].replace("\\", "\\\\").replace("'", "\\'")
        text += f" COMMENT '{escaped}'"
    return text


def _type_ddl(kind: T.DataType) -> str:
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{_type_ddl(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{_type_ddl(kind.keyType)}, {_type_ddl(kind.valueType)}>"
    if isinstance(kind, T.StructType):
        return f"STRUCT<{', '.join(_column(field, ': ') for field in kind)}>"
    return kind.simpleString().upper()


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def quoted_name(name: str) -> str:
    """Quote a column name for SQL: in backquotes unless it is a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"

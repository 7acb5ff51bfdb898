"""A Spark schema to a schema tree, without importing pyspark: by the JSON form that Spark itself writes."""

from __future__ import annotations

import json
from typing import Any

from kpipe_platform.codecs.ddl import parse_ddl
from kpipe_platform.codecs.schema import ArrayType, DataType, Field, MapType, StructType
from kpipe_platform.errors import ConfigError

_FIX = 'give DDL text such as "id BIGINT NOT NULL, name STRING", or a pyspark StructType'


def fields_of(schema: str | object) -> tuple[Field, ...]:
    """The fields of a schema in any form that users have.

    Args:
        schema: DDL text, the JSON text of a Spark schema (``StructType.json()``), or a pyspark
            ``StructType``, whose ``nullable=False`` marks a field as required. ``containsNull`` and
            ``valueContainsNull`` are not looked at: elements may be null.

    Returns:
        The fields in their order.

    Raises:
        ConfigError: The schema cannot be read, or is not a struct.
    """
    if isinstance(schema, str):
        if not schema.lstrip().startswith("{"):
            return parse_ddl(schema)
        try:
            value = json.loads(schema)
        except ValueError as error:
            msg = f"schema: the text starts with {{ and is not JSON ({error})"
            raise ConfigError(msg, fix=_FIX) from None
    elif hasattr(schema, "jsonValue"):
        value = schema.jsonValue()
    else:
        msg = f"schema: {type(schema).__name__} is not a schema"
        raise ConfigError(msg, fix=_FIX)
    kind = _type(value, "the schema")
    if not isinstance(kind, StructType):
        msg = f"schema: a record needs a struct, found {kind}"
        raise ConfigError(msg, fix=_FIX)
    return kind.fields


def _type(value: Any, where: str) -> DataType:
    if isinstance(value, str):
        try:
            return parse_ddl(f"x {value}")[0].type
        except ConfigError as error:
            msg = f"schema: type {value!r} of {where} is not supported"
            raise ConfigError(msg, fix=error.fix) from None
    kind = value.get("type") if isinstance(value, dict) else None
    try:
        if kind == "struct":
            return StructType(tuple(_field(field) for field in value["fields"]))
        if kind == "array":
            return ArrayType(_type(value["elementType"], f"the elements of {where}"))
        if kind == "map":
            key = _type(value["keyType"], f"the keys of {where}")
            return MapType(key, _type(value["valueType"], f"the values of {where}"))
    except KeyError as error:
        msg = f"schema: {where} lacks {error}"
        raise ConfigError(msg, fix=_FIX) from None
    msg = f"schema: the type of {where} is not supported: {value!r:.100}"
    raise ConfigError(msg, fix="use its plain SQL type, such as STRING or STRUCT")


def _field(value: dict[str, Any]) -> Field:
    name = value["name"]
    comment = value.get("metadata", {}).get("comment")
    kind = _type(value["type"], f"field {name!r}")
    return Field(name, kind, required=not value.get("nullable", True), comment=comment)

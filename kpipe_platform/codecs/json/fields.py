"""Read the fields of a JSON object by its schema, and report the first field that does not fit."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from kpipe_platform.codecs.faults import MISSING_FIELD, NULL_FIELD, WRONG_TYPE, DecodeFault
from kpipe_platform.codecs.json.scalars import mismatch, with_doubles
from kpipe_platform.codecs.json.syntax import RepeatedNames
from kpipe_platform.codecs.types import field_path

MAX_SHOWN_CHARS = 60
"""Maximum length of record data in a message. Messages appear in headers, consumer logs and the UI."""


def read_fields(
    schema: T.StructType, value: dict[str, Any], path: str = "", *, replaced: bool = False
) -> dict[str, Any]:
    """Return the schema's fields of an object, in the schema's order. Absent fields are None.

    Args:
        schema: The schema.
        value: The object, as returned by `read_json`.
        path: Path of the object within the record; empty for the record itself.
        replaced: Whether a later value of the same name replaces the object. Spark still refuses the record if it
            cannot convert the object; kpipe does not check anything else in it.

    Returns:
        The fields. Numbers with a fraction or an exponent are `Decimal` in DECIMAL fields, and float in others, as in
        Spark.

    Raises:
        DecodeFault: The first field, in the schema's order, whose value does not fit.
    """
    fields: dict[str, Any] = {}
    for field in schema:
        where = field_path(path, field.name)
        # If a name is repeated, Spark converts every value, keeps the last, and refuses the record if any is invalid.
        if isinstance(value, RepeatedNames):
            values = [one for name, one in value.pairs if name == field.name]
        else:
            values = [value[field.name]] if field.name in value else []
        last = None
        for number, one in enumerate(values, 1):
            last = _read(field.dataType, one, where, replaced=replaced or number < len(values))
        if not field.nullable and last is None and not replaced:
            what, kind = ("null", NULL_FIELD) if values else ("missing", MISSING_FIELD)
            raise DecodeFault(f'field "{where}" is required but {what}', kind=kind, field=where)
        fields[field.name] = last
    return fields


def shown(value: Any) -> str:
    """Format a JSON value and its kind for messages: ``string "abc"``. Truncated to `MAX_SHOWN_CHARS`."""
    kind = _kind(value)
    if kind == "null":
        return kind
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=float)
    return f"{kind} {_truncate(text)}"


def _read(kind: T.DataType, value: Any, where: str, *, replaced: bool) -> Any:
    if value is None:
        return None
    if isinstance(kind, T.StructType) and isinstance(value, dict):
        return read_fields(kind, value, where, replaced=replaced)
    if isinstance(kind, T.ArrayType) and isinstance(value, list):
        return [_read(kind.elementType, one, f"{where}[{i}]", replaced=replaced) for i, one in enumerate(value)]
    if isinstance(kind, T.MapType) and isinstance(value, dict):
        return _read_map(kind, value, where, replaced=replaced)
    note = mismatch(kind, value, replaced=replaced)
    if note is not None:
        message = f'field "{where}": expected {_truncate(kind.simpleString())}, found {shown(value)}{note}'
        raise DecodeFault(message, kind=WRONG_TYPE, field=where)
    return value if isinstance(kind, T.DecimalType) else with_doubles(value)


def _read_map(kind: T.MapType, value: dict[str, Any], where: str, *, replaced: bool) -> dict[str, Any]:
    pairs = value.pairs if isinstance(value, RepeatedNames) else value.items()
    read = [
        (name, _read(kind.valueType, one, f"{where}[{json.dumps(name)}]", replaced=replaced)) for name, one in pairs
    ]
    entries: dict[str, Any] = {}
    for name, one in read:
        if name in entries and not replaced:
            message = f'field "{where}": the key {shown(name)} occurs twice'
            raise DecodeFault(message, kind=WRONG_TYPE, field=where)
        entries[name] = one
    return entries


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"

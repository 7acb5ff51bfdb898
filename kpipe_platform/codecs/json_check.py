"""The first field of a JSON object that does not fit its schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from kpipe_platform.codecs.base import MISSING_FIELD, NULL_FIELD, WRONG_TYPE, DecodeFault
from kpipe_platform.codecs.json_scalars import fits, out_of_range, takes, with_doubles
from kpipe_platform.codecs.json_text import RepeatedNames
from kpipe_platform.codecs.schema import ArrayType, DataType, Field, MapType, StructType

MAX_SHOWN_CHARS = 60
"""Longest piece of a record's data in a message: messages reach headers, logs of consumers and the UI."""


def first_fault(
    fields: Iterable[Field], value: dict[str, Any], path: str = "", *, replaced: bool = False
) -> DecodeFault | None:
    """The first field, in the schema's order, whose value does not fit.

    Args:
        fields: The schema.
        value: The object, as `read_json` gives it.
        path: Path of the object within the record; empty for the record itself.
        replaced: Whether the object is one that a later value of the same name replaces. Spark refuses the record
            where it cannot read it, and nobody looks at it further.

    Returns:
        The fault, or None. Names that are not in the schema are not looked at.
    """
    for field in fields:
        where = f"{path}.{field.name}" if path else field.name
        if field.name not in value:
            if field.required and not replaced:
                return DecodeFault(f'field "{where}" is required but missing', kind=MISSING_FIELD, field=where)
            continue
        # Spark converts every value of a repeated name, keeps the last, and refuses the record for any.
        *earlier, last = (
            [one for name, one in value.pairs if name == field.name]
            if isinstance(value, RepeatedNames)
            else [value[field.name]]
        )
        for one in earlier:
            if (found := _value_fault(field.type, one, where, replaced=True)) is not None:
                return found
        if (found := _value_fault(field.type, last, where, replaced=replaced)) is not None:
            return found
        if field.required and last is None and not replaced:
            return DecodeFault(f'field "{where}" is required but null', kind=NULL_FIELD, field=where)
    return None


def project(fields: Iterable[Field], value: dict[str, Any]) -> dict[str, Any]:
    """The object with the fields of the schema only, in its order, None where one is absent.

    Numbers with a fraction or an exponent are `Decimal` in DECIMAL fields, and float in others, as in Spark.
    """
    return {field.name: _project(field.type, value.get(field.name)) for field in fields}


def shown(value: Any) -> str:
    """A JSON value for messages, with the name of its kind: ``string "abc"``; cut to `MAX_SHOWN_CHARS`."""
    kind = _kind(value)
    if kind == "null":
        return kind
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=float)
    return f"{kind} {text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + '...'}"


def _value_fault(kind: DataType, value: Any, where: str, *, replaced: bool) -> DecodeFault | None:
    if value is None:
        return None
    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            return _wrong(kind, value, where)
        return first_fault(kind.fields, value, where, replaced=replaced)
    if isinstance(kind, ArrayType):
        if not isinstance(value, list):
            return _wrong(kind, value, where)
        found = (_value_fault(kind.element, one, f"{where}[{i}]", replaced=replaced) for i, one in enumerate(value))
        return next((fault for fault in found if fault is not None), None)
    if isinstance(kind, MapType):
        if not isinstance(value, dict):
            return _wrong(kind, value, where)
        pairs = value.pairs if isinstance(value, RepeatedNames) else list(value.items())
        found = (
            _value_fault(kind.value, one, f"{where}[{json.dumps(name)}]", replaced=replaced) for name, one in pairs
        )
        return next((fault for fault in found if fault is not None), None) or _repeated_key(pairs, where, replaced)
    taken = takes(kind, value)
    if taken and (replaced or fits(kind, value)):
        return None
    note = ", which is out of range" if out_of_range(kind, value) else ", which does not fit" if taken else ""
    return _wrong(kind, value, where, note=note)


def _repeated_key(pairs: list[tuple[str, Any]], where: str, replaced: bool) -> DecodeFault | None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen and not replaced:
            message = f'field "{where}": the key {shown(name)} is there twice'
            return DecodeFault(message, kind=WRONG_TYPE, field=where)
        seen.add(name)
    return None


def _wrong(kind: DataType, value: Any, where: str, note: str = "") -> DecodeFault:
    expected = str(kind)
    if len(expected) > MAX_SHOWN_CHARS:
        expected = expected[: MAX_SHOWN_CHARS - 3] + "..."
    message = f'field "{where}": expected {expected}, found {shown(value)}{note}'
    return DecodeFault(message, kind=WRONG_TYPE, field=where)


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


def _project(kind: DataType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, StructType):
        return project(kind.fields, value)
    if isinstance(kind, ArrayType):
        return [_project(kind.element, one) for one in value]
    if isinstance(kind, MapType):
        return {name: _project(kind.value, one) for name, one in value.items()}
    return value if kind.name == "decimal" else with_doubles(value)

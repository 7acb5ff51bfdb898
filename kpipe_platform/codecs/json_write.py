"""Python values to compact JSON text."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from kpipe_platform.codecs.base import NOT_ENCODABLE, EncodeFault

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def write_json(value: Any, *, include_nulls: bool) -> str:
    """Write a value as compact JSON, objects in the order of their names.

    Args:
        value: A dict, a dataclass, an object with ``model_dump()`` (pydantic), ``asDict()`` (a Spark Row) or
            ``_asdict()`` (a named tuple), a list, or a scalar. Dates and times become ISO 8601 text, a
            Decimal becomes a number with all its digits, bytes become base64, an Enum its value, NaN and
            infinities the texts that Spark writes and reads.
        include_nulls: False drops the names of objects whose value is null. Nulls in lists always stay.

    Returns:
        The text.

    Raises:
        EncodeFault: A value has no JSON form.
    """
    parts: list[str] = []
    _write(value, parts.append, include_nulls, "")
    return "".join(parts)


def _write(value: Any, put: Any, nulls: bool, path: str) -> None:
    if isinstance(value, str):
        put(_text(value))
    elif value is None:
        put("null")
    elif isinstance(value, bool):
        put("true" if value else "false")
    elif isinstance(value, int):
        put(int.__repr__(value))
    elif isinstance(value, float):
        put(_float_text(value))
    elif isinstance(value, Mapping):
        _write_object(value, put, nulls, path)
    else:
        fields = _fields(value)
        if fields is not None:
            _write_object(fields, put, nulls, path)
        elif isinstance(value, list | tuple | set | frozenset):
            put("[")
            for i, one in enumerate(value):
                if i:
                    put(",")
                _write(one, put, nulls, f"{path}[{i}]")
            put("]")
        else:
            put(_scalar_text(value, nulls, path))


def _write_object(value: Mapping[Any, Any], put: Any, nulls: bool, path: str) -> None:
    separator = "{"
    for name, one in value.items():
        if one is None and not nulls:
            continue
        if not isinstance(name, str):
            where = path or "the value"
            message = f"the name {name!r} in {where} is {type(name).__name__}; names in JSON are text"
            raise EncodeFault(message, kind=NOT_ENCODABLE, field=path or None)
        put(f"{separator}{_text(name)}:")
        _write(one, put, nulls, f"{path}.{name}" if path else name)
        separator = ","
    put("{}" if separator == "{" else "}")


def _text(value: str) -> str:
    # str() of a member of an enumeration of texts is its name.
    return _ENCODER.encode(value.value if isinstance(value, Enum) else str(value))


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The fields of an object that stands for a record, or None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for method in ("model_dump", "asDict", "_asdict"):
        found = getattr(value, method, None)
        if callable(found) and not isinstance(value, type):
            fields = found()
            if isinstance(fields, Mapping):
                return fields
    return None


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    if math.isnan(value):
        return '"NaN"'
    return '"Infinity"' if value > 0 else '"-Infinity"'


def _scalar_text(value: Any, nulls: bool, path: str) -> str:
    if isinstance(value, Decimal):
        # "f" writes 1E+3 as 1000; very large exponents stay as they are, because they would fill memory.
        if value.is_finite():
            return format(value, "f") if abs(value.adjusted()) <= 100 else str(value)
    elif isinstance(value, dt.datetime | dt.date | dt.time):
        # pandas' NaT is a datetime that does not equal itself.
        return f'"{value.isoformat()}"' if value == value else "null"
    elif isinstance(value, bytes | bytearray | memoryview):
        return f'"{base64.b64encode(value).decode("ascii")}"'
    elif isinstance(value, UUID):
        return f'"{value}"'
    elif isinstance(value, Enum):
        return write_json(value.value, include_nulls=nulls)
    elif hasattr(value, "tolist"):
        return write_json(value.tolist(), include_nulls=nulls)  # numpy scalars and arrays
    message = f"{path or 'the value'} is {type(value).__name__} ({value!s:.60}), which JSON cannot hold"
    raise EncodeFault(message, kind=NOT_ENCODABLE, field=path or None)

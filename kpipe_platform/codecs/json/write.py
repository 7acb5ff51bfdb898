"""Write Python values as compact JSON text, in the format of Spark's ``to_json``.

So the bytes of a value do not depend on the types that a stage takes and returns. Source: Spark 4.2
``JacksonGenerator``, Java's ``Double.toString`` and ``BigDecimal.toString``; compared with Spark itself in the tests.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pyspark.sql import types as T

from kpipe_platform.codecs.faults import NOT_ENCODABLE, EncodeFault
from kpipe_platform.codecs.types import EpochType, field_path

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_ENCODER = json.JSONEncoder(ensure_ascii=False)
# Matches every escape, so that an escaped backslash is not mistaken for the start of another escape.
_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def write_json(value: Any, *, include_nulls: bool, kind: T.DataType | None = None) -> str:
    """Write a value as compact JSON. Objects keep the order of their names.

    Args:
        value: A dict, a dataclass, an object with ``model_dump()`` (pydantic), ``asDict()`` (a Spark Row) or
            ``_asdict()`` (a named tuple), a list, or a scalar. Dates and times become ISO 8601 text, a datetime with
            six digits after the second. A Decimal becomes a number with all its digits, bytes become base64, an Enum
            becomes its value, and NaN and infinities become the texts that Spark writes and reads.
        include_nulls: False omits the names of objects whose value is null. Nulls in lists and maps always stay.
        kind: The declared type of the value. Determines which objects are maps, and which times are integers of
            milliseconds or microseconds. None means that there are none.

    Returns:
        The text.

    Raises:
        EncodeFault: A value has no JSON form.
    """
    parts: list[str] = []
    _write(value, parts.append, include_nulls, "", kind)
    return "".join(parts)


def _write(value: Any, put: Any, nulls: bool, path: str, kind: T.DataType | None) -> None:
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
        _write_object(value, put, nulls, path, kind)
    elif isinstance(value, dt.datetime) and isinstance(kind, EpochType):
        put("null" if value != value else str(_since_1970(value, kind.per_second)))
    else:
        fields = _fields(value)
        if fields is not None:
            _write_object(fields, put, nulls, path, kind)
        elif isinstance(value, list | tuple | set | frozenset):
            put("[")
            element = kind.elementType if isinstance(kind, T.ArrayType) else None
            for i, one in enumerate(value):
                if i:
                    put(",")
                _write(one, put, nulls, f"{path}[{i}]", element)
            put("]")
        else:
            put(_scalar_text(value, nulls, path))


def _write_object(value: Mapping[Any, Any], put: Any, nulls: bool, path: str, kind: T.DataType | None) -> None:
    separator = "{"
    entry = kind.valueType if isinstance(kind, T.MapType) else None
    fields = {field.name: field.dataType for field in kind} if isinstance(kind, T.StructType) else {}
    for name, one in value.items():
        if one is None and not nulls and entry is None:
            continue
        if not isinstance(name, str):
            where = path or "the value"
            message = f"the name {name!r} in {where} is {type(name).__name__}; names in JSON are strings"
            raise EncodeFault(message, kind=NOT_ENCODABLE, field=path or None)
        put(f"{separator}{_text(name)}:")
        _write(one, put, nulls, field_path(path, name), entry or fields.get(name))
        separator = ","
    put("{}" if separator == "{" else "}")


def _text(value: str) -> str:
    # str() of a member of a string Enum is its name, not its value.
    text = _ENCODER.encode(value.value if isinstance(value, Enum) else str(value))
    return _ESCAPE.sub(_upper_digits, text) if "\\u00" in text else text


def _upper_digits(match: re.Match[str]) -> str:
    escape = match.group()
    return f"\\u{escape[2:].upper()}" if escape[1] == "u" else escape


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of an object that represents a record, or None for any other object."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for method in ("model_dump", "asDict", "_asdict"):
        to_dict = getattr(value, method, None)
        if callable(to_dict) and not isinstance(value, type):
            fields = to_dict()
            if isinstance(fields, Mapping):
                return fields
    return None


def plain_value(value: Any) -> Any:
    """Replace objects that `write_json` writes as dicts, lists or scalars (dataclasses, Enums) with plain values."""
    if isinstance(value, Enum):
        return plain_value(value.value)
    if value is None or isinstance(value, str | bool | int | float | bytes | Decimal | dt.date):
        return value
    if isinstance(value, UUID | dt.time):
        return value.isoformat() if isinstance(value, dt.time) else str(value)
    fields = value if isinstance(value, Mapping) else _fields(value)
    if fields is not None:
        return {name: plain_value(one) for name, one in fields.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(one) for one in value]
    return plain_value(value.tolist()) if hasattr(value, "tolist") else value


def _float_text(value: float) -> str:
    if math.isfinite(value):
        text = float.__repr__(value)
        if value == 0 or 1e-3 <= abs(value) < 1e7:
            return text
        # Java writes 12345678.0 as 1.2345678E7, and always at least two digits: 4.9E-324, not 5E-324.
        return _scientific(text if "." in text else f"{value:.1e}")
    if math.isnan(value):
        return '"NaN"'
    return '"Infinity"' if value > 0 else '"-Infinity"'


def _scientific(text: str) -> str:
    value = Decimal(text)
    sign, digits, _ = value.as_tuple()
    shown = "".join(map(str, digits)).rstrip("0").ljust(2, "0")
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:]}E{value.adjusted()}"


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _moment(value: dt.datetime) -> str:
    text = value.isoformat(timespec="microseconds")
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def _since_1970(value: dt.datetime, units: int) -> int:
    """Return the time as whole units since 1970, ``units`` per second. A time without a zone is UTC."""
    passed = (value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)) - _EPOCH
    return passed // (dt.timedelta(seconds=1) / units)


def _scalar_text(value: Any, nulls: bool, path: str) -> str:
    if isinstance(value, Decimal):
        # "f" writes 1E+3 as 1000. Very large exponents stay unchanged, because their digits would fill the memory. A
        # Decimal from Spark has no positive exponent, and has the same text in Java and Python.
        if value.is_finite():
            return format(value, "f") if _exponent(value) > 0 and value.adjusted() <= 100 else str(value)
    elif isinstance(value, dt.datetime):
        # pandas' NaT is a datetime that does not equal itself.
        return f'"{_moment(value)}"' if value == value else "null"
    elif isinstance(value, dt.date | dt.time):
        return f'"{value.isoformat()}"'
    elif isinstance(value, bytes | bytearray | memoryview):
        return f'"{base64.b64encode(value).decode("ascii")}"'
    elif isinstance(value, UUID):
        return f'"{value}"'
    elif isinstance(value, Enum):
        return write_json(value.value, include_nulls=nulls)
    elif hasattr(value, "tolist"):
        return write_json(value.tolist(), include_nulls=nulls)  # numpy scalars and arrays
    message = f"{path or 'the value'} is {type(value).__name__} ({value!s:.60}), which has no JSON form"
    raise EncodeFault(message, kind=NOT_ENCODABLE, field=path or None)

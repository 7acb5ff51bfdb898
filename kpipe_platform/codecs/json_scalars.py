"""Which JSON values Spark takes for which scalar type.

Each rule follows what Spark's ``JacksonParser`` does in ANSI mode without format options, so that a
diagnosis never blames a value that Spark reads. Values come as `kpipe_platform.codecs.json_text` reads
them: True, False, int, float, Decimal, str, list, dict.

Source: Spark 4.2 ``JacksonParser.makeConverter``; compared with Spark itself in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from kpipe_platform.codecs.datetime_text import is_date, is_timestamp, is_timestamp_ntz
from kpipe_platform.codecs.schema import MAX_PRECISION, ScalarType

# A TINYINT takes numbers up to 255: Jackson reads an unsigned byte, and 255 becomes -1.
_INTEGERS = {
    "tinyint": (-(2**7), 2**8 - 1),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
_FLOAT_TEXTS = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"})
_DECIMAL_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?")
# Groups of four with their padding; white space is skipped only between groups.
_BASE64 = re.compile(r"(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\x00-\x20]*")
_ROUNDING = Context(prec=2 * MAX_PRECISION, rounding=ROUND_HALF_UP)


def takes(kind: ScalarType, value: Any) -> bool:
    """Whether Spark reads this JSON value, which is not null, as this type."""
    if kind.name in _INTEGERS:
        return out_of_range(kind, value) is False
    if kind.name == "decimal":
        precision, scale = kind.arguments
        return _fits_decimal(value, precision, scale)
    return _RULES[kind.name](value)


def out_of_range(kind: ScalarType, value: Any) -> bool | None:
    """Whether an integer is too large or too small for an integer type; None for other values and types."""
    limits = _INTEGERS.get(kind.name)
    if limits is None or isinstance(value, bool) or not isinstance(value, int):
        return None
    return not limits[0] <= value <= limits[1]


def _anything(value: Any) -> bool:
    # Numbers, objects and arrays become their JSON text.
    return True


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _floating(value: Any) -> bool:
    if isinstance(value, str):
        return value in _FLOAT_TEXTS
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _fits_decimal(value: Any, precision: int, scale: int) -> bool:
    if isinstance(value, str):
        digits = value.replace(",", "")
        if _DECIMAL_TEXT.fullmatch(digits) is None:
            return False
        number = Decimal(digits)
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    else:
        # The shortest text of a float has the digits that were in the document, up to 17 of them.
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        return False
    if number.is_zero() or number.adjusted() < -scale - 1:
        return True
    if number.adjusted() + 1 + scale > precision:
        return False
    # Rounding to the scale may still add a digit: 999.995 becomes 1000.00.
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=_ROUNDING)
    return rounded.is_zero() or rounded.adjusted() + 1 + scale <= precision


def _binary(value: Any) -> bool:
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None


def _date(value: Any) -> bool:
    return isinstance(value, str) and is_date(value)


def _timestamp(value: Any) -> bool:
    if isinstance(value, str):
        return is_timestamp(value)
    # Seconds since the epoch.
    limits = _INTEGERS["bigint"]
    return isinstance(value, int) and not isinstance(value, bool) and limits[0] <= value <= limits[1]


def _timestamp_ntz(value: Any) -> bool:
    return isinstance(value, str) and is_timestamp_ntz(value)


_RULES: dict[str, Callable[[Any], bool]] = {
    "boolean": _boolean,
    "float": _floating,
    "double": _floating,
    "string": _anything,
    "varchar": _anything,
    "char": _anything,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}

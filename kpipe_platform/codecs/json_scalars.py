"""Which JSON values Spark takes for which scalar type, and which of them the type holds.

``takes`` follows what Spark's ``JacksonParser`` does in ANSI mode without format options, so that a diagnosis
never blames a value that Spark reads. Some of what it reads it changes without a word: ``fits`` says which values
stay what they are, and `kpipe_platform.spark.columns` refuses the others. Values come as
`kpipe_platform.codecs.json_text` reads them: True, False, int, float, Decimal, str, list, dict.

Source: Spark 4.2 ``JacksonParser.makeConverter``; compared with Spark itself in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from kpipe_platform.codecs.datetime_text import is_date, is_timestamp, is_timestamp_ntz
from kpipe_platform.codecs.json_text import HugeNumber, RoughNumber
from kpipe_platform.codecs.json_write import write_json
from kpipe_platform.codecs.schema import EPOCH_UNITS, MAX_PRECISION, ScalarType

# A TINYINT takes numbers up to 255: Jackson reads an unsigned byte, and 255 becomes -1.
_INTEGERS = {
    "tinyint": (-(2**7), 2**8 - 1),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    **dict.fromkeys(EPOCH_UNITS, (-(2**63), 2**63 - 1)),
}
MAX_EPOCH_SECONDS = (2**63 - 1) // 1_000_000
"""Most seconds before or after 1970 that a TIMESTAMP holds: 64 bits of microseconds."""
_HELD = {
    **_INTEGERS,
    "tinyint": (-(2**7), 2**7 - 1),
    "timestamp": (-MAX_EPOCH_SECONDS, MAX_EPOCH_SECONDS),
    "timestamp_millis": (-MAX_EPOCH_SECONDS * 1_000, MAX_EPOCH_SECONDS * 1_000),
}
_FLOAT_TEXTS = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"})
# The digits of any script, as in Java, but none beyond U+FFFF.
_DECIMAL_TEXT = re.compile(r"(?!.*[\U00010000-\U0010ffff])[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
# Groups of four with their padding; white space is skipped only between groups.
_BASE64 = re.compile(r"(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\x00-\x20]*")
_ALL_DIGITS = Context(prec=10_000)
_ROUNDING = Context(prec=2 * MAX_PRECISION, rounding=ROUND_HALF_UP)


def takes(kind: ScalarType, value: Any) -> bool:
    """Whether Spark reads this JSON value, which is not null, as this type."""
    if kind.name in _INTEGERS:
        return _is_outside(_INTEGERS, kind, value) is False
    if kind.name == "decimal":
        precision, scale = kind.arguments
        return _fits_decimal(value, precision, scale)
    return _RULES[kind.name](value)


def fits(kind: ScalarType, value: Any) -> bool:
    """Whether a value that Spark reads as this type is not changed by it."""
    if kind.name == "decimal":
        seen = Decimal(repr(float(value))) if isinstance(value, RoughNumber) else _decimal(value)
        digits = seen.normalize(_ALL_DIGITS).as_tuple()
        return isinstance(digits.exponent, int) and -digits.exponent <= kind.arguments[1]
    if kind.name in ("varchar", "char"):
        return len(value if isinstance(value, str) else _spark_text(value)) <= kind.arguments[0]
    return not out_of_range(kind, value)


def held(name: str) -> tuple[int, int]:
    """The least and the greatest number that a type holds which takes whole numbers."""
    return _HELD[name]


def _spark_text(value: Any) -> str:
    return write_json(with_doubles(value), include_nulls=True)


def with_doubles(value: Any) -> Any:
    """The value as Spark makes text of it: numbers with a fraction or an exponent are doubles to it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [with_doubles(one) for one in value]
    return {name: with_doubles(one) for name, one in value.items()} if isinstance(value, dict) else value


def out_of_range(kind: ScalarType, value: Any) -> bool | None:
    """Whether a whole number is too large or too small for a type that takes some; None for others and other types."""
    return _is_outside(_HELD, kind, value)


def _is_outside(ranges: dict[str, tuple[int, int]], kind: ScalarType, value: Any) -> bool | None:
    limits = ranges.get(kind.name)
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


def _decimal(value: Any) -> Decimal:
    """A value of a DECIMAL field; NaN for what is no number."""
    if isinstance(value, str):
        digits = value.replace(",", "")
        return Decimal("NaN") if _DECIMAL_TEXT.fullmatch(digits) is None else Decimal(digits)
    # Of a power of ten like that Java computes every digit: for minutes, and in gigabytes. A float is NaN, an infinity,
    # or a number whose exponent is longer still.
    if isinstance(value, HugeNumber | bool) or not isinstance(value, int | Decimal):
        return Decimal("NaN")
    return Decimal(value)


def _fits_decimal(value: Any, precision: int, scale: int) -> bool:
    number = _decimal(value)
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

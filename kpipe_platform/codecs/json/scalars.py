"""Rules for JSON values and scalar types: which values Spark reads, and which of them the type can hold.

The rules follow Spark's ``JacksonParser`` in ANSI mode without format options, so that a diagnosis never blames a value
that Spark reads. Spark silently changes some of the values that it reads; `kpipe_platform.spark.columns` refuses those.
Values have the types that `kpipe_platform.codecs.json.syntax` returns: bool, int, float, Decimal, str, list, dict.

Source: Spark 4.2 ``JacksonParser.makeConverter``; compared with Spark itself in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from pyspark.sql import types as T

from kpipe_platform.codecs.ddl import MAX_PRECISION
from kpipe_platform.codecs.json.syntax import HugeNumber, RoughNumber
from kpipe_platform.codecs.json.times import is_date, is_timestamp, is_timestamp_ntz
from kpipe_platform.codecs.json.write import write_json
from kpipe_platform.codecs.types import TimestampMicrosType, TimestampMillisType

MAX_EPOCH_SECONDS = (2**63 - 1) // 1_000_000
"""Maximum number of seconds before or after 1970 in a TIMESTAMP, which holds 64 bits of microseconds."""

_LONG = (-(2**63), 2**63 - 1)
_HELD: dict[type[T.DataType], tuple[int, int]] = {
    T.ByteType: (-(2**7), 2**7 - 1),
    T.ShortType: (-(2**15), 2**15 - 1),
    T.IntegerType: (-(2**31), 2**31 - 1),
    T.LongType: _LONG,
    T.TimestampType: (-MAX_EPOCH_SECONDS, MAX_EPOCH_SECONDS),
    TimestampMillisType: (-MAX_EPOCH_SECONDS * 1_000, MAX_EPOCH_SECONDS * 1_000),
    TimestampMicrosType: _LONG,
}
# For a TINYINT, Spark accepts numbers up to 255: Jackson reads an unsigned byte, and 255 becomes -1.
_READ: dict[type[T.DataType], tuple[int, int]] = {
    **_HELD,
    T.ByteType: (-(2**7), 2**8 - 1),
    T.TimestampType: _LONG,
    TimestampMillisType: _LONG,
}
_FLOAT_TEXTS = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"})
# Digits of any script, as in Java, but none above U+FFFF.
_DECIMAL_TEXT = re.compile(r"(?!.*[\U00010000-\U0010ffff])[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
# Groups of four with their padding; white space is skipped only between groups.
_BASE64 = re.compile(r"(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\x00-\x20]*")
_ALL_DIGITS = Context(prec=10_000)
_ROUNDING = Context(prec=2 * MAX_PRECISION, rounding=ROUND_HALF_UP)


def mismatch(kind: T.DataType, value: Any, *, replaced: bool = False) -> str | None:
    """Check whether a JSON value that is not null fits a type.

    Args:
        kind: The type. If it is an array, map or struct, the value does not match it.
        value: The value.
        replaced: Whether a later value of the same name replaces it. Then Spark only has to be able to read it.

    Returns:
        None if the value fits. Otherwise a text to add to the error message, which may be empty.
    """
    is_read = _is_read(kind, value)
    if is_read and (replaced or not _is_changed(kind, value)):
        return None
    if _is_whole(value) and type(kind) in _HELD and not _is_in(_HELD[type(kind)], value):
        return ", which is out of range"
    return ", which does not fit" if is_read else ""


def held(kind: T.DataType) -> tuple[int, int]:
    """Return the smallest and the largest integer that the type holds."""
    return _HELD[type(kind)]


def with_doubles(value: Any) -> Any:
    """Return the value as Spark converts it to text: numbers with a fraction or an exponent become doubles."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [with_doubles(one) for one in value]
    return {name: with_doubles(one) for name, one in value.items()} if isinstance(value, dict) else value


def _is_read(kind: T.DataType, value: Any) -> bool:
    if _is_whole(value) and type(kind) in _READ:
        return _is_in(_READ[type(kind)], value)
    if isinstance(kind, T.DecimalType):
        return _fits_decimal(value, kind.precision, kind.scale)
    if isinstance(kind, T.BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, T.FloatType | T.DoubleType) and not isinstance(value, str | bool):
        return isinstance(value, int | float | Decimal)
    if isinstance(kind, T.StringType | T.VarcharType | T.CharType):
        # Numbers, objects and arrays become their JSON text.
        return True
    rule = _TEXTS.get(type(kind))
    return rule is not None and isinstance(value, str) and rule(value)


def _is_changed(kind: T.DataType, value: Any) -> bool:
    """Return whether Spark changes a value that it reads as this type."""
    if isinstance(kind, T.DecimalType):
        seen = Decimal(repr(float(value))) if isinstance(value, RoughNumber) else _decimal(value)
        digits = seen.normalize(_ALL_DIGITS).as_tuple()
        return not isinstance(digits.exponent, int) or -digits.exponent > kind.scale
    if isinstance(kind, T.VarcharType | T.CharType):
        text = value if isinstance(value, str) else write_json(with_doubles(value), include_nulls=True)
        return len(text) > kind.length
    return _is_whole(value) and type(kind) in _HELD and not _is_in(_HELD[type(kind)], value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_in(limits: tuple[int, int], value: int) -> bool:
    return limits[0] <= value <= limits[1]


def _decimal(value: Any) -> Decimal:
    """Return the value of a DECIMAL field. NaN if it is not a number."""
    if isinstance(value, str):
        digits = value.replace(",", "")
        return Decimal("NaN") if _DECIMAL_TEXT.fullmatch(digits) is None else Decimal(digits)
    # Java would compute every digit of a huge power of ten, which takes minutes and gigabytes. A float is NaN, an
    # infinity, or a number with an even longer exponent.
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


_TEXTS: dict[type[T.DataType], Callable[[str], bool]] = {
    T.FloatType: _FLOAT_TEXTS.__contains__,
    T.DoubleType: _FLOAT_TEXTS.__contains__,
    T.BinaryType: lambda text: _BASE64.fullmatch(text) is not None,
    T.DateType: is_date,
    T.TimestampType: is_timestamp,
    T.TimestampNTZType: is_timestamp_ntz,
}

"""Values of scalar types: what fastavro reads and writes without logical types, and what Spark has."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from kpipe_platform.codecs.avro.schema import Node
from kpipe_platform.codecs.faults import NOT_ENCODABLE, WRONG_TYPE, DecodeFault, EncodeFault

_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  # without a zone, as the numbers are
MIN_DAY, MAX_DAY = dt.date.min.toordinal() - _EPOCH_DAY, dt.date.max.toordinal() - _EPOCH_DAY
"""The first and last day that Python can represent, since 1970: years 1 to 9999."""
_DAY_MICROS = 86_400_000_000
MIN_MICROS, MAX_MICROS = MIN_DAY * _DAY_MICROS, (MAX_DAY + 1) * _DAY_MICROS - 1
"""The first and last microsecond that Python can represent, since 1970: years 1 to 9999."""
_BITS = {"int": 31, "long": 63}


def single_float(number: float) -> float:
    """Round a number to 32 bits."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return rounded


def from_raw(node: Node, logical: str | None, path: str) -> Callable[[Any], Any]:
    """Return a function that converts a raw value to Spark's. It raises `DecodeFault` for a value out of range."""

    def out_of_range(raw: Any) -> DecodeFault:
        where = path or "the value"
        return DecodeFault(f"{where}: {raw!r:.60} is not a {logical or node.type}", kind=WRONG_TYPE, field=path or None)

    if logical == "decimal":
        precision, scale = node.precision, node.scale

        def decimal(raw: bytes) -> Decimal:
            number = int.from_bytes(raw, "big", signed=True)
            if not raw or len(str(abs(number))) > precision:
                raise out_of_range(raw)
            return Decimal((0 if number >= 0 else 1, tuple(map(int, str(abs(number)))), -scale))

        return decimal
    if logical == "date":

        def date(raw: int) -> dt.date:
            if not MIN_DAY <= raw <= MAX_DAY:
                raise out_of_range(raw)
            return dt.date.fromordinal(_EPOCH_DAY + raw)

        return date
    if logical is not None and "timestamp" in logical and not logical.endswith("nanos"):
        per_unit = 1000 if logical.endswith("millis") else 1
        zone = None if logical.startswith("local") else dt.timezone.utc

        def timestamp(raw: int) -> dt.datetime:
            if not MIN_MICROS <= raw * per_unit <= MAX_MICROS:
                raise out_of_range(raw)
            return (_EPOCH + dt.timedelta(microseconds=raw * per_unit)).replace(tzinfo=zone)

        return timestamp
    if node.type in _BITS:
        limit = 2 ** _BITS[node.type]

        def whole(raw: int) -> int:
            if not -limit <= raw < limit:
                raise out_of_range(raw)
            return int(raw)

        return whole
    return float if node.type in ("float", "double") else lambda raw: raw


def to_raw(node: Node, value: Any, path: str) -> Any:
    """Convert a value to what fastavro writes without logical types.

    Raises:
        EncodeFault: The value does not fit the type.
    """
    raw = _to_raw(node, value)
    if raw is None:
        label = node.logical or node.type
        if label == "decimal":
            label = f"decimal({node.precision},{node.scale})"
        msg = f"{path or 'the value'}: {type(value).__name__} {value!r:.60} does not fit {label}"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=path or None)
    return raw


def _to_raw(node: Node, value: Any) -> Any:
    """Convert a value that is not null; None if it does not fit."""
    if node.logical == "decimal":
        return _decimal_bytes(node, value)
    if node.logical == "date" and isinstance(value, dt.date):
        return None if isinstance(value, dt.datetime) else value.toordinal() - _EPOCH_DAY
    if node.logical is not None and "timestamp" in node.logical and not node.logical.endswith("nanos"):
        return _since_1970(node.logical, value) if isinstance(value, dt.datetime) else None
    if node.type in _BITS:
        return value if _is_whole(value) and -(2 ** _BITS[node.type]) <= value < 2 ** _BITS[node.type] else None
    if node.type in ("float", "double"):
        return float(value) if isinstance(value, float) or _is_whole(value) else None
    if node.type in ("bytes", "fixed"):
        data = bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None
        return None if data is None or len(data) != node.attributes.get("size", len(data)) else data
    if node.type == "enum":
        return value if value in node.attributes["symbols"] else None
    if node.type == "string":
        return value if isinstance(value, str) and _is_text(value) else None
    return value if isinstance(value, bool) else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _since_1970(logical: str, value: dt.datetime) -> int | None:
    if logical.startswith("local"):
        if value.tzinfo is not None:
            return None
    elif value.tzinfo is not None:
        value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    micros = (value - _EPOCH) // dt.timedelta(microseconds=1)
    return micros // 1000 if logical.endswith("millis") else micros


def _decimal_bytes(node: Node, value: Any) -> bytes | None:
    if not isinstance(value, Decimal) and not _is_whole(value):
        return None
    # A huge exponent would make a number of as many digits.
    if not (given := Decimal(value)).is_finite() or given.adjusted() > node.precision:
        return None
    with localcontext() as context:
        context.prec = 100
        try:
            scaled = given.scaleb(node.scale)
            number = int(scaled)
        except (InvalidOperation, ValueError, OverflowError):
            return None
        if number != scaled or len(str(abs(number))) > node.precision:
            return None
    size = node.attributes.get("size") or (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)

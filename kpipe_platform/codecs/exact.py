"""Lossless conversion of Python values and Arrow arrays to Arrow types. Values that would change are refused.

Arrow's own conversion is not lossless: 1.5 becomes 1 in an integer column, a number of milliseconds becomes a timestamp
in microseconds, a datetime loses its time in a date column, and undeclared struct fields are dropped.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Exceptions that Arrow raises for a value that a type cannot represent."""

# Half a step above the largest FLOAT. Doubles from here on round to infinity.
_FLOAT_END = (2 - 2**-24) * 2.0**127
_SHOWN_CHARACTERS = 60


class MisfitError(ValueError):
    """A type cannot represent a value without changing it."""


def exact_array(
    values: Any, kind: pa.DataType, path: str, *, from_pandas: bool = False, zoned: bool = False
) -> pa.Array:
    """Convert Python values to an array.

    Args:
        values: The values, as a sequence or a pandas.Series.
        kind: The type of the array.
        path: Name of the values in error messages.
        from_pandas: Whether NaN is null if the type has no NaN.
        zoned: Whether timestamps without a zone are refused if the type has a zone. Otherwise they are in UTC.

    Raises:
        MisfitError: The type cannot represent a value without changing it.
    """
    try:
        array = pa.array(values, type=kind, from_pandas=from_pandas)
    except MISFITS as error:
        msg = f"{path!r} with a value that is not a valid {kind}: {error}"
        raise MisfitError(msg) from error
    check_exact(values, kind, path, from_pandas=from_pandas, zoned=zoned)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def check_exact(
    values: Iterable[Any], kind: pa.DataType, path: str, *, from_pandas: bool = False, zoned: bool = False
) -> None:
    """Refuse values that Arrow would change when it converts them to a type.

    Values that Arrow itself refuses are not checked. Arguments and exceptions are those of ``exact_array``.
    """
    present = [value for value in values if value is not None]
    # Check the Python types first: most columns have only one or two.
    if from_pandas and not all(_is_held(kind_of_value, kind) for kind_of_value in set(map(type, present))):
        present = [value for value in present if not _is_missing(value)]
    wrong = {kind_of_value for kind_of_value in set(map(type, present)) if not _is_held(kind_of_value, kind)}
    if wrong:
        raise _misfit(next(value for value in present if type(value) in wrong), kind, path)
    if pa.types.is_timestamp(kind):
        for value in present:
            has_zone = getattr(value, "tzinfo", None) is not None
            if has_zone if kind.tz is None else zoned and not has_zone and not _is_missing(value):
                raise _misfit(value, kind, path)
    elif pa.types.is_float32(kind):
        for value in present:
            if abs(value) >= _FLOAT_END and not math.isinf(value):
                raise _misfit(value, kind, path)
    elif pa.types.is_integer(kind):
        for value in present:
            if not isinstance(value, Integral) and value % 1 != 0 and not (from_pandas and _is_missing(value)):
                raise _misfit(value, kind, path)
    for inner, inner_kind, inside in _inside(present, kind, path):
        check_exact(inside, inner_kind, inner, from_pandas=from_pandas, zoned=zoned)


def _inside(present: list[Any], kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType, list[Any]]]:
    if pa.types.is_struct(kind):
        names = {kind.field(i).name for i in range(kind.num_fields)}
        for value in present:
            for name in value:
                if name not in names:
                    msg = f"{path!r} with a field {name!r}, which is not declared"
                    raise MisfitError(msg)
        for i in range(kind.num_fields):
            field = kind.field(i)
            yield f"{path}.{field.name}", field.type, [value.get(field.name) for value in present]
    elif pa.types.is_map(kind):
        pairs = [pair for value in present for pair in (value.items() if isinstance(value, Mapping) else value)]
        yield f"{path}[]", kind.key_type, [key for key, _ in pairs]
        yield f"{path}[]", kind.item_type, [item for _, item in pairs]
    elif _is_list(kind):
        yield f"{path}[]", kind.value_type, [each for value in present for each in value]


def _misfit(value: Any, kind: pa.DataType, path: str) -> MisfitError:
    text = repr(value)
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return MisfitError(f"{path!r} with the value {shown} ({type(value).__name__}), which is not a valid {kind}")


def _is_missing(value: Any) -> bool:
    """Whether a value is NaN, NaT or NA, which mean null in pandas."""
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, Real) and bool(value != value))


@lru_cache(maxsize=1024)
def _is_held(python_type: type, kind: pa.DataType) -> bool:
    """Whether an Arrow type can represent values of a Python type unchanged."""
    types = pa.types
    numpy = python_type.__name__ if python_type.__module__ == "numpy" else ""
    if issubclass(python_type, bool) or numpy in ("bool", "bool_"):
        return bool(types.is_boolean(kind))
    if types.is_boolean(kind):
        held: tuple[type, ...] = ()
    elif types.is_integer(kind) or types.is_floating(kind):
        held = (Real,)
    elif types.is_decimal(kind):
        held = (Decimal, Integral)
    elif _is_text(kind):
        held = (str,)
    elif _is_bytes(kind):
        held = (bytes, bytearray, memoryview)
    elif types.is_date(kind):
        return issubclass(python_type, dt.date) and not issubclass(python_type, dt.datetime)
    elif types.is_timestamp(kind):
        return issubclass(python_type, dt.datetime) or numpy == "datetime64"
    elif types.is_struct(kind):
        held = (Mapping,)
    elif types.is_map(kind):
        held = (Mapping, list, tuple)
    elif _is_list(kind):
        return issubclass(python_type, Iterable) and not issubclass(python_type, str | bytes | bytearray | Mapping)
    else:
        return True
    return issubclass(python_type, held)


def exact_cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Cast an array to another type without changing its values.

    Timestamps are truncated to microseconds, as in Spark. Timestamps without a zone are in UTC.

    Raises:
        MisfitError: The type cannot represent a value without changing it.
    """
    if array.type == kind:
        return array
    if not _is_like(array.type, kind):
        msg = f"{path!r} as {array.type}, but it is declared as {kind}"
        raise MisfitError(msg)
    try:
        made = array.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
        changed = _is_changed(array, made)
    except pa.ArrowException as error:
        msg = f"{path!r} as {array.type}, but it is declared as {kind}: {error}"
        raise MisfitError(msg) from None
    if changed:
        msg = f"{path!r} as {array.type}, but it is declared as {kind}: the conversion would change a value"
        raise MisfitError(msg)
    return made


def _is_like(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether two types are of the same family, such as numbers, strings or timestamps."""
    types = pa.types
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _is_like(given.value_type, kind)
    if types.is_struct(kind):
        if not types.is_struct(given):
            return False
        fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        inside = [given.field(i) for i in range(given.num_fields)]
        return all(field.name in fields and _is_like(field.type, fields[field.name]) for field in inside)
    if types.is_map(kind):
        if not types.is_map(given):
            return False
        return _is_like(given.key_type, kind.key_type) and _is_like(given.item_type, kind.item_type)
    if _is_list(kind):
        return _is_list(given) and _is_like(given.value_type, kind.value_type)
    if types.is_timestamp(kind):
        return types.is_timestamp(given) and (kind.tz is not None or given.tz is None)
    for is_of in (_is_number, _is_text, _is_bytes, types.is_date):
        if is_of(kind):
            return bool(is_of(given))
    return bool(given.id == kind.id)


def _is_changed(before: pa.Array, after: pa.Array) -> bool:
    """Whether a cast that Arrow considers safe has changed a value."""
    types, given, kind = pa.types, before.type, after.type
    if types.is_struct(kind) and types.is_struct(given):
        made = {kind.field(i).name: part for i, part in enumerate(after.flatten())}
        names = [given.field(i).name for i in range(given.num_fields)]
        return any(_is_changed(part, made[name]) for name, part in zip(names, before.flatten(), strict=True))
    if types.is_map(kind) and types.is_map(given):
        parts = zip(_entries(before), _entries(after), strict=True)
        return any(_is_changed(*pair) for pair in parts)
    if _is_list(kind) and _is_list(given):
        return _is_changed(before.flatten(), after.flatten())
    if types.is_floating(kind) and types.is_floating(given):
        return bool(pc.any(pc.and_not(pc.is_inf(after), pc.is_inf(before))).as_py())
    if {types.is_decimal(kind), types.is_decimal(given)} == {True, False} and _is_number(given):
        return not after.cast(given, safe=False).equals(before)
    return False


def _entries(array: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    # If the array is a slice, `keys` and `items` still have the entries of the whole array.
    first, end = (array.offsets[i].as_py() for i in (0, len(array)))
    return array.keys.slice(first, end - first), array.items.slice(first, end - first)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_plain or types.is_fixed_size_binary(kind)) and not types.is_decimal(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

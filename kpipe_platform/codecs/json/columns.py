"""JSON as Spark column expressions: text to a struct and back."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.base import any_of
from kpipe_platform.codecs.json.scalars import MAX_EPOCH_SECONDS, held
from kpipe_platform.codecs.json.syntax import BACKSLASHES, HUGE_NUMBER, MAX_DEPTH, SURROGATE, SURROGATE_PAIR
from kpipe_platform.codecs.types import EpochType, TimestampMillisType, json_type, map_fields, types_in

CORRUPT = "_kpipe_corrupt"
"""Field in which ``from_json`` stores a record that it cannot parse."""

# Name of the fields in which kpipe wraps a record's JSON. It is random, so that a record cannot contain text that
# closes the wrapper and passes for another record.
_FENCE = f"_k{secrets.token_hex(5)}"

# Keep all six fraction digits of a second, and the seconds of a zone offset (used before 1900). Spark's default
# patterns truncate both.
WRITTEN = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of ``to_json``."""


def parse_json(fields: T.StructType, data: Column) -> Column:
    """Parse bytes in one expression.

    A JSON record is wrapped as the first of two array elements, because ``from_json`` parses only the first object of a
    text and silently drops the rest. The second element proves that the record did not close the wrapping array.

    A record that has a DECIMAL with a huge exponent is not parsed: Java would compute a power of ten for it, which
    takes minutes and gigabytes.
    """
    value = _from_json(json_type(fields), data)
    decimals = _reduced(fields, (T.DecimalType,))
    if not decimals:
        return value
    text = data.cast("string")
    # Parse a first time, but only records whose text has digits that may be a huge exponent.
    numbers = _exactly(decimals, data)
    huge = F.when(text.rlike(_MAYBE_HUGE), any_of(_conditions(decimals, numbers, partial(_is_huge, text))))
    return F.when(~F.coalesce(huge, F.lit(False)), value)


def _from_json(fields: T.StructType, data: Column) -> Column:
    text = F.concat(F.lit(f'{{"{_FENCE}":['), data.cast("string"), F.lit(f',{{"{_FENCE}":true}}]}}'))
    element = T.StructType([*fields, T.StructField(_FENCE, T.BooleanType())])
    schema = T.StructType().add(_FENCE, T.ArrayType(element)).add(CORRUPT, T.StringType())
    # The wrapper adds two levels, an object and an array.
    depth = str(MAX_DEPTH + 2)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "maxNestingDepth": depth}
    return F.from_json(text, schema, options)


def json_value(fields: T.StructType, parsed: Column) -> Column:
    """The struct of the fields, of what ``parse_json`` returned."""
    return _with_moments(fields, _first(parsed), _moment)


def _first(parsed: Column) -> Column:
    return F.get(parsed[_FENCE], 0)


def _with_moments(kind: T.DataType, column: Column, change: Callable[[EpochType, Column], Column]) -> Column:
    """Apply ``change`` to each value of an EpochType in the column, at any depth."""
    if not any(isinstance(one, EpochType) for one in types_in(kind)):
        return column
    if isinstance(kind, T.StructType):
        fields = [_with_moments(field.dataType, column[field.name], change).alias(field.name) for field in kind]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(column, lambda e: _with_moments(element, e, change))
    if isinstance(kind, T.MapType):
        value = kind.valueType
        return F.transform_values(column, lambda _, e: _with_moments(value, e, change))
    return change(kind, column) if isinstance(kind, EpochType) else column


def _moment(kind: EpochType, number: Column) -> Column:
    """Convert milliseconds or microseconds since the epoch to a TIMESTAMP; null outside its range."""
    moment = F.timestamp_millis(number) if isinstance(kind, TimestampMillisType) else F.timestamp_micros(number)
    return F.when(number.between(*held(kind)), moment)


def _number(kind: EpochType, moment: Column) -> Column:
    return F.unix_millis(moment) if isinstance(kind, TimestampMillisType) else F.unix_micros(moment)


def is_bad_json(fields: T.StructType, data: Column, parsed: Column) -> Column:
    """Whether ``data`` does not decode. ``parsed`` is what ``parse_json`` returned for it."""
    text = data.cast("string")
    value = _first(parsed)
    conditions = [
        value.isNull(),
        parsed[CORRUPT].isNotNull(),
        F.get(parsed[_FENCE], 1)[_FENCE].isNull(),
        *_unfit(fields, value),
        _half_of_a_pair(text),
    ]
    exact = _reduced(fields, (T.DecimalType, *_SUSPECT))
    if exact:
        # Parse again without losing digits, but only records whose text may have too many digits.
        changed = any_of(_conditions(exact, _exactly(exact, data), _is_changed))
        conditions.append(F.when(text.rlike(_suspect(fields)), changed))
    return ~F.is_valid_utf8(text) | any_of([F.coalesce(c, F.lit(False)) for c in conditions])


def encode_json(fields: T.StructType, value: Column, output: T.DataType, *, include_nulls: bool) -> Column:
    """Encode a struct as JSON bytes.

    Args:
        fields: The declared fields; empty if none are.
        value: A struct column.
        output: Its type.
        include_nulls: Write null fields as ``null``.
    """
    kinds = {field.name: field.dataType for field in fields}
    if isinstance(output, T.StructType) and any(isinstance(one, EpochType) for one in types_in(fields)):
        value = F.struct(
            *[
                (_with_moments(kinds[name], value[name], _number) if name in kinds else value[name]).alias(name)
                for name in output.names
            ]
        )
    options = {**WRITTEN, "ignoreNullFields": "false" if include_nulls else "true"}
    return F.to_json(value, options).cast("binary")


def _half_of_a_pair(text: Column) -> Column:
    """A condition that is true if a lone surrogate is escaped, which Spark would replace by a question mark."""
    single = F.replace(text, F.lit(BACKSLASHES), F.lit("  "))
    half = F.regexp_replace(single, SURROGATE_PAIR, " ").rlike(SURROGATE)
    # Most texts have no escapes and are searched only once.
    return F.when(text.contains("\\u"), F.when(text.contains("\\ud") | text.contains("\\uD"), half))


def _unfit(fields: T.StructType, parent: Column) -> list[Column]:
    """Conditions on parsed fields, true if the parent is not null and a field violates its declaration."""
    conditions = []
    for field in fields:
        column = parent[field.name]
        if not field.nullable:
            conditions.append(column.isNull())
        conditions += _unfit_inside(field.dataType, column)
    return conditions


def _unfit_inside(kind: T.DataType, column: Column) -> list[Column]:
    if isinstance(kind, T.StructType):
        return [column.isNotNull() & c for c in _unfit(kind, column)]
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return [F.exists(column, lambda e: _any(element, e))] if _has_limits(element) else []
    if isinstance(kind, T.MapType):
        value, keys = kind.valueType, F.map_keys(column)
        repeated = F.size(keys) != F.size(F.array_distinct(keys))
        inside = [F.exists(F.map_values(column), lambda e: _any(value, e))] if _has_limits(value) else []
        return [repeated, *inside]
    if isinstance(kind, TimestampMillisType):
        return [~column.between(*held(kind))]
    return [F.length(column) > kind.length] if isinstance(kind, T.VarcharType | T.CharType) else []


def _any(kind: T.DataType, element: Column) -> Column:
    return any_of(F.coalesce(c, F.lit(False)) for c in _unfit_inside(kind, element))


def _has_limits(kind: T.DataType) -> bool:
    limited = (T.MapType, T.VarcharType, T.CharType, TimestampMillisType)
    return any(
        isinstance(one, limited) or (isinstance(one, T.StructType) and any(not field.nullable for field in one))
        for one in types_in(kind)
    )


# Types whose values Spark may silently change, and a pattern that a text must contain for that: a number of digits.
_SUSPECT: dict[type[T.DataType], str] = {T.ByteType: "[0-9]{3}", T.TimestampType: "[0-9]{13}"}

# A DECIMAL may be a string, with commas, digits of any script, and escapes for any of its characters.
_DIGIT = r"\p{Nd}"
_E = r"(?:[eE]|\\u00[46]5)"
_BEFORE_E = rf"(?:[{_DIGIT}.,]|\\u002[cCeE])"
_MAYBE_HUGE = rf"{_BEFORE_E}{_E}[-+,]*(?:[{_DIGIT}][-+,{_DIGIT}]{{3}}|[-+,{_DIGIT}]*\\u)"


def _suspect(fields: T.StructType) -> str:
    """A pattern that matches every text with a number that its type cannot represent."""
    suspects = set()
    for kind in types_in(fields):
        if isinstance(kind, T.DecimalType):
            suspects.add(rf"[.][{_DIGIT},]{{{kind.scale + 1}}}|[.][{_DIGIT},]*\\u|\\u002[eE]")
            suspects.add(rf"{_BEFORE_E}{_E}[-+,]*[{_DIGIT}\\]")
        elif type(kind) in _SUSPECT:
            suspects.add(_SUSPECT[type(kind)])
    return "|".join(sorted(suspects))


def _reduced(fields: T.StructType, kept: tuple[type[T.DataType], ...]) -> T.StructType:
    """Reduce the fields to scalars of these types. Fields without such a scalar are left out."""
    kinds = ((field.name, _only(field.dataType, kept)) for field in fields)
    return T.StructType([T.StructField(name, kind) for name, kind in kinds if kind is not None])


def _only(kind: T.DataType, kept: tuple[type[T.DataType], ...]) -> T.DataType | None:
    if isinstance(kind, T.StructType):
        return _reduced(kind, kept) or None
    if isinstance(kind, T.ArrayType):
        element = _only(kind.elementType, kept)
        return element and T.ArrayType(element)
    if isinstance(kind, T.MapType):
        value = _only(kind.valueType, kept)
        return value and T.MapType(kind.keyType, value)
    return kind if isinstance(kind, kept) else None


def _exactly(fields: T.StructType, data: Column) -> Column:
    """Parse the fields of a record as VARIANT, which keeps all digits."""
    return _first(_from_json(map_fields(fields, lambda _, path: T.VariantType()), data))


_Rule: TypeAlias = Callable[[T.DataType, Column], Column]


def _conditions(fields: T.StructType, parent: Column, rule: _Rule) -> list[Column]:
    """Conditions, one per field, that are true if the rule is true for a scalar in the field."""
    return [F.coalesce(_condition(field.dataType, parent[field.name], rule), F.lit(False)) for field in fields]


def _condition(kind: T.DataType, column: Column, rule: _Rule) -> Column:
    if isinstance(kind, T.StructType):
        return any_of(_conditions(kind, column, rule))
    if isinstance(kind, T.ArrayType | T.MapType):
        inside = kind.elementType if isinstance(kind, T.ArrayType) else kind.valueType
        values = column if isinstance(kind, T.ArrayType) else F.map_values(column)
        return F.exists(values, lambda e: F.coalesce(_condition(inside, e, rule), F.lit(False)))
    return rule(kind, column)


def _is_changed(kind: T.DataType, column: Column) -> Column:
    text = column.cast("string")
    if isinstance(kind, T.DecimalType):
        return _digits_after_point(text) > kind.scale
    number = text.try_cast("decimal(38,0)")
    return F.abs(number) > MAX_EPOCH_SECONDS if isinstance(kind, T.TimestampType) else number > 127


def _is_huge(record: Column, _: T.DataType, column: Column) -> Column:
    """Whether a DECIMAL has an exponent of four digits or more, as text or as a number that became zero or infinity."""
    text = F.replace(column.cast("string"), F.lit(","), F.lit(""))
    lost = text.isin("0.0", "-0.0", "Infinity", "-Infinity") & (F.schema_of_variant(column) == "DOUBLE")
    return text.rlike(rf"[eE][-+]?[{_DIGIT}]{{4}}") | (lost & record.rlike(HUGE_NUMBER))


def _digits_after_point(text: Column) -> Column:
    """Number of digits that a number needs after the decimal point; null if it has no nonzero digit."""
    number = F.replace(text, F.lit(","), F.lit(""))
    mantissa = F.regexp_extract(number, rf"^[-+]?([{_DIGIT}.]*)", 1)
    # As a double, because an exponent may exceed every integer type.
    exponent = F.coalesce(F.regexp_extract(number, "[eE]([-+]?[0-9]+)$", 1).try_cast("double"), F.lit(0.0))
    fraction = F.regexp_extract(mantissa, rf"[.]([{_DIGIT}]*)$", 1)
    digits = F.replace(mantissa, F.lit("."), F.lit(""))
    used = F.regexp_replace(digits, "0+$", "")
    needed = F.length(fraction) - exponent - (F.length(digits) - F.length(used))
    return F.when(used != "", needed)

"""Codecs as Spark column expressions: bytes to columns and back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs import Codec, JsonCodec, RawCodec, TextCodec
from kpipe_platform.codecs.json.scalars import MAX_EPOCH_SECONDS, held
from kpipe_platform.codecs.json.syntax import BACKSLASHES, HUGE_NUMBER, MAX_DEPTH, SURROGATE, SURROGATE_PAIR
from kpipe_platform.codecs.types import EpochType, TimestampMillisType, json_type, map_fields, types_in
from kpipe_platform.errors import ConfigError
from kpipe_platform.spark.column_cache import reused

CORRUPT = "_kpipe_corrupt"
"""Field in which ``from_json`` stores a record that it cannot parse."""

# Name of the fields in which kpipe wraps a record's JSON. It is random, so that a record cannot contain text that
# closes the wrapper and passes for another record.
_FENCE = f"_k{secrets.token_hex(5)}"

# Keep all six fraction digits of a second, and the seconds of a zone offset (used before 1900). Spark's default
# patterns truncate both.
_WRITTEN = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
MISFIT = "_kpipe_misfit"
"""Column (string) of an output made from KafkaRecords: why a record does not fit its topic; null if it fits."""

SINK_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
"""Allowed columns of a raw or text output besides ``_kafka``. The names are those of Spark's Kafka sink."""


def parsed(codec: Codec, data: Column) -> Column:
    """Parse bytes in one expression. Evaluate it once and pass its result to the functions below.

    A JSON record is wrapped as the first of two array elements, because ``from_json`` parses only the first object of a
    text and silently drops the rest. The second element proves that the record did not close the wrapping array.

    A record that has a DECIMAL with a huge exponent is not parsed: Java would compute a power of ten for it, which
    takes minutes and gigabytes.
    """
    if isinstance(codec, JsonCodec):
        value = _from_json(json_type(codec.fields), data)
        decimals = _reduced(codec.fields, (T.DecimalType,))
        if not decimals:
            return value
        text = data.cast("string")
        # Parse a first time, but only records whose text has digits that may be a huge exponent.
        numbers = _exactly(decimals, data)
        huge = F.when(text.rlike(_MAYBE_HUGE), _either(_conditions(decimals, numbers, partial(_is_huge, text))))
        return F.when(~F.coalesce(huge, F.lit(False)), value)
    if isinstance(codec, TextCodec):
        return data.cast("string")
    return data


def _from_json(fields: T.StructType, data: Column) -> Column:
    text = F.concat(F.lit(f'{{"{_FENCE}":['), data.cast("string"), F.lit(f',{{"{_FENCE}":true}}]}}'))
    element = T.StructType([*fields, T.StructField(_FENCE, T.BooleanType())])
    schema = T.StructType().add(_FENCE, T.ArrayType(element)).add(CORRUPT, T.StringType())
    # The wrapper adds two levels, an object and an array.
    depth = str(MAX_DEPTH + 2)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "maxNestingDepth": depth}
    return F.from_json(text, schema, options)


def value_of(codec: Codec, parsed: Column) -> Column:
    """The decoded value as one column: a struct for JSON, a string for text, the bytes for raw."""
    if not isinstance(codec, JsonCodec):
        return parsed
    return _with_moments(codec.fields, _first(parsed), _moment)


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


def is_fault(codec: Codec, data: Column, parsed: Column) -> Column | None:
    """A condition that is true if ``data`` is not null and does not decode; None for a codec that accepts all bytes.

    Args:
        codec: The codec.
        data: The bytes.
        parsed: The result of the function ``parsed`` for them.
    """
    if isinstance(codec, RawCodec):
        return None
    text = data.cast("string")
    bad = ~F.is_valid_utf8(text)
    if isinstance(codec, JsonCodec):
        value = _first(parsed)
        conditions = [
            value.isNull(),
            parsed[CORRUPT].isNotNull(),
            F.get(parsed[_FENCE], 1)[_FENCE].isNull(),
            *_unfit(codec.fields, value),
            _half_of_a_pair(text),
        ]
        exact = _reduced(codec.fields, (T.DecimalType, *_SUSPECT))
        if exact:
            # Parse again without losing digits, but only records whose text may have too many digits.
            changed = _either(_conditions(exact, _exactly(exact, data), _is_changed))
            conditions.append(F.when(text.rlike(_suspect(codec.fields)), changed))
        bad = bad | _either([F.coalesce(c, F.lit(False)) for c in conditions])
    return data.isNotNull() & F.coalesce(bad, F.lit(True))


def _either(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__or__, conditions, F.lit(False))


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
    return _either(F.coalesce(c, F.lit(False)) for c in _unfit_inside(kind, element))


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
    return _first(_from_json(map_fields(fields, lambda _: T.VariantType()), data))


_Rule: TypeAlias = Callable[[T.DataType, Column], Column]


def _conditions(fields: T.StructType, parent: Column, rule: _Rule) -> list[Column]:
    """Conditions, one per field, that are true if the rule is true for a scalar in the field."""
    return [F.coalesce(_condition(field.dataType, parent[field.name], rule), F.lit(False)) for field in fields]


def _condition(kind: T.DataType, column: Column, rule: _Rule) -> Column:
    if isinstance(kind, T.StructType):
        return _either(_conditions(kind, column, rule))
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


def value_columns(codec: Codec, value: Column) -> list[Column]:
    """The columns of the decoded value that a stage gets."""
    if isinstance(codec, JsonCodec):
        return [value[field.name].alias(field.name) for field in codec.fields]
    return [value.alias("value")]


@reused
def encoded_value(codec: Codec, output: T.StructType) -> Column:
    """Encode a stage's output to value bytes.

    Args:
        codec: Codec of the destination's values.
        output: Schema of the output.

    Raises:
        ConfigError: The columns do not fit the codec.
    """
    names = [name for name in output.names if name not in ("_kafka", MISFIT)]
    if isinstance(codec, JsonCodec):
        if not names:
            msg = f"the stage's output has no column except _kafka: {output.names}"
            raise ConfigError(msg, fix="return at least one column for the JSON value")
        options = {**_WRITTEN, "ignoreNullFields": "false" if codec.include_nulls else "true"}
        kinds = {field.name: field.dataType for field in codec.fields}
        columns = [
            _with_moments(kinds[name], F.col(_quoted(name)), _number).alias(name)
            if name in kinds
            else F.col(_quoted(name))
            for name in names
        ]
        encoded = F.to_json(F.struct(*columns), options).cast("binary")
        if "_kafka" in output.names:
            encoded = F.when(passed_tombstone(codec, output), F.lit(None)).otherwise(encoded)
        return encoded
    unknown = [name for name in names if name not in SINK_COLUMNS]
    if unknown or "value" not in names:
        msg = (
            f"the stage's output for codec {codec.name!r} must have a column 'value' and may have "
            f"{', '.join(SINK_COLUMNS)} and _kafka; it has {', '.join(output.names)}"
        )
        raise ConfigError(msg, fix="select these columns, or use JsonCodec() to write every column", columns=unknown)
    kind = output["value"].dataType
    if not isinstance(kind, T.BinaryType | T.StringType | T.NullType):
        msg = f"column 'value' is {kind.simpleString()}; codec {codec.name!r} writes binary or string"
        raise ConfigError(msg, fix="cast it, or use JsonCodec()", column="value")
    return F.col("value").cast("binary")


def passed_tombstone(codec: Codec, output: T.StructType) -> Column:
    """A condition that is true for a tombstone that the stage passed unchanged. It must be written as a tombstone.

    The output must have ``_kafka``. All value columns of a tombstone are null, because it has no value to decode.
    """
    names = [name for name in output.names if name != "_kafka"] if isinstance(codec, JsonCodec) else ["value"]
    nulls = (F.col(_quoted(name)).isNull() for name in names)
    return reduce(Column.__and__, nulls, F.col("_kafka.tombstone"))


@reused
def misfit_of(codec: Codec, output: T.StructType) -> Column | None:
    """A string column with the reason why an output does not fit the codec's schema; null if it fits.

    `kpipe_platform.spark.sink.output_schema` compares names and types before a job runs. This column covers nulls in
    NOT NULL fields, and strings that are longer than their VARCHAR or CHAR.

    Args:
        codec: Codec of the destination's values.
        output: Schema of the output.

    Returns:
        The column; None if every output with this schema fits.
    """
    if MISFIT in output.names:
        return F.col(MISFIT)
    if not isinstance(codec, JsonCodec):
        return None
    reasons = [
        F.when(broken, F.lit(text))
        for field in codec.fields
        if field.name in output.names
        for broken, text in _broken(field, F.col(_quoted(field.name)), output[field.name].dataType, field.name)
    ]
    if not reasons:
        return None
    misfit = F.coalesce(*reasons)
    if "_kafka" not in output.names:
        return misfit
    return F.when(F.coalesce(~passed_tombstone(codec, output), F.lit(True)), misfit)


def _broken(field: T.StructField, column: Column, returned: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    """Conditions that are true if a value violates its declaration, each with the reason as text."""
    if not field.nullable:
        yield column.isNull(), f"{path!r} is null, declared NOT NULL"
    yield from _broken_inside(field.dataType, column, returned, path)


def _broken_inside(kind: T.DataType, column: Column, returned: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    if isinstance(kind, T.StructType) and isinstance(returned, T.StructType):
        for field in kind:
            inside = _broken(field, column[field.name], returned[field.name].dataType, f"{path}.{field.name}")
            yield from ((column.isNotNull() & broken, text) for broken, text in inside)
    elif isinstance(kind, T.ArrayType) and isinstance(returned, T.ArrayType):
        yield from _broken_element(kind.elementType, column, returned.elementType, f"{path}[]")
    elif isinstance(kind, T.MapType) and isinstance(returned, T.MapType):
        yield from _broken_element(kind.valueType, F.map_values(column), returned.valueType, f"{path}[]")
    elif isinstance(kind, T.VarcharType | T.CharType) and isinstance(returned, T.StringType):
        yield F.length(column) > kind.length, f"{path!r} is longer than its {kind.simpleString().upper()}"


def _broken_element(kind: T.DataType, values: Column, returned: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    def test(number: int) -> Callable[[Column], Column]:
        return lambda element: F.coalesce(list(_broken_inside(kind, element, returned, path))[number][0], F.lit(False))

    for number, (_, text) in enumerate(_broken_inside(kind, F.lit(None), returned, path)):
        yield F.exists(values, test(number)), text


def as_key(column: Column, kind: T.DataType) -> Column:
    """Convert a column to record key bytes: binary stays, nested types become JSON, anything else its text."""
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.MapType | T.ArrayType):
        return F.to_json(column, _WRITTEN).cast("binary")
    return column.cast("string").cast("binary")


def as_timestamp_ms(column: Column, kind: T.DataType, name: str) -> Column:
    """Convert a column to milliseconds since the epoch.

    Args:
        column: The column.
        kind: Its type.
        name: Its name, for the message.

    Raises:
        ConfigError: It is not a timestamp, a date, or an integer of milliseconds.
    """
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType | T.DateType):
        return F.unix_millis(column.cast("timestamp"))
    if isinstance(kind, T.LongType | T.IntegerType | T.NullType):
        # NullType is included because a pandas column that has only nulls gets this type.
        return column.cast("long")
    msg = f"timestamp column {name!r} is {kind.simpleString()}"
    raise ConfigError(msg, fix="use a timestamp, a date, or a bigint of milliseconds since 1970", column=name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def column_at(schema: T.StructType, path: str) -> tuple[Column, T.DataType]:
    """Find a column, or a struct field by its dotted path, and its type.

    Raises:
        ConfigError: The schema has no such column.
    """
    # A column whose name contains dots takes precedence over a path.
    parts = [path] if path in schema.names else path.split(".")
    kind: T.DataType = schema
    for part in parts:
        if not isinstance(kind, T.StructType) or part not in kind.fieldNames():
            msg = f"column {path!r} is not in the stage's output ({', '.join(schema.names)})"
            raise ConfigError(msg, fix="return this column, or name another one in KafkaTopic(...)", column=path)
        kind = kind[part].dataType
    return F.col(".".join(map(_quoted, parts))), kind

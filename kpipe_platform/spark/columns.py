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
"""Field in which from_json leaves a record that it cannot read."""

# Name of the fields that kpipe puts around a record's JSON. No record can know it, so none can close what it is put in
# and pass for another.
_FENCE = f"_k{secrets.token_hex(5)}"

# All six digits of a second, and the seconds of an offset (years before 1900): Spark's own patterns cut both.
_WRITTEN = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
MISFIT = "_kpipe_misfit"
"""Column of an output made of records: why one is none that its topic's codec holds, as text; else null."""

SINK_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
"""What a raw or text output may hold beside ``_kafka``; the names are those of Spark's own Kafka sink."""


def parsed(codec: Codec, data: Column) -> Column:
    """What Spark makes of the bytes, in one expression: to be evaluated once and used by the functions below.

    A JSON record is read as the first of two elements of an array, because ``from_json`` reads the first object of a
    text and silently drops whatever follows it. The second element says that the array is the one that was opened.

    A record with a DECIMAL of a huge exponent is not read at all: Java computes a power of ten of it, for minutes and
    in gigabytes.
    """
    if isinstance(codec, JsonCodec):
        found = _from_json(json_type(codec.fields), data)
        decimals = _reduced(codec.fields, (T.DecimalType,))
        if not decimals:
            return found
        text = data.cast("string")
        # A first look, at those records only whose text has digits that may be an exponent.
        numbers = _exactly(decimals, data)
        huge = F.when(text.rlike(_MAYBE_HUGE), _either(_conditions(decimals, numbers, partial(_is_huge, text))))
        return F.when(~F.coalesce(huge, F.lit(False)), found)
    if isinstance(codec, TextCodec):
        return data.cast("string")
    return data


def _from_json(fields: T.StructType, data: Column) -> Column:
    text = F.concat(F.lit(f'{{"{_FENCE}":['), data.cast("string"), F.lit(f',{{"{_FENCE}":true}}]}}'))
    element = T.StructType([*fields, T.StructField(_FENCE, T.BooleanType())])
    schema = T.StructType().add(_FENCE, T.ArrayType(element)).add(CORRUPT, T.StringType())
    # An object and an array are around the record.
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
    """The column with each value of an EpochType changed, at any depth."""
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
    """The moment that a number of milliseconds or microseconds is; null beyond what a TIMESTAMP holds."""
    moment = F.timestamp_millis(number) if isinstance(kind, TimestampMillisType) else F.timestamp_micros(number)
    return F.when(number.between(*held(kind)), moment)


def _number(kind: EpochType, moment: Column) -> Column:
    return F.unix_millis(moment) if isinstance(kind, TimestampMillisType) else F.unix_micros(moment)


def is_fault(codec: Codec, data: Column, parsed: Column) -> Column | None:
    """True where ``data`` is not null and does not decode; None for a codec that takes any bytes.

    Args:
        codec: The codec.
        data: The bytes.
        parsed: What ``parsed`` made of them.
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
            # A second look, at those records only whose text has digits that may be too many.
            changed = _either(_conditions(exact, _exactly(exact, data), _is_changed))
            conditions.append(F.when(text.rlike(_suspect(codec.fields)), changed))
        bad = bad | _either([F.coalesce(c, F.lit(False)) for c in conditions])
    return data.isNotNull() & F.coalesce(bad, F.lit(True))


def _either(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__or__, conditions, F.lit(False))


def _half_of_a_pair(text: Column) -> Column:
    """True where half of a surrogate pair is escaped, of which Spark makes a question mark."""
    single = F.replace(text, F.lit(BACKSLASHES), F.lit("  "))
    half = F.regexp_replace(single, SURROGATE_PAIR, " ").rlike(SURROGATE)
    # Most texts have no escape at all, and are looked through once.
    return F.when(text.contains("\\u"), F.when(text.contains("\\ud") | text.contains("\\uD"), half))


def _unfit(fields: T.StructType, parent: Column) -> list[Column]:
    """Conditions on what was read, true where the parent is there and a field is not as declared."""
    found = []
    for field in fields:
        column = parent[field.name]
        if not field.nullable:
            found.append(column.isNull())
        found += _unfit_inside(field.dataType, column)
    return found


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


# What Spark reads and changes without a word, and what a text must have for it: at least a number of so many digits.
_SUSPECT: dict[type[T.DataType], str] = {T.ByteType: "[0-9]{3}", T.TimestampType: "[0-9]{13}"}

# A DECIMAL may be text, with commas, with digits of any script, and with escapes in place of each.
_DIGIT = r"\p{Nd}"
_E = r"(?:[eE]|\\u00[46]5)"
_BEFORE_E = rf"(?:[{_DIGIT}.,]|\\u002[cCeE])"
_MAYBE_HUGE = rf"{_BEFORE_E}{_E}[-+,]*(?:[{_DIGIT}][-+,{_DIGIT}]{{3}}|[-+,{_DIGIT}]*\\u)"


def _suspect(fields: T.StructType) -> str:
    """What is in every text that has a number which its type does not hold."""
    found = set()
    for kind in types_in(fields):
        if isinstance(kind, T.DecimalType):
            found.add(rf"[.][{_DIGIT},]{{{kind.scale + 1}}}|[.][{_DIGIT},]*\\u|\\u002[eE]")
            found.add(rf"{_BEFORE_E}{_E}[-+,]*[{_DIGIT}\\]")
        elif type(kind) in _SUSPECT:
            found.add(_SUSPECT[type(kind)])
    return "|".join(sorted(found))


def _reduced(fields: T.StructType, kept: tuple[type[T.DataType], ...]) -> T.StructType:
    """The fields with nothing in them but scalars of these types; those without one are left out."""
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
    """The fields of a record in a form that keeps all digits."""
    return _first(_from_json(map_fields(fields, lambda _: T.VariantType()), data))


_Rule: TypeAlias = Callable[[T.DataType, Column], Column]


def _conditions(fields: T.StructType, parent: Column, rule: _Rule) -> list[Column]:
    """The rule for each scalar in the fields, true where it is for one that is there."""
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
    """Whether a DECIMAL is text with an exponent of four digits, or a number that one has made zero or infinity."""
    text = F.replace(column.cast("string"), F.lit(","), F.lit(""))
    lost = text.isin("0.0", "-0.0", "Infinity", "-Infinity") & (F.schema_of_variant(column) == "DOUBLE")
    return text.rlike(rf"[eE][-+]?[{_DIGIT}]{{4}}") | (lost & record.rlike(HUGE_NUMBER))


def _digits_after_point(text: Column) -> Column:
    """How many digits a number needs after the point; null for none."""
    number = F.replace(text, F.lit(","), F.lit(""))
    mantissa = F.regexp_extract(number, rf"^[-+]?([{_DIGIT}.]*)", 1)
    # As a double: no exponent is too large for one.
    exponent = F.coalesce(F.regexp_extract(number, "[eE]([-+]?[0-9]+)$", 1).try_cast("double"), F.lit(0.0))
    fraction = F.regexp_extract(mantissa, rf"[.]([{_DIGIT}]*)$", 1)
    digits = F.replace(mantissa, F.lit("."), F.lit(""))
    used = F.regexp_replace(digits, "0+$", "")
    needed = F.length(fraction) - exponent - (F.length(digits) - F.length(used))
    return F.when(used != "", needed)


def value_columns(codec: Codec, value: Column) -> list[Column]:
    """The decoded value spread into the columns that a stage sees."""
    if isinstance(codec, JsonCodec):
        return [value[field.name].alias(field.name) for field in codec.fields]
    return [value.alias("value")]


@reused
def encoded_value(codec: Codec, output: T.StructType) -> Column:
    """The value bytes of a stage's output with this schema.

    Raises:
        ConfigError: The columns do not fit the codec.
    """
    names = [name for name in output.names if name not in ("_kafka", MISFIT)]
    if isinstance(codec, JsonCodec):
        if not names:
            msg = f"the stage's output has no column beside _kafka: {output.names}"
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
            f"the stage's output for codec {codec.name!r} needs a column 'value' and may hold "
            f"{', '.join(SINK_COLUMNS)} and _kafka; it holds {', '.join(output.names)}"
        )
        raise ConfigError(msg, fix="select these columns, or use JsonCodec() to write every column", columns=unknown)
    kind = output["value"].dataType
    if not isinstance(kind, T.BinaryType | T.StringType | T.NullType):
        msg = f"column 'value' is {kind.simpleString()}; codec {codec.name!r} writes binary or string"
        raise ConfigError(msg, fix="cast it, or use JsonCodec()", column="value")
    return F.col("value").cast("binary")


def passed_tombstone(codec: Codec, output: T.StructType) -> Column:
    """True for a tombstone that the stage let pass unchanged, which must leave as one; the output has ``_kafka``.

    A tombstone has no value to decode, so that all its value columns are null.
    """
    names = [name for name in output.names if name != "_kafka"] if isinstance(codec, JsonCodec) else ["value"]
    nulls = (F.col(_quoted(name)).isNull() for name in names)
    return reduce(Column.__and__, nulls, F.col("_kafka.tombstone"))


@reused
def misfit_of(codec: Codec, output: T.StructType) -> Column | None:
    """Why an output of this schema is none that the codec's schema describes, as text; null where it is one.

    Types and names are compared before anything runs (`kpipe_platform.spark.sink.output_schema`): what is left are
    nulls in a NOT NULL field, and texts longer than their VARCHAR or CHAR.
    """
    if MISFIT in output.names:
        return F.col(MISFIT)
    if not isinstance(codec, JsonCodec):
        return None
    found = [
        F.when(broken, F.lit(text))
        for field in codec.fields
        if field.name in output.names
        for broken, text in _broken(field, F.col(_quoted(field.name)), output[field.name].dataType, field.name)
    ]
    if not found:
        return None
    misfit = F.coalesce(*found)
    if "_kafka" not in output.names:
        return misfit
    return F.when(F.coalesce(~passed_tombstone(codec, output), F.lit(True)), misfit)


def _broken(field: T.StructField, column: Column, found: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    """Conditions that are true where a value breaks what is declared, each with what it says of it."""
    if not field.nullable:
        yield column.isNull(), f"{path!r} is null, declared NOT NULL"
    yield from _broken_inside(field.dataType, column, found, path)


def _broken_inside(kind: T.DataType, column: Column, found: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    if isinstance(kind, T.StructType) and isinstance(found, T.StructType):
        for field in kind:
            inside = _broken(field, column[field.name], found[field.name].dataType, f"{path}.{field.name}")
            yield from ((column.isNotNull() & broken, text) for broken, text in inside)
    elif isinstance(kind, T.ArrayType) and isinstance(found, T.ArrayType):
        yield from _broken_element(kind.elementType, column, found.elementType, f"{path}[]")
    elif isinstance(kind, T.MapType) and isinstance(found, T.MapType):
        yield from _broken_element(kind.valueType, F.map_values(column), found.valueType, f"{path}[]")
    elif isinstance(kind, T.VarcharType | T.CharType) and isinstance(found, T.StringType):
        yield F.length(column) > kind.length, f"{path!r} is longer than its {kind.simpleString().upper()}"


def _broken_element(kind: T.DataType, values: Column, found: T.DataType, path: str) -> Iterator[tuple[Column, str]]:
    def test(number: int) -> Callable[[Column], Column]:
        return lambda element: F.coalesce(list(_broken_inside(kind, element, found, path))[number][0], F.lit(False))

    for number, (_, text) in enumerate(_broken_inside(kind, F.lit(None), found, path)):
        yield F.exists(values, test(number)), text


def as_key(column: Column, kind: T.DataType) -> Column:
    """A column as the bytes of a record key: bytes stay, structs become JSON, anything else its text."""
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.MapType | T.ArrayType):
        return F.to_json(column, _WRITTEN).cast("binary")
    return column.cast("string").cast("binary")


def as_timestamp_ms(column: Column, kind: T.DataType, name: str) -> Column:
    """A column as milliseconds since 1970.

    Raises:
        ConfigError: It is neither a timestamp, nor a date, nor a number of milliseconds.
    """
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType | T.DateType):
        return F.unix_millis(column.cast("timestamp"))
    if isinstance(kind, T.LongType | T.IntegerType | T.NullType):
        # A pandas column of nulls only has no other type.
        return column.cast("long")
    msg = f"timestamp column {name!r} is {kind.simpleString()}"
    raise ConfigError(msg, fix="use a timestamp, a date, or a bigint of milliseconds since 1970", column=name)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def column_at(schema: T.StructType, path: str) -> tuple[Column, T.DataType]:
    """A column, or a field in a struct column by its dotted path, with its type.

    Raises:
        ConfigError: There is no such column.
    """
    # A column whose own name has dots goes first.
    parts = [path] if path in schema.names else path.split(".")
    kind: T.DataType = schema
    for part in parts:
        if not isinstance(kind, T.StructType) or part not in kind.fieldNames():
            msg = f"column {path!r} is not in the stage's output ({', '.join(schema.names)})"
            raise ConfigError(msg, fix="return this column, or name another one in KafkaTopic(...)", column=path)
        kind = kind[part].dataType
    return F.col(".".join(map(_quoted, parts))), kind

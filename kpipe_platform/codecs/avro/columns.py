"""Spark expressions that decode and encode Avro, with Spark's own functions.

Source: Spark ``from_avro`` and ``to_avro``. The schema that ``from_avro`` gets as an argument is the writer's; the
reader's is the option ``avroSchema``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kpipe_platform.codecs.avro.resolution import Resolution, resolve
from kpipe_platform.codecs.avro.scalars import MAX_DAY, MAX_MICROS, MIN_DAY, MIN_MICROS
from kpipe_platform.codecs.avro.schema import (
    MAX_PRECISION,
    TIMESTAMPS,
    Node,
    max_precision,
    parse_avro,
    spark_type,
    to_text,
    without_logical,
)
from kpipe_platform.codecs.base import any_of
from kpipe_platform.codecs.framed import frame_column
from kpipe_platform.codecs.types import field_path, is_type
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import Schema

# Appended to each value, and read as a field after it. A value that is followed by other bytes has other bytes there,
# and a value that is cut off has too few. The first byte does not occur again, so that no shift of them is equal.
_END = b"\xd7\x9e\x01\xf3\x4b\x80\x66\xe2"
# Most digits of a decimal that Spark reads as 64 bits, dropping all others without an error.
_LONG_DIGITS = 18
# More schemas than this are searched by halves.
_FEW = 8
_ALL = 2**31 - 1
_VALUE, _AFTER = "value", "end"


def parse_avro_column(data: Column, writers: Iterable[tuple[bytes, Schema]], reader: Schema) -> Column:
    """Parse bytes into a struct, of which `avro_value` and `is_bad_avro` take what they need.

    Args:
        data: The bytes.
        writers: The schemas of the records, by the bytes in front of the data. Empty bytes: all records have it.
        reader: The schema of the result.
    """
    found = [(frame, resolve(writer, reader)) for frame, writer in writers]
    # Without a readable schema, all records are faults, as those of an unknown id are.
    known = [(frame, each) for frame, each in found if not each.conflicts]
    if not known:
        return F.when(F.lit(False), _from_avro(data, resolve(reader, reader)))
    if known[0][0] == b"":
        return _from_avro(data, known[0][1])
    frame = frame_column(data)
    if len(known) <= _FEW:
        return _by_frame(known, frame, data)
    # More would make a function that is too long for Java's compiler. A lambda is not compiled as a part of it.
    both = F.array(F.struct(frame.alias("frame"), data.alias("data")))
    return F.get(F.transform(both, lambda each: _by_frame(sorted(known, key=_first), each["frame"], each["data"])), 0)


def _first(pair: tuple[bytes, Resolution]) -> bytes:
    return pair[0]


def _by_frame(writers: list[tuple[bytes, Resolution]], frame: Column, data: Column) -> Column:
    """Parse with the schema whose bytes are ``frame``. More than a few schemas are sorted, and searched by halves."""
    if len(writers) > _FEW:
        half = len(writers) // 2
        is_low = frame < F.lit(writers[half][0])
        return F.when(is_low, _by_frame(writers[:half], frame, data)).otherwise(_by_frame(writers[half:], frame, data))
    parsed: Any = F
    for own, found in writers:
        payload = F.substring(data, len(own) + 1, _ALL)
        parsed = parsed.when(frame == F.lit(own), _from_avro(payload, found))
    chosen: Column = parsed
    return chosen


def _from_avro(payload: Column, found: Resolution) -> Column:
    writer = _wrapped(to_text(found.writer, without_logical))
    reader = _wrapped(to_text(found.reader, lambda node: _attributes(node, found.units)))
    # An unknown date of the Julian calendar is not a reason to change dates, as in a setting for old files.
    options = {"avroSchema": reader, "mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
    pairs = [F.lit(each) for pair in options.items() for each in pair]
    return F.call_function("from_avro", F.concat(payload, F.lit(_END)), F.lit(writer), F.create_map(*pairs))


def _wrapped(text: str) -> str:
    """Wrap a schema in a record, whose encoding is that of its fields.

    Without it, Spark returns a record of nulls for bytes that do not decode, as for a record of nulls.
    """
    end = {"type": "fixed", "name": "kpipe_end", "size": len(_END)}
    fields = [{"name": _VALUE, "type": json.loads(text)}, {"name": _AFTER, "type": end}]
    return json.dumps({"type": "record", "name": "kpipe_value", "fields": fields})


def _attributes(node: Node, units: dict[int, str]) -> dict[str, Any]:
    """The attributes of a type with the logical types that Spark converts as kpipe does."""
    attributes = without_logical(node)
    logical = units.get(id(node), node.logical)
    if logical == "decimal":
        attributes |= {"logicalType": "decimal", "precision": _read_precision(node), "scale": node.scale}
    elif logical == "date" or logical in TIMESTAMPS:
        attributes["logicalType"] = logical
    return attributes


def _read_precision(node: Node) -> int:
    if node.precision > _LONG_DIGITS:
        return node.precision
    size = node.attributes.get("size")
    if size is None:
        return MAX_PRECISION
    return node.precision if size <= 8 else min(MAX_PRECISION, max_precision(size))


def avro_value(reader: Schema, parsed: Column) -> Column:
    """The decoded value, from the result of `parse_avro_column`."""
    node = parse_avro(reader)
    return _narrow(node, parsed[_VALUE]) if _is_wide(node) else parsed[_VALUE]


def is_bad_avro(reader: Schema, parsed: Column) -> Column:
    """Whether the bytes did not decode, from the result of `parse_avro_column`."""
    conditions = [
        F.coalesce(parsed[_AFTER] != F.lit(_END), F.lit(True)),
        *_falses(_unfit(parse_avro(reader), parsed[_VALUE])),
    ]
    return any_of(conditions)


def _is_wide(node: Node) -> bool:
    """Whether a value has decimals that are read with more digits than they are declared with."""
    if node.logical == "decimal":
        return _read_precision(node) != node.precision
    plain = _plain(node)
    return _is_wide(plain) if plain is not None else any(_is_wide(each) for _, each in _children(node))


def _plain(node: Node) -> Node | None:
    return node.plain if node.type == "union" else None


def _children(node: Node) -> Iterator[tuple[str, Node]]:
    """The types within a type, by the name of the field in Spark."""
    if node.type == "record":
        yield from ((each.name, each.node) for each in node.fields)
    elif node.type == "union":
        yield from ((f"member{i}", each) for i, each in enumerate(node.members))
    else:
        yield from (("", each) for each in node.inner)


def _narrow(node: Node, column: Column) -> Column:
    """Cast decimals to the type that they are declared with."""
    plain = _plain(node)
    if plain is not None:
        return _narrow(plain, column)
    if not _is_wide(node):
        return column
    if node.logical == "decimal":
        return column.try_cast(T.DecimalType(node.precision, node.scale))
    if node.type == "array":
        return F.transform(column, lambda each: _narrow(node.inner[0], each))
    if node.type == "map":
        return F.transform_values(column, lambda _, each: _narrow(node.inner[0], each))
    fields = [_narrow(each, column[name]).alias(name) for name, each in _children(node)]
    return F.when(column.isNotNull(), F.struct(*fields))


def _unfit(node: Node, column: Column) -> list[Column]:
    """Conditions that are true for a value that Spark reads and that Avro, Python or the type does not have."""
    plain = _plain(node)
    if plain is not None:
        return _unfit(plain, column)
    if node.logical == "decimal" and _is_wide(node):
        return [column.isNotNull() & column.try_cast(T.DecimalType(node.precision, node.scale)).isNull()]
    if node.logical == "date":
        return [~F.unix_date(column).between(MIN_DAY, MAX_DAY)]
    if node.logical in TIMESTAMPS:
        return [~column.between(*_moments(node.logical or ""))]
    if node.type == "string":
        return [~F.is_valid_utf8(column)]
    if node.type == "map":
        return [
            F.exists(F.map_keys(column), lambda key: ~F.is_valid_utf8(key)),
            *_any(node.inner[0], F.map_values(column)),
        ]
    if node.type == "array":
        return _any(node.inner[0], column)
    return [each for name, inner in _children(node) for each in _unfit(inner, column[name])]


def _any(node: Node, values: Column) -> list[Column]:
    if not _unfit(node, F.lit(None)):
        return []
    return [F.exists(values, lambda each: any_of(_falses(_unfit(node, each))))]


def _falses(conditions: Iterable[Column]) -> Iterator[Column]:
    return (F.coalesce(each, F.lit(False)) for each in conditions)


def _moments(logical: str) -> tuple[Column, Column]:
    low, high = F.timestamp_micros(F.lit(MIN_MICROS)), F.timestamp_micros(F.lit(MAX_MICROS))
    if not logical.startswith("local"):
        return low, high
    return F.lit("0001-01-01 00:00:00").cast("timestamp_ntz"), F.lit("9999-12-31 23:59:59.999999").cast("timestamp_ntz")


def to_avro_column(schema: Schema, value: Column, frame: bytes) -> Column:
    """Encode a column, with the id of its schema in front of it."""
    text = to_text(parse_avro(schema))
    encoded = F.call_function("to_avro", value, F.lit(text))
    return F.concat(F.lit(frame), encoded) if frame else encoded


def checked_type(schema: Schema, value: Column, kind: T.DataType) -> Column:
    """Return a column in the type of a schema. A column that is always null has the type VOID until then.

    Raises:
        ConfigError: It has another type.
    """
    expected = avro_type(schema)
    if not is_type(kind, expected):
        msg = f"the column is {kind.simpleString()}, and the Avro schema is {expected.simpleString()}"
        raise ConfigError(msg, fix="cast or select the columns in the stage, or change the schema")
    return _typed(value, kind, expected)


def _typed(value: Column, kind: T.DataType, expected: T.DataType) -> Column:
    if "void" not in kind.simpleString():
        return value
    if isinstance(kind, T.StructType) and isinstance(expected, T.StructType):
        fields = [
            _typed(value[each.name], each.dataType, expected[each.name].dataType).alias(each.name) for each in kind
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value.cast(expected)


def misfit_avro(schema: Schema, value: Column) -> Column | None:
    """Why a value cannot be encoded (string, null if it can); None if every value can be."""
    reasons = list(_misfits(parse_avro(schema), value, ""))
    return F.coalesce(*(F.when(broken, F.lit(text)) for broken, text in reasons)) if reasons else None


def _misfits(node: Node, column: Column, path: str) -> Iterator[tuple[Column, str]]:
    where = repr(path) if path else "the value"
    plain = _plain(node)
    if plain is not None:
        yield from _misfits(plain, column, path)
    elif node.type == "enum":
        symbols = node.attributes["symbols"]
        yield ~column.isin(symbols), f"{where} is not a symbol of the enum {node.name!r}"
    elif node.type == "fixed" and node.logical != "decimal":
        size = node.attributes["size"]
        yield F.length(column) != size, f"{where} does not have the {size} bytes of {node.name!r}"
    elif node.logical == "date":
        yield ~F.unix_date(column).between(MIN_DAY, MAX_DAY), f"{where} is not in the years 1 to 9999"
    elif node.type == "array":
        yield from _inner_misfits(node.inner[0], column, path)
    elif node.type == "map":
        yield from _inner_misfits(node.inner[0], F.map_values(column), path)
    elif node.type == "union" and node.members:
        count = reduce(Column.__add__, [column[name].isNotNull().cast("int") for name, _ in _children(node)])
        yield column.isNotNull() & (count != 1), f"{where} does not have exactly one member of the union"
    if node.type == "record" or (node.type == "union" and plain is None):
        for name, inner in _children(node):
            within = field_path(path, name)
            yield from _misfits(inner, column[name], within)
            if node.type == "record" and not inner.is_nullable:
                yield column.isNotNull() & column[name].isNull(), f"{within!r} is null, declared NOT NULL"


def _inner_misfits(node: Node, values: Column, path: str) -> Iterator[tuple[Column, str]]:
    def test(number: int) -> Callable[[Column], Column]:
        return lambda each: F.coalesce(list(_misfits(node, each, f"{path}[]"))[number][0], F.lit(False))

    if not node.is_nullable:
        yield F.exists(values, lambda each: each.isNull()), f"{f'{path}[]'!r} is null, declared NOT NULL"
    for number, (_, text) in enumerate(_misfits(node, F.lit(None), f"{path}[]")):
        yield F.exists(values, test(number)), text


@lru_cache(maxsize=256)
def avro_type(schema: Schema) -> T.DataType:
    """The Spark type of a schema. Cached: do not change it."""
    return spark_type(parse_avro(schema))

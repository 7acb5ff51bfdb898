"""Spark columns from a JSON Schema, and a JSON Schema from Spark columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from pyspark.sql import types as T

from kpipe_platform.codecs.json_schema.documents import document, follow
from kpipe_platform.codecs.types import field_path
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import Schema

_ANY = T.StringType()
"""Any JSON value, as its JSON text."""

_DECLARE = 'declare the columns: JsonSchemaCodec(columns="id BIGINT NOT NULL, tree STRING"); STRING keeps JSON text'
_MAX_NODES = 10_000
_FORMATS: dict[str, T.DataType] = {"date": T.DateType(), "date-time": T.TimestampType()}
_SCALARS: dict[str, T.DataType] = {"integer": T.LongType(), "number": T.DoubleType(), "boolean": T.BooleanType()}

_Part: TypeAlias = tuple[dict[str, Any], Any, tuple[int, ...]]
"""A schema, its document, and the schemas that it is within."""

DRAFT = "http://json-schema.org/draft-07/schema#"


@lru_cache(maxsize=256)
def columns_of(schema: Schema, formats: bool) -> T.StructType:
    """The columns of a schema. The result is shared: do not change it.

    Args:
        schema: A schema of objects.
        formats: Whether texts with the formats ``date`` and ``date-time`` become DATE and TIMESTAMP.

    Raises:
        ConfigError: The schema is not one of objects with properties, or is recursive.
    """
    root = document(schema)
    kind, _ = _Reader(schema, formats).read(root, root, ())
    if not isinstance(kind, T.StructType):
        msg = f"the JSON Schema describes {kind.simpleString()}, not an object with properties, so it has no columns"
        raise ConfigError(msg, fix=_DECLARE)
    return kind


class _Reader:
    """Reads types. Each returns the type, and whether the value may be null."""

    def __init__(self, schema: Schema, formats: bool) -> None:
        self._schema = schema
        self._formats = formats
        self._nodes = 0

    def read(self, node: Any, base: Any, within: tuple[int, ...]) -> tuple[T.DataType, bool]:
        kind, nullable = self._read(node, base, within)
        return (_ANY if isinstance(kind, T.NullType) else kind), nullable

    def _read(self, node: Any, base: Any, within: tuple[int, ...]) -> tuple[T.DataType, bool]:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            msg = f"the JSON Schema has more than {_MAX_NODES:,} parts, references resolved"
            raise ConfigError(msg, fix=_DECLARE)
        if not isinstance(node, dict):
            return _ANY, True
        parts = list(self._parts(node, base, within))
        alternatives = [
            [self._read(each, home, inside) for each in part[word]]
            for part, home, inside in parts
            for word in ("oneOf", "anyOf")
            if isinstance(part.get(word), list) and part[word]
        ]
        own = self._own(parts)
        kinds = [own] if own is not None else []
        kinds += [_either(each) for each in alternatives]
        if not kinds:
            return _ANY, True
        found, nullable = kinds[0]
        for kind, can_be_null in kinds[1:]:
            found, nullable = _both(found, kind), nullable and can_be_null
        return found, nullable

    def _parts(self, node: Any, base: Any, within: tuple[int, ...]) -> Iterator[_Part]:
        """The schema and all that apply together with it: those that it refers to, and those of ``allOf``."""
        if not isinstance(node, dict):
            return
        if id(node) in within:
            msg = "the JSON Schema is recursive, and a column cannot be"
            raise ConfigError(msg, fix=_DECLARE)
        inside = (*within, id(node))
        yield node, base, inside
        if isinstance(node.get("$ref"), str):
            home, target = follow(self._schema, base, node["$ref"])
            yield from self._parts(target, home, inside)
        for each in node.get("allOf") or ():
            yield from self._parts(each, base, inside)

    def _own(self, parts: list[_Part]) -> tuple[T.DataType, bool] | None:
        types = [names for part, _, _ in parts if (names := _types(part)) is not None]
        if not types:
            return None
        # An integer is a number too.
        names = set.intersection(*(each | {"integer"} if "number" in each else each for each in types))
        nullable, names = "null" in names, names - {"null"}
        if "number" in names:
            names -= {"integer"}
        if nullable and not names:
            return T.NullType(), True
        if len(names) != 1:
            return _ANY, nullable
        name = names.pop()
        if name == "object":
            return self._object(parts), nullable
        if name == "array":
            return self._array(parts), nullable
        if name == "string":
            formats = [part["format"] for part, _, _ in parts if isinstance(part.get("format"), str)]
            return _FORMATS.get(formats[0], _ANY) if formats and self._formats else _ANY, nullable
        return _SCALARS.get(name, _ANY), nullable

    def _object(self, parts: list[_Part]) -> T.DataType:
        required = {name for part, _, _ in parts for name in part.get("required") or () if isinstance(name, str)}
        fields: dict[str, tuple[T.DataType, bool]] = {}
        for part, base, within in parts:
            for name, node in (part.get("properties") or {}).items():
                if node is False:
                    continue
                kind, nullable = self.read(node, base, within)
                if name in fields:
                    kind, nullable = _both(fields[name][0], kind), fields[name][1] and nullable
                fields[name] = kind, nullable
        if fields:
            return T.StructType(
                [
                    T.StructField(name, kind, nullable or name not in required)
                    for name, (kind, nullable) in fields.items()
                ]
            )
        values = [
            self.read(node, base, within)[0]
            for part, base, within in parts
            for node in (part.get("additionalProperties"), *(part.get("patternProperties") or {}).values())
            if isinstance(node, dict)
        ]
        return T.MapType(T.StringType(), values[0] if len(values) == 1 else _ANY)

    def _array(self, parts: list[_Part]) -> T.DataType:
        items = [
            self.read(part["items"], base, within)[0]
            for part, base, within in parts
            if isinstance(part.get("items"), dict) and "prefixItems" not in part
        ]
        return T.ArrayType(items[0] if items else _ANY)


def _types(part: dict[str, Any]) -> set[str] | None:
    """Names of the types that a schema allows; None if it allows all."""
    if "type" in part:
        return {part["type"]} if isinstance(part["type"], str) else set(part["type"])
    if "const" in part:
        return {_name(part["const"])}
    if isinstance(part.get("enum"), list) and part["enum"]:
        return {_name(each) for each in part["enum"]}
    return {"object"} if "properties" in part else None


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _either(found: list[tuple[T.DataType, bool]]) -> tuple[T.DataType, bool]:
    """The type of values that have one of several types. ``null`` alone is read as a nullable text."""
    nullable = any(can_be_null for _, can_be_null in found)
    kinds = [kind for kind, _ in found if not isinstance(kind, T.NullType)] or [_ANY]
    kind = kinds[0]
    for each in kinds[1:]:
        kind = _common(kind, each)
    return kind, nullable


def _common(one: T.DataType, other: T.DataType) -> T.DataType:
    """The type of values that have one of two types."""
    if one.simpleString() == other.simpleString() and not isinstance(one, T.StructType):
        return one
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        names = [*one.names, *(name for name in other.names if name not in one.names)]
        return T.StructType([_common_field(name, one, other) for name in names])
    if {type(one), type(other)} == {T.LongType, T.DoubleType}:
        return T.DoubleType()
    return _ANY


def _common_field(name: str, one: T.StructType, other: T.StructType) -> T.StructField:
    if name not in one.names or name not in other.names:
        field = one[name] if name in one.names else other[name]
        return T.StructField(name, field.dataType)
    kind = _common(one[name].dataType, other[name].dataType)
    return T.StructField(name, kind, one[name].nullable or other[name].nullable)


def _both(one: T.DataType, other: T.DataType) -> T.DataType:
    """The type of values that have both of two types."""
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        fields = {field.name: field for field in one}
        for field in other:
            same = fields.get(field.name)
            kind = field.dataType if same is None else _both(same.dataType, field.dataType)
            fields[field.name] = T.StructField(field.name, kind, field.nullable and (same is None or same.nullable))
        return T.StructType(list(fields.values()))
    if isinstance(one, T.MapType) and isinstance(other, T.StructType):
        return other
    if isinstance(one, T.StructType) and isinstance(other, T.MapType):
        return one
    return other if isinstance(one, T.StringType) else one


def schema_of_columns(kind: T.DataType) -> dict[str, Any]:
    """Make a schema of draft 7. Properties that are not declared are refused, so that optional ones can be added later.

    Raises:
        ConfigError: JSON has no form of a type.
    """
    if not isinstance(kind, T.StructType):
        msg = f"JsonSchemaCodec writes objects, not {kind.simpleString()}"
        raise ConfigError(msg, fix="return a struct: F.struct(...) in the stage, or use another codec")
    return {"$schema": DRAFT, **_made(kind, "")}


def _made(kind: T.DataType, path: str) -> dict[str, Any]:
    if isinstance(kind, T.StructType):
        properties = {field.name: _made_field(field, field_path(path, field.name)) for field in kind}
        made: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        required = [field.name for field in kind if not field.nullable]
        return {**made, "required": required} if required else made
    if isinstance(kind, T.ArrayType):
        return {"type": "array", "items": _nullable(_made(kind.elementType, path))}
    if isinstance(kind, T.MapType):
        return {"type": "object", "additionalProperties": _nullable(_made(kind.valueType, path))}
    for types, made in _MADE:
        if isinstance(kind, types):
            return dict(made)
    msg = f"column {path!r} is {kind.simpleString()}, which JsonSchemaCodec does not write"
    raise ConfigError(msg, fix="cast it in the stage", column=path)


def _made_field(field: T.StructField, path: str) -> dict[str, Any]:
    made = _made(field.dataType, path)
    return _nullable(made) if field.nullable else made


def _nullable(made: dict[str, Any]) -> dict[str, Any]:
    return made if "type" not in made else {**made, "type": ["null", made["type"]]}


_MADE: tuple[tuple[tuple[type[T.DataType], ...], dict[str, Any]], ...] = (
    ((T.BooleanType,), {"type": "boolean"}),
    ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), {"type": "integer"}),
    ((T.FloatType, T.DoubleType, T.DecimalType), {"type": "number"}),
    ((T.DateType,), {"type": "string", "format": "date"}),
    ((T.TimestampType,), {"type": "string", "format": "date-time"}),
    ((T.BinaryType,), {"type": "string", "contentEncoding": "base64"}),
    ((T.StringType, T.VarcharType, T.CharType, T.TimestampNTZType, T.NullType), {"type": "string"}),
)

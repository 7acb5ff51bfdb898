"""Avro schemas as graphs, and the Spark types that they become.

In a graph, a use of a named type is the same object as its definition. A graph can therefore be walked without a table
of names, and be written as the text of one schema without references.

Source: Apache Avro specification; Spark's ``SchemaConverters``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pyspark.sql import types as T

from kpipe_platform.codecs.types import field_path, require_distinct_names
from kpipe_platform.errors import ConfigError
from kpipe_platform.registry.model import Schema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
MAX_PRECISION = 38
"""Maximum number of digits of a decimal in Spark."""

# Attributes that are kept. Spark's own (spark.sql.catalyst.type) would make Spark read another type.
_LOGICAL = ("logicalType", "precision", "scale")
_INT_TYPES = frozenset({"date", "time-millis"})
TIMESTAMPS = frozenset({"timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"})
"""The logical types that are timestamps in Spark."""
_LONG_TYPES = TIMESTAMPS | {"time-micros", "timestamp-nanos", "local-timestamp-nanos"}
_NAME = re.compile(r"[^\W\d]\w*")
_INT_AND_LONG, _FLOAT_AND_DOUBLE = frozenset({"int", "long"}), frozenset({"float", "double"})


@dataclass(eq=False)
class Node:
    """A type in a schema.

    Attributes:
        type: Name of the type: one of `PRIMITIVES`, or record, enum, fixed, array, map or union.
        name: Full name of a named type.
        fields: Fields of a record.
        inner: The types of a union; the type of the items of an array or the values of a map.
        attributes: Other attributes, such as ``logicalType``, ``symbols`` or ``size``.
    """

    type: str
    name: str | None = None
    fields: list[Field] = field(default_factory=list)
    inner: list[Node] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def logical(self) -> str | None:
        """The logical type, if it is valid for the type and known to kpipe; None otherwise, as Avro requires."""
        name = self.attributes.get("logicalType")
        if name == "decimal" and self.type in ("bytes", "fixed"):
            return "decimal" if self._is_decimal() else None
        known = {"int": _INT_TYPES, "long": _LONG_TYPES}.get(self.type, frozenset())
        return name if name in known else None

    @property
    def precision(self) -> int:
        """Number of digits of a decimal."""
        return int(self.attributes["precision"])

    @property
    def scale(self) -> int:
        """Number of digits after the point of a decimal."""
        return int(self.attributes.get("scale") or 0)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Full names of the aliases of a named type."""
        return tuple(self.attributes.get("aliases", ()))

    @property
    def is_nullable(self) -> bool:
        """Whether a value may be null."""
        return self.type == "null" or (self.type == "union" and any(each.type == "null" for each in self.inner))

    @property
    def members(self) -> list[Node]:
        """The types of a union without null."""
        return [each for each in self.inner if each.type != "null"]

    @property
    def plain(self) -> Node | None:
        """The type that a union stands for in Spark: its only type besides null, or the wider of two number types."""
        members = self.members
        if len(members) == 1:
            return members[0]
        kinds = {each.type for each in members}
        if len(members) == 2 and kinds in (_INT_AND_LONG, _FLOAT_AND_DOUBLE):
            # Spark ignores a logical type here.
            return Node("long" if "long" in kinds else "double")
        return None

    def _is_decimal(self) -> bool:
        precision, scale = self.attributes.get("precision"), self.attributes.get("scale") or 0
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
            return False
        return self.type == "bytes" or precision <= max_precision(self.attributes["size"])


@dataclass(eq=False)
class Field:
    """A field of a record. ``attributes`` may have ``default`` and ``aliases``."""

    name: str
    node: Node
    attributes: dict[str, Any] = field(default_factory=dict)


def max_precision(size: int) -> int:
    """Maximum number of digits of a decimal in so many bytes."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1


@lru_cache(maxsize=256)
def parse_avro(schema: Schema) -> Node:
    """Parse a schema. The result is cached: do not change it.

    Args:
        schema: The text, and the schemas to which it refers.

    Raises:
        ConfigError: The text is not an Avro schema.
    """
    dependencies = schema.dependencies()
    return _Parser({name: _json(each.text) for name, each in dependencies.items()}).parse(_json(schema.text), "", "")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # Registries accept the name of a primitive type without quotes.
        if text.strip() in PRIMITIVES:
            return text.strip()
        msg = f"the Avro schema is not JSON: {error}"
        raise ConfigError(msg, fix=_FIX) from None
    except RecursionError:
        msg = "the Avro schema is nested too deeply"
        raise ConfigError(msg, fix="use named types, or read the topic with RawCodec()") from None


_FIX = "give the text of an Avro schema, such as " + repr(
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
)


class _Parser:
    def __init__(self, dependencies: Mapping[str, Any]) -> None:
        self._dependencies = dependencies
        self._named: dict[str, Node] = {}

    def parse(self, schema: Any, namespace: str, path: str) -> Node:
        if isinstance(schema, str):
            return Node(schema) if schema in PRIMITIVES else self._find(schema, namespace, path)
        if isinstance(schema, list):
            return self._union(schema, namespace, path)
        if not isinstance(schema, dict) or "type" not in schema:
            raise _invalid(path, f"{_shown(schema)} is not a type")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, path)
        if not isinstance(kind, str):
            raise _invalid(path, f"{_shown(kind)} is not a type")
        kind = "record" if kind == "error" else kind
        if kind in NAMED:
            return self._define(kind, schema, namespace, path)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            if inner not in schema:
                raise _invalid(path, f"the {kind} has no {inner!r}")
            return Node(kind, inner=[self.parse(schema[inner], namespace, f"{path}[]")])
        if kind in PRIMITIVES:
            return Node(kind, attributes=_kept(schema))
        return self._find(kind, namespace, path)

    def _find(self, name: str, namespace: str, path: str) -> Node:
        for full in dict.fromkeys((_full(name, namespace), name)):
            if full in self._named:
                return self._named[full]
            if full in self._dependencies:
                found = self.parse(self._dependencies[full], "", path)
                # A schema of a reference may define the type within another one.
                return self._named.get(full, found)
        raise _invalid(path, f"the type {_shown(name)} is not defined")

    def _union(self, schemas: list[Any], namespace: str, path: str) -> Node:
        inner = [self.parse(each, namespace, path) for each in schemas]
        names = [each.name or each.type for each in inner]
        if not inner or "union" in names or len(set(names)) < len(names):
            raise _invalid(path, f"the union {_shown(schemas)} is empty, has a type twice, or has a union")
        return Node("union", inner=inner)

    def _define(self, kind: str, schema: Mapping[str, Any], namespace: str, path: str) -> Node:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise _invalid(path, f"the {kind} has no name")
        full = _full(name, schema.get("namespace", namespace) if "." not in name else "")
        if not all(map(_NAME.fullmatch, full.split("."))):
            raise _invalid(path, f"{full!r} is not a name in Avro")
        if full in self._named or full in PRIMITIVES:
            raise _invalid(path, f"the type {full!r} is defined twice")
        namespace = full.rpartition(".")[0]
        node = Node(kind, name=full, attributes=_kept(schema))
        node.attributes["aliases"] = [_full(each, namespace) for each in schema.get("aliases") or ()]
        self._named[full] = node
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or len(set(map(str, symbols))) < len(symbols):
                raise _invalid(path, f"the enum {full!r} has no symbols, or one of them twice")
            node.attributes["symbols"] = [str(each) for each in symbols]
            if schema.get("default") in node.attributes["symbols"]:
                node.attributes["default"] = schema["default"]
        elif kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 0:
                raise _invalid(path, f"the fixed {full!r} has no size")
            node.attributes["size"] = size
        else:
            node.fields = list(self._fields(schema, namespace, path or full))
        return node

    def _fields(self, schema: Mapping[str, Any], namespace: str, path: str) -> Iterator[Field]:
        fields, names = schema.get("fields"), set()
        if not isinstance(fields, list):
            raise _invalid(path, "the record has no fields")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str) or "type" not in each:
                raise _invalid(path, f"{_shown(each)} is not a field with a name and a type")
            name = each["name"]
            if not _NAME.fullmatch(name):
                raise _invalid(path, f"{name!r} is not a name in Avro")
            if name in names:
                raise _invalid(path, f"the field {name!r} is declared twice")
            names.add(name)
            attributes = {key: each[key] for key in ("default", "aliases") if key in each}
            # The type may have its logical type beside it, as some tools write it.
            yield Field(name, self.parse(each["type"], namespace, f"{path}.{name}"), attributes)


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _kept(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in _LOGICAL if key in schema}


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _invalid(path: str, problem: str) -> ConfigError:
    return ConfigError(f"Avro schema{f', {path}' if path else ''}: {problem}", fix=_FIX)


def to_text(node: Node, attributes: Callable[[Node], dict[str, Any]] = lambda node: node.attributes) -> str:
    """Return a graph as the text of a schema, with each named type defined where it is first used.

    Args:
        node: The graph.
        attributes: Returns the attributes to write for a type; its own by default.
    """
    return json.dumps(_to_json(node, attributes, set()))


def _to_json(node: Node, attributes: Callable[[Node], dict[str, Any]], defined: set[str]) -> Any:
    if node.type == "union":
        return [_to_json(each, attributes, defined) for each in node.inner]
    if node.name is not None:
        if node.name in defined:
            return node.name
        defined.add(node.name)
        # An empty namespace, because otherwise the name would be in the namespace of the type around it.
        made = {"type": node.type, "name": node.name, "namespace": "", **attributes(node)}
        if node.type == "record":
            made["fields"] = [
                {"name": each.name, "type": _to_json(each.node, attributes, defined), **each.attributes}
                for each in node.fields
            ]
        return made
    if node.type in ("array", "map"):
        inner = _to_json(node.inner[0], attributes, defined)
        return {"type": node.type, "items" if node.type == "array" else "values": inner}
    own = attributes(node)
    return {"type": node.type, **own} if own else node.type


def without_logical(node: Node) -> dict[str, Any]:
    """Return a type's attributes without those of its logical type, for `to_text`."""
    return {name: value for name, value in node.attributes.items() if name not in _LOGICAL}


def spark_type(node: Node) -> T.DataType:
    """Return the Spark type of a schema's values, as ``from_avro`` returns them. ``nullable`` is that of the schema.

    Raises:
        ConfigError: The schema cannot be represented in Spark, or kpipe cannot read it without losing values.
    """
    kind = _spark_type(node, "", ())
    require_distinct_names(kind, "Avro schema")
    return kind


def _spark_type(node: Node, path: str, within: tuple[Node, ...]) -> T.DataType:
    if node.type == "record":
        if node in within:
            raise _not_for_spark(path, f"the type {node.name!r} contains itself, which columns in Spark cannot")
        return _struct([(each.name, each.node) for each in node.fields], path, (*within, node))
    if node.type == "union":
        return _union_type(node, path, within)
    if node.type == "array":
        return T.ArrayType(_spark_type(node.inner[0], f"{path}[]", within), node.inner[0].is_nullable)
    if node.type == "map":
        return T.MapType(T.StringType(), _spark_type(node.inner[0], f"{path}[]", within), node.inner[0].is_nullable)
    if node.logical == "decimal":
        if node.precision > MAX_PRECISION:
            raise _not_for_spark(path, f"a decimal of {node.precision} digits; Spark has at most {MAX_PRECISION}")
        return T.DecimalType(node.precision, node.scale)
    return _SCALARS[node.logical or node.type]()


def _union_type(node: Node, path: str, within: tuple[Node, ...]) -> T.DataType:
    if not node.members:
        raise _not_for_spark(path, "a union that has no type except null")
    if node.plain is not None:
        return _spark_type(node.plain, path, within)
    members = [
        T.StructField(f"member{i}", _spark_type(each, f"{path}.member{i}", within))
        for i, each in enumerate(node.members)
    ]
    return T.StructType(members)


def _struct(fields: list[tuple[str, Node]], path: str, within: tuple[Node, ...]) -> T.StructType:
    kinds = [(name, _spark_type(node, field_path(path, name), within), node.is_nullable) for name, node in fields]
    return T.StructType([T.StructField(*each) for each in kinds])


def _not_for_spark(path: str, problem: str) -> ConfigError:
    fix = "give a reader schema without this field, or read the topic with RawCodec()"
    return ConfigError(f"Avro schema{f', {path}' if path else ''}: {problem}", fix=fix)


# Spark has a type TIME, but only for time-micros, and a single value out of range fails the job. So times are numbers.
_SCALARS: dict[str, type[T.DataType]] = {
    "null": T.NullType,
    "boolean": T.BooleanType,
    "int": T.IntegerType,
    "long": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "bytes": T.BinaryType,
    "fixed": T.BinaryType,
    "string": T.StringType,
    "enum": T.StringType,
    "date": T.DateType,
    "time-millis": T.IntegerType,
    "time-micros": T.LongType,
    "timestamp-millis": T.TimestampType,
    "timestamp-micros": T.TimestampType,
    "timestamp-nanos": T.LongType,
    "local-timestamp-millis": T.TimestampNTZType,
    "local-timestamp-micros": T.TimestampNTZType,
    "local-timestamp-nanos": T.LongType,
}

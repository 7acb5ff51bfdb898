"""Strategies for Avro schemas, values and evolved schemas."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st

from kpipe_platform.codecs.avro.schema import Node

SCALARS: list[Any] = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 9},
    {"type": "int", "logicalType": "no-such-type"},
]


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """A record with a few fields, some of them nested."""
    numbers = itertools.count()

    def named(kind: str, **own: Any) -> dict[str, Any]:
        return {"type": kind, "name": f"{draw(st.sampled_from(['', 'a.']))}N{next(numbers)}", **own}

    def node(depth: int) -> Any:
        kinds = ["scalar"] * 6 + ["enum", "fixed", "decimal", "nullable", "union", "numbers"]
        kinds += ["record", "array", "map"] if depth < 3 else []
        kind = draw(st.sampled_from(kinds))
        if kind == "scalar":
            return draw(st.sampled_from(SCALARS))
        if kind == "enum":
            return named("enum", symbols=["A", "B", "C"])
        if kind == "fixed":
            return named("fixed", size=draw(st.integers(1, 5)))
        if kind == "decimal":
            size = draw(st.sampled_from([3, 8, 9, 16]))
            return named("fixed", size=size, logicalType="decimal", precision=6, scale=draw(st.integers(0, 6)))
        if kind == "nullable":
            inner = node(depth + 1)
            return inner if isinstance(inner, list) else draw(st.sampled_from([["null", inner], [inner, "null"]]))
        if kind == "numbers":
            return draw(st.sampled_from([["int", "long"], ["null", "double", "float"], ["long", "null", "int"]]))
        if kind == "union":
            return union(depth)
        if kind == "record":
            return record(depth + 1)
        return (
            {"type": "array", "items": node(depth + 1)}
            if kind == "array"
            else {"type": "map", "values": node(depth + 1)}
        )

    def union(depth: int) -> list[Any]:
        members = ["null", "int", "long", "float", "string", "bytes", "boolean", "double"]
        chosen: list[Any] = draw(st.lists(st.sampled_from(members), min_size=1, max_size=4, unique=True))
        if draw(st.booleans()):
            chosen.append(named("enum", symbols=["A", "B"]))
        if draw(st.booleans()) and depth < 3:
            chosen += [record(depth + 1), record(depth + 1)]
        if draw(st.booleans()):
            chosen.append({"type": "array", "items": "int"})
        return chosen if set(map(str, chosen)) != {"null"} else ["null", "string"]

    def record(depth: int) -> dict[str, Any]:
        fields = [{"name": f"f{i}", "type": node(depth)} for i in range(draw(st.integers(1, 4)))]
        return named("record", fields=fields)

    return record(0)


def values(node: Node) -> st.SearchStrategy[Any]:
    """Values of a type, in the form of Spark."""
    if node.type == "record":
        return st.fixed_dictionaries({each.name: values(each.node) for each in node.fields})
    if node.type == "union":
        return _union_values(node)
    if node.type == "array":
        return st.lists(values(node.inner[0]), max_size=3)
    if node.type == "map":
        return st.dictionaries(st.text(max_size=3), values(node.inner[0]), max_size=3)
    return _scalar_values(node)


def _union_values(node: Node) -> st.SearchStrategy[Any]:
    nulls = [st.none()] if node.is_nullable else []
    if node.plain is not None:
        return st.one_of(*nulls, values(node.plain))
    members = node.members

    def of(index: int) -> st.SearchStrategy[Any]:
        return values(members[index]).map(
            lambda value: {f"member{i}": value if i == index else None for i in range(len(members))}
        )

    return st.one_of(*nulls, *map(of, range(len(members))))


def _scalar_values(node: Node) -> st.SearchStrategy[Any]:
    if node.logical == "decimal":
        limit = 10**node.precision - 1
        return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-node.scale))
    if node.logical == "date":
        return st.dates()
    if node.logical is not None and "timestamp" in node.logical and "nanos" not in node.logical:
        zone = None if "local" in node.logical else dt.timezone.utc
        moments = st.datetimes().map(lambda moment: moment.replace(tzinfo=zone))
        if node.logical.endswith("millis"):
            return moments.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
        return moments
    if node.type == "float":
        return st.floats(width=32, allow_nan=False)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "double": st.floats(allow_nan=False),
        "bytes": st.binary(max_size=5),
        "string": st.text(max_size=5),
    }
    if node.type == "enum":
        return st.sampled_from(node.attributes["symbols"])
    if node.type == "fixed":
        return st.binary(min_size=node.attributes["size"], max_size=node.attributes["size"])
    return kinds[node.type]


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """A later version of a schema: fields added, removed, renamed and reordered, types promoted, symbols changed."""
    if isinstance(schema, list):
        made = [draw(evolved(each)) for each in schema]
        if draw(st.integers(0, 4)) == 0 and "null" not in made:
            made.insert(0, "null")
        return made if len({str(each) for each in made}) == len(made) else schema
    if isinstance(schema, str):
        return draw(st.sampled_from(_PROMOTED.get(schema, [schema])))
    kind = schema["type"]
    if kind == "record":
        fields = [_field(draw, each) for each in schema["fields"]]
        if len(fields) > 1 and draw(st.booleans()):
            fields.pop(draw(st.integers(0, len(fields) - 1)))
        if draw(st.booleans()):
            fields.insert(draw(st.integers(0, len(fields))), draw(st.sampled_from(_ADDED)))
        return {**schema, **_name(draw, schema), "fields": draw(st.permutations(fields))}
    if kind == "enum":
        other = draw(st.sampled_from([{}, {"symbols": ["B", "A"], "default": "A"}, {"symbols": ["A"]}]))
        return {**schema, **_name(draw, schema), **other}
    if kind == "fixed":
        return {**schema, **_name(draw, schema)}
    if kind == "array":
        return {**schema, "items": draw(evolved(schema["items"]))}
    if kind == "map":
        return {**schema, "values": draw(evolved(schema["values"]))}
    return draw(st.sampled_from([schema, schema, *_CHANGED.get(schema.get("logicalType"), [])]))


def _field(draw: st.DrawFn, field: dict[str, Any]) -> dict[str, Any]:
    made = {**field, "type": draw(evolved(field["type"]))}
    if draw(st.integers(0, 5)) == 0:
        made |= {"name": f"new_{field['name']}", "aliases": [field["name"]]}
    if not isinstance(made["type"], list) and draw(st.integers(0, 5)) == 0:
        made["type"] = draw(st.sampled_from([["null", made["type"]], [made["type"], "null"]]))
    return made


def _name(draw: st.DrawFn, schema: dict[str, Any]) -> dict[str, Any]:
    if draw(st.integers(0, 5)) > 0:
        return {}
    name = schema["name"]
    return draw(st.sampled_from([{"name": f"{name}x", "aliases": [name]}, {"name": f"{name}y"}]))


_PROMOTED = {
    "int": ["int", "long", "float", "double"],
    "long": ["long", "float", "double"],
    "float": ["float", "double"],
    "string": ["string", "bytes"],
    "bytes": ["bytes", "string", "string"],
}
_CHANGED: dict[Any, list[Any]] = {
    "timestamp-millis": [
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "long",
    ],
    "timestamp-micros": [{"type": "long", "logicalType": "timestamp-millis"}],
    "date": [{"type": "long", "logicalType": "timestamp-millis"}, "int", "long"],
    "decimal": [{"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}, "bytes"],
}
_ADDED: list[Any] = [
    {"name": "add0", "type": ["null", "int"], "default": None},
    {"name": "add1", "type": "string", "default": "x"},
    {"name": "add2", "type": "bytes", "default": "\u00ff\u0001"},
    {"name": "add3", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 5},
    {"name": "add4", "type": {"type": "array", "items": "double"}, "default": [1, 2.5]},
    {
        "name": "add5",
        "type": {"type": "record", "name": "Added", "fields": [{"name": "q", "type": "int", "default": 3}]},
        "default": {},
    },
    {"name": "add6", "type": ["string", "null", "long"], "default": "y"},
    {"name": "add7", "type": {"type": "map", "values": "float"}, "default": {"k": 1}},
    {"name": "add8", "type": "int"},
]


def as_arrow(value: Any, node: Node) -> Any:
    """A value in the form in which Arrow returns it. A float has 32 bits there already."""
    return value


def to_float32(number: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded

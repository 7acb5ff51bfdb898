"""Resolution of a writer's schema into a reader's, for single records.

It follows Avro's Java implementation, which Spark uses: which type of a union is chosen, which names must be equal, how
aliases and defaults work. It differs in one point: Java ignores logical types. A decimal whose scale changed, or a date
that became a timestamp, would be a wrong value. kpipe refuses such schemas. If only the unit of a timestamp changed,
the value is converted.

Source: Apache Avro specification, "Schema Resolution"; ``org.apache.avro.Resolver`` and ``Schema.applyAliases``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from kpipe_platform.codecs.avro.scalars import from_raw, single_float
from kpipe_platform.codecs.avro.schema import NAMED, TIMESTAMPS, Node, parse_avro
from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.codecs.types import field_path
from kpipe_platform.registry.model import Schema

SCHEMA_MISMATCH = "schema_mismatch"
"""The schema of the record cannot be resolved into the schema that the topic is read with."""

_Decode = Callable[[Any], Any]
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class RawInt(int):
    """An ``int`` of a union that has ``long`` too. Python has one type for both."""


class RawFloat(float):
    """A ``float`` of a union that has ``double`` too. Python has one type for both."""


@dataclass
class Resolution:
    """How to read one writer's records.

    Attributes:
        writer: The writer's schema.
        reader: The reader's schema, with the name of the writer's record.
        decode: Converts what fastavro reads with the writer's schema into a value of the reader's Spark type.
        units: Logical types of the reader that differ for this writer, by the reader's types.
        conflicts: Why values would be wrong; empty if they are not.
    """

    writer: Node
    reader: Node
    decode: _Decode = field(init=False)
    units: dict[int, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)


@lru_cache(maxsize=256)
def resolve(writer: Schema, reader: Schema) -> Resolution:
    """Resolve a writer's schema into a reader's. The result is cached: do not change it.

    Raises:
        ConfigError: A text is not an Avro schema.
    """
    found = Resolution(parse_avro(writer), _renamed(parse_avro(reader), parse_avro(writer)))
    found.decode = _Resolver(found).resolve(found.writer, found.reader, "")
    return found


def _renamed(reader: Node, writer: Node) -> Node:
    """Give the reader's record the name of the writer's, because programs name the record of a topic differently."""
    if reader.type != "record" or writer.type != "record" or reader.name == writer.name:
        return reader
    if any(each.name == writer.name for each in _named(reader, {})):
        return reader
    return replace(reader, name=writer.name)


def _named(node: Node, met: dict[int, Node]) -> Iterator[Node]:
    if id(node) not in met:
        met[id(node)] = node
        if node.name is not None:
            yield node
        for inner in (*node.inner, *(each.node for each in node.fields)):
            yield from _named(inner, met)


class _Resolver:
    def __init__(self, found: Resolution) -> None:
        self._found = found
        self._names: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        for node in _named(found.reader, {}):
            assert node.name is not None  # noqa: S101  # by `_named`
            self._names.update(dict.fromkeys(node.aliases, node.name))
            renamed = self._fields.setdefault(node.name, {})
            for each in node.fields:
                renamed.update(dict.fromkeys(each.attributes.get("aliases") or (), each.name))

    def resolve(self, writer: Node, reader: Node, path: str) -> _Decode:
        if writer.type == "union":
            return self._from_union(writer, reader, path)
        if reader.type == "union":
            return self._into_union(writer, reader, path)
        if writer.type in _PROMOTIONS and reader.type in _PROMOTIONS[writer.type]:
            return self._scalar(writer, reader, path, _promotion(writer.type, reader.type))
        if writer.type != reader.type or not self._is_same(writer, reader):
            return _mismatch(path, f"{_label(writer)} cannot be read as {_label(reader)}")
        if reader.type == "record":
            return self._record(writer, reader, path)
        if reader.type == "enum":
            return _enum(writer, reader, path)
        if reader.type == "array":
            item = self.resolve(writer.inner[0], reader.inner[0], f"{path}[]")
            return lambda raw: [item(each) for each in raw]
        if reader.type == "map":
            value = self.resolve(writer.inner[0], reader.inner[0], f"{path}[]")
            return lambda raw: {name: value(each) for name, each in raw.items()}
        return self._scalar(writer, reader, path, None)

    def _name(self, writer: Node) -> str:
        assert writer.name is not None  # noqa: S101  # only for named types
        return self._names.get(writer.name, writer.name)

    def _is_same(self, writer: Node, reader: Node) -> bool:
        if reader.type in ("enum", "fixed") and self._name(writer) != reader.name:
            return False
        return reader.type != "fixed" or writer.attributes["size"] == reader.attributes["size"]

    def _from_union(self, writer: Node, reader: Node, path: str) -> _Decode:
        branches = {each.name or each.type: self.resolve(each, reader, path) for each in writer.inner}
        return lambda raw: branches[raw[0]](raw[1]) if type(raw) is tuple else branches[_branch(raw, branches)](raw)

    def _into_union(self, writer: Node, reader: Node, path: str) -> _Decode:
        index = self._matching(writer, reader)
        if index is None:
            return _mismatch(path, f"{_label(writer)} cannot be read as {_label(reader)}")
        chosen = reader.inner[index]
        if chosen.type == "null":
            return lambda _: None
        if len(reader.members) == 1:
            return self.resolve(writer, chosen, path)
        if reader.plain is not None:
            # Two number types, of which Spark ignores the logical types.
            return self.resolve(Node(writer.type), Node(chosen.type), path)
        number = reader.members.index(chosen)
        inner = self.resolve(writer, chosen, f"{path}.member{number}")
        names = [f"member{i}" for i in range(len(reader.members))]
        return lambda raw: {name: inner(raw) if i == number else None for i, name in enumerate(names)}

    def _matching(self, writer: Node, reader: Node) -> int | None:
        """Index of the type of a union into which a value is read."""
        structure: int | None = None
        for index, each in enumerate(reader.inner):
            if each.type != writer.type:
                continue
            if each.type not in NAMED or self._name(writer) == each.name:
                return index
            if each.type == "record" and self._fits(writer, each):
                same = self._name(writer).rpartition(".")[2] == (each.name or "").rpartition(".")[2]
                if structure is None or same:
                    structure = index
        if structure is not None:
            return structure
        promotions = _PROMOTIONS.get(writer.type, ())
        return next((index for index, each in enumerate(reader.inner) if each.type in promotions), None)

    def _fits(self, writer: Node, reader: Node) -> bool:
        """Whether a record has all fields that another one needs, with types that can be resolved."""
        written = {each.name: each.node for each in writer.fields}
        probe = _Resolver(Resolution(writer, reader))
        for each in reader.fields:
            if each.name not in written:
                if "default" not in each.attributes:
                    return False
            elif isinstance(probe.resolve(written[each.name], each.node, ""), _Mismatch):
                return False
        return True

    def _record(self, writer: Node, reader: Node, path: str) -> _Decode:
        renamed = self._fields.get(self._name(writer), {})
        written = {renamed.get(each.name, each.name): each for each in writer.fields}
        decoders: list[tuple[str, str, _Decode]] = []
        defaults: dict[str, Any] = {}
        for each in reader.fields:
            where = field_path(path, each.name)
            found = written.get(each.name)
            if found is not None:
                decoders.append((each.name, found.name, self.resolve(found.node, each.node, where)))
            elif "default" not in each.attributes:
                return _mismatch(where, "the record does not have this field, and it has no default")
            else:
                try:
                    defaults[each.name] = default_value(each.node, each.attributes["default"])
                except (DecodeFault, KeyError, TypeError, ValueError):
                    return _mismatch(where, "its default is not a value of its type")
        names = [each.name for each in reader.fields]

        def decode(raw: Any) -> dict[str, Any]:
            value = {name: read(raw[own]) for name, own, read in decoders}
            return {name: value[name] if name in value else defaults[name] for name in names}

        return decode

    def _scalar(self, writer: Node, reader: Node, path: str, promote: _Decode | None) -> _Decode:
        logical = reader.logical
        if writer.logical in TIMESTAMPS and logical in TIMESTAMPS:
            logical = logical.rpartition("-")[0] + "-" + writer.logical.rpartition("-")[2]
            if self._found.units.setdefault(id(reader), logical) != logical:
                self._conflict(path, "it is used with two units of a timestamp")
        elif writer.logical is not None and logical is not None and writer.logical != logical:
            self._conflict(path, f"{writer.logical} became {logical}")
        elif logical == "decimal" == writer.logical and writer.scale != reader.scale:
            self._conflict(path, f"a decimal with {writer.scale} digits after the point now has {reader.scale}")
        convert = from_raw(reader, logical, path)
        return convert if promote is None else lambda raw: convert(promote(raw))

    def _conflict(self, path: str, reason: str) -> None:
        self._found.conflicts.append(f"{path or 'the value'}: {reason}")


class _Mismatch:
    def __init__(self, reason: str, path: str) -> None:
        self._reason, self._path = reason, path

    def __call__(self, raw: Any) -> Any:
        raise DecodeFault(self._reason, kind=SCHEMA_MISMATCH, field=self._path or None)


def _mismatch(path: str, reason: str) -> _Mismatch:
    return _Mismatch(f"{path or 'the value'}: {reason}", path)


def _enum(writer: Node, reader: Node, path: str) -> _Decode:
    symbols = frozenset(reader.attributes["symbols"])
    default = reader.attributes.get("default")

    def decode(raw: Any) -> Any:
        if raw in symbols:
            return raw
        if default is None:
            msg = f"{path or 'the value'}: the enum {reader.name!r} has no symbol {raw!r}, and no default"
            raise DecodeFault(msg, kind=SCHEMA_MISMATCH, field=path or None)
        return default

    return decode


def _promotion(writer: str, reader: str) -> _Decode:
    if reader == "long":
        return int
    if reader == "float":
        return single_float
    if reader == "double":
        return float
    return (lambda raw: raw.encode()) if reader == "bytes" else (lambda raw: str(raw, "utf-8"))


def _branch(raw: Any, branches: dict[str, Any]) -> str:
    """The type of a union's value that has no name."""
    if raw is None:
        return "null"
    if isinstance(raw, bool):
        return "boolean"
    if isinstance(raw, int):
        return "int" if isinstance(raw, RawInt) or "long" not in branches else "long"
    if isinstance(raw, float):
        return "float" if isinstance(raw, RawFloat) or "double" not in branches else "double"
    kinds: dict[Any, str] = {str: "string", bytes: "bytes", list: "array", dict: "map"}
    return kinds[type(raw)]


def _label(node: Node) -> str:
    if node.type == "union":
        return f"[{', '.join(map(_label, node.inner))}]"
    return f"{node.type} {node.name!r}" if node.name else node.type


def default_value(node: Node, default: Any) -> Any:
    """Return a field's default as a value of its Spark type.

    Raises:
        DecodeFault, KeyError, TypeError, ValueError: It is not a value of the type.
    """
    if node.type == "union":
        chosen = next(each for each in node.inner if _may_be(each, default))
        if chosen.type == "null":
            return None
        if node.plain is not None:
            return default_value(node.plain, default)
        return {f"member{i}": default_value(m, default) if m is chosen else None for i, m in enumerate(node.members)}
    if not _may_be(node, default):
        msg = f"{default!r:.60} is not a value of {_label(node)}"
        raise ValueError(msg)
    if node.type == "record":
        return {
            each.name: default_value(
                each.node, default[each.name] if each.name in default else each.attributes["default"]
            )
            for each in node.fields
        }
    if node.type == "array":
        return [default_value(node.inner[0], each) for each in default]
    if node.type == "map":
        return {name: default_value(node.inner[0], each) for name, each in default.items()}
    if node.type in ("bytes", "fixed"):
        default = default.encode("latin-1")
    elif node.type in ("float", "double"):
        default = float(default)
    return from_raw(node, node.logical, "")(default)


def _may_be(node: Node, default: Any) -> bool:
    if node.type in ("int", "long"):
        return isinstance(default, int) and not isinstance(default, bool)
    if node.type in ("float", "double"):
        return isinstance(default, int | float) and not isinstance(default, bool)
    kinds: dict[str, type] = {"null": type(None), "boolean": bool, "array": list, "map": dict, "record": dict}
    return isinstance(default, kinds.get(node.type, str))

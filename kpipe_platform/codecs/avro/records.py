"""Decode and encode single records with fastavro.

fastavro reads and writes without logical types and with the writer's schema only. The rest follows Spark; see
`kpipe_platform.codecs.avro.resolution`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kpipe_platform.codecs.avro.resolution import RawFloat, RawInt, default_value, resolve
from kpipe_platform.codecs.avro.scalars import to_raw
from kpipe_platform.codecs.avro.schema import Node, parse_avro, to_text, without_logical
from kpipe_platform.codecs.faults import NOT_ENCODABLE, NULL_FIELD, DecodeFault, EncodeFault
from kpipe_platform.codecs.text import not_utf8
from kpipe_platform.codecs.types import field_path
from kpipe_platform.errors import require_packages
from kpipe_platform.registry.model import Schema

NOT_AVRO = "not_avro"
"""The bytes are not a value of the Avro schema that they were written with."""
TRUNCATED = "truncated"
"""The bytes end within the value."""
TRAILING_BYTES = "trailing_bytes"
"""Bytes follow the value."""

# Logical types that only kpipe has, with which fastavro marks the smaller of two number types in a union.
_MARKS = {"int": "kpipe-int", "float": "kpipe-float"}


def require_fastavro() -> None:
    """Check that fastavro is installed.

    Raises:
        EnvironmentSetupError: It is not.
    """
    require_packages("AvroCodec", "avro", "fastavro")


def decode_avro(payload: bytes, writer: Schema, reader: Schema) -> Any:
    """Decode a value.

    Args:
        payload: The bytes, without the id of the schema.
        writer: The schema that they were written with.
        reader: The schema of the result.

    Returns:
        The value in the form of Spark: a record is a dict, a union of several types a dict with their members.

    Raises:
        DecodeFault: The bytes are not a value of the writer's schema, or it does not resolve into the reader's.
    """
    import fastavro

    resolution = resolve(writer, reader)
    if resolution.conflicts:
        msg = f"the schema of the record has other logical types: {'; '.join(resolution.conflicts)}"
        raise DecodeFault(msg, kind="schema_mismatch")
    stream = io.BytesIO(payload)
    try:
        raw = fastavro.schemaless_reader(stream, _physical(writer), None, return_named_type=True)
    except EOFError:
        msg = f"the value ends after {len(payload)} bytes, within a field"
        raise DecodeFault(msg, kind=TRUNCATED) from None
    except UnicodeDecodeError as error:
        raise not_utf8(error, " of a string") from None
    except Exception as error:  # noqa: BLE001 - fastavro raises errors of many types for wrong bytes
        msg = f"not a value of the Avro schema: {type(error).__name__}: {error!s:.100}"
        raise DecodeFault(msg, kind=NOT_AVRO) from None
    try:
        value = resolution.decode(raw)
    except UnicodeDecodeError as error:
        raise not_utf8(error, " of a string") from None
    rest = len(payload) - stream.tell()
    if rest:
        msg = f"{rest} bytes follow the value, which ends at position {stream.tell()}"
        raise DecodeFault(msg, kind=TRAILING_BYTES)
    return value


def encode_avro(value: Any, schema: Schema) -> bytes:
    """Encode a value that is not null.

    Raises:
        EncodeFault: It does not fit the schema.
    """
    import fastavro

    node = parse_avro(schema)
    stream = io.BytesIO()
    raw = _written(node, value, "")
    fastavro.schemaless_writer(stream, _physical(schema), raw)
    return stream.getvalue()


def _written(node: Node, value: Any, path: str) -> Any:
    """Convert a value to what fastavro writes. A union is a tuple of a type and a value."""
    if node.type == "union":
        return _written_union(node, value, path)
    if node.type == "null":
        if value is not None:
            raise _misfit(path, value, "null")
        return None
    if value is None:
        msg = f"{repr(path) if path else 'the value'} is null, which the Avro schema does not allow"
        raise EncodeFault(msg, kind=NULL_FIELD, field=path or None)
    if node.type == "record":
        return _written_record(node, value, path)
    if node.type == "array":
        if not isinstance(value, list | tuple):
            raise _misfit(path, value, "array")
        return [_written(node.inner[0], each, f"{path}[{i}]") for i, each in enumerate(value)]
    if node.type == "map":
        if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
            raise _misfit(path, value, "map")
        return {name: _written(node.inner[0], each, f"{path}[{name!r}]") for name, each in value.items()}
    return to_raw(node, value, path)


def _written_union(node: Node, value: Any, path: str) -> Any:
    if value is None and node.is_nullable:
        return ("null", None)
    if node.plain is not None:
        written = _written(node.plain, value, path)
        chosen = node.plain if len(node.members) > 1 else node.members[0]
        return (chosen.name or chosen.type, written)
    names = {f"member{i}": each for i, each in enumerate(node.members)}
    given = {name: each for name, each in value.items() if each is not None} if isinstance(value, Mapping) else {}
    if len(given) != 1 or not given.keys() <= names.keys():
        raise _misfit(path, value, f"union: a dict with one of {', '.join(names)}")
    ((name, each),) = given.items()
    return (names[name].name or names[name].type, _written(names[name], each, f"{path}.{name}"))


def _written_record(node: Node, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _misfit(path, value, f"record {node.name!r}")
    unknown = [name for name in value if name not in {each.name for each in node.fields}]
    if unknown:
        msg = f"{unknown[0]!r} is not a field of the record {node.name!r}"
        raise EncodeFault(msg, kind=NOT_ENCODABLE, field=str(unknown[0]))
    written = {}
    for each in node.fields:
        where = field_path(path, each.name)
        own = value.get(each.name)
        if each.name not in value and "default" in each.attributes:
            own = default_value(each.node, each.attributes["default"])
        written[each.name] = _written(each.node, own, where)
    return written


def _misfit(path: str, value: Any, expected: str) -> EncodeFault:
    msg = f"{path or 'the value'}: {type(value).__name__} {value!r:.60} does not fit {expected}"
    return EncodeFault(msg, kind=NOT_ENCODABLE, field=path or None)


@lru_cache(maxsize=256)
def _physical(schema: Schema) -> Any:
    """Parse a schema for fastavro, without logical types."""
    import json

    import fastavro

    _mark_numbers()
    node = parse_avro(schema)
    marked = _marked(node, set())
    text = to_text(node, lambda each: {"logicalType": _MARKS[each.type]} if each in marked else without_logical(each))
    # Its defaults are not used to read or write.
    return fastavro.parse_schema(_without_defaults(json.loads(text)))


def _marked(node: Node, met: set[Node]) -> set[Node]:
    """The int and float types of unions that have long or double too."""
    if node in met:
        return set()
    met.add(node)
    kinds = {each.type for each in node.inner}
    found = set()
    if node.type == "union":
        pairs = (("int", "long"), ("float", "double"))
        found = {each for each in node.inner for small, big in pairs if each.type == small and big in kinds}
    for inner in (*node.inner, *(each.node for each in node.fields)):
        found |= _marked(inner, met)
    return found


def _without_defaults(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_defaults(each) for name, each in schema.items() if name not in ("default", "aliases")}


@lru_cache(maxsize=1)
def _mark_numbers() -> None:
    from fastavro.read import LOGICAL_READERS

    LOGICAL_READERS["int-kpipe-int"] = lambda number, *_: RawInt(number)
    LOGICAL_READERS["float-kpipe-float"] = lambda number, *_: RawFloat(number)

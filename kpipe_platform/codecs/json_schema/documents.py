"""JSON Schemas: parsing, references, and validation with jsonschema-rs.

Nothing here uses a network. A reference leads within the schema, to a reference that the registry resolved, or to a
meta-schema that the library has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote, urljoin

from kpipe_platform.codecs.faults import DecodeFault
from kpipe_platform.errors import ConfigError, require_packages
from kpipe_platform.registry.model import Schema

SCHEMA_VIOLATION = "schema_violation"
"""The record violates its JSON Schema."""

MAX_SCHEMA_BYTES = 1_000_000
"""Maximum size of a schema with its references, UTF-8. Each task gets the schemas of the slice."""

# Base of relative references. Nothing is loaded from it.
_BASE = "http://schema.invalid/"
_MAX_MESSAGE, _MAX_ENDS = 240, 120
# The default of Confluent's serializers for a schema without $schema.
_DEFAULT_DRAFT = "Draft7Validator"


class Validator(Protocol):
    """A compiled schema."""

    def is_valid(self, instance: Any) -> bool:
        """Return whether the instance is valid."""

    def iter_errors(self, instance: Any) -> Iterator[Any]:
        """Return the violations."""


def require() -> None:
    """Check that the optional package is installed.

    Raises:
        EnvironmentSetupError: It is missing.
    """
    require_packages("JsonSchemaCodec", "jsonschema", "jsonschema_rs")


@lru_cache(maxsize=256)
def document(schema: Schema) -> Any:
    """Parse a schema. The result is shared: do not change it.

    Raises:
        ConfigError: It is too large, not JSON, or neither an object nor a boolean.
    """
    size = len(schema.text.encode()) + sum(len(each.text.encode()) for each in schema.dependencies().values())
    if size > MAX_SCHEMA_BYTES:
        msg = f"the JSON Schema has {size:,} bytes with its references; kpipe accepts up to {MAX_SCHEMA_BYTES:,}"
        raise ConfigError(msg, fix="declare only the fields that the asset uses, or read the topic with JsonCodec(...)")
    try:
        found = json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        msg = f"the JSON Schema is not JSON: {error}"
        raise ConfigError(msg, fix="give the JSON text of a JSON Schema") from error
    if not isinstance(found, dict | bool):
        msg = f"the JSON Schema is {type(found).__name__}; a schema is an object"
        raise ConfigError(msg, fix='for example {"type": "object", "properties": {"id": {"type": "integer"}}}')
    return found


@lru_cache(maxsize=256)
def validator(schema: Schema, formats: bool) -> Validator:
    """Compile a schema.

    Args:
        schema: The schema.
        formats: Whether a text must have the format that the schema gives it.

    Raises:
        ConfigError: It is not a schema, or it has a reference that cannot be resolved.
        EnvironmentSetupError: The extra ``jsonschema`` is not installed.
    """
    require()
    import jsonschema_rs

    root = document(schema)

    def retrieve(uri: str) -> Any:
        return _target(schema, _base(root), uri)

    has_draft = isinstance(root, dict) and "$schema" in root
    make = jsonschema_rs.validator_for if has_draft else getattr(jsonschema_rs, _DEFAULT_DRAFT)
    try:
        compiled: Validator = make(root, validate_formats=formats, retriever=retrieve, base_uri=_BASE)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        problem = str(error).partition("\n")[0]
        msg = f"the JSON Schema is invalid: {_shortened(problem)}"
        fix = "correct the schema; a $ref leads within it, or to a reference that is registered with it"
        raise ConfigError(msg, fix=fix) from error
    return compiled


def violation(schema: Schema, text: str, formats: bool) -> DecodeFault | None:
    """Return the first violation of a schema by a JSON text; None if it is valid."""
    try:
        instance = json.loads(text, parse_constant=_refuse_constant)
        error = next(iter(validator(schema, formats).iter_errors(instance)), None)
    except (ValueError, RecursionError) as refusal:
        return DecodeFault(f"cannot be validated: {_shortened(str(refusal))}", kind=SCHEMA_VIOLATION)
    if error is None:
        return None
    path = _path(error.instance_path)
    where = f'field "{path}": ' if path else ""
    return DecodeFault(where + _shortened(error.message), kind=SCHEMA_VIOLATION, field=path or None)


def is_valid(schema: Schema, text: bytes, formats: bool) -> bool:
    """Return whether a JSON text is valid."""
    try:
        return validator(schema, formats).is_valid(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return False


def follow(schema: Schema, base: Any, reference: str) -> tuple[Any, Any]:
    """Resolve a ``$ref``.

    Args:
        schema: The schema, with the references that the registry resolved.
        base: The document in which the reference is.
        reference: The text of the reference.

    Returns:
        The document, and the part of it that the reference names.

    Raises:
        ConfigError: It cannot be resolved.
    """
    location, _, fragment = reference.partition("#")
    own = _base(base)
    found = base if not location or urljoin(own, location) == own else _target(schema, own, urljoin(own, location))
    try:
        return found, _at(found, unquote(fragment))
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        msg = f"the JSON Schema refers to {reference!r}, which does not exist"
        raise ConfigError(msg, fix="correct the $ref") from error


def _base(root: Any) -> str:
    own = (root.get("$id") or root.get("id")) if isinstance(root, dict) else None
    return urljoin(_BASE, own) if isinstance(own, str) else _BASE


def _target(schema: Schema, base: str, uri: str) -> Any:
    uri = uri.partition("#")[0]
    for name, dependency in schema.dependencies().items():
        if uri in (name, urljoin(base, name), urljoin(_BASE, name), _base(document(dependency))):
            return document(dependency)
    # A document may also have other schemas within it, each with its own id.
    for each in (document(schema), *map(document, schema.dependencies().values())):
        for part in _parts(each):
            own = part.get("$id") or part.get("id")
            if isinstance(own, str) and uri in (urljoin(base, own), urljoin(_base(each), own)):
                return part
    msg = f"the JSON Schema refers to {uri.removeprefix(_BASE)!r}, which is not a reference of the registered schema"
    raise ConfigError(msg, fix="register the schema with this reference, or put it under definitions; kpipe loads none")


def _at(found: Any, fragment: str) -> Any:
    if fragment and not fragment.startswith("/"):
        return next(each for each in _parts(found) if fragment in (each.get("$anchor"), str(each.get("$id"))[1:]))
    for step in fragment.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def _parts(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, dict):
        yield found
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _parts(each)


def _path(steps: list[str | int]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _shortened(text: str) -> str:
    # The library's messages begin with the value, and end with what is wrong.
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_ENDS]}...{text[-_MAX_ENDS:]}"


def _refuse_constant(name: str) -> Any:
    msg = f"{name} is not JSON"
    raise ValueError(msg)

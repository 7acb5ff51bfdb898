"""Find or register the schema of a message type."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kpipe_platform.codecs.protobuf.compiler import compiled, own_file
from kpipe_platform.codecs.protobuf.descriptors import files_of, last_file, message_type
from kpipe_platform.codecs.protobuf.text import proto_text
from kpipe_platform.errors import ConfigError, SchemaNotFoundError
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaReference

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto


@lru_cache(maxsize=256)
def registered(
    registry: RegistryClient, subject: str, descriptors: str, message: str, register: bool
) -> RegisteredSchema:
    """Return the registered schema of a message type.

    A version of the subject with the same message type is used, whatever its text is. Otherwise the schema is
    registered, after those that it imports, each under the name of its file.

    Args:
        registry: The registry.
        subject: The subject.
        descriptors: Serialized ``FileDescriptorSet`` of the type, in base64.
        message: Full name of the type.
        register: Whether to register it.

    Raises:
        SchemaNotFoundError: The subject does not have the message type, and ``register`` is False.
        IncompatibleSchemaError: The registry refuses the schema.
        ConfigError: The schema cannot be written as the text of a ``.proto`` file.
    """
    own = message_type(descriptors, message)
    for schema_id in reversed(registry.versions(subject)):
        found = registry.schema_by_id(schema_id)
        if found.type == "PROTOBUF" and _is_same(found, own):
            return found
    if not register:
        msg = f"the subject {subject!r} of the schema registry has no version with this message type {message}"
        fix = "register the schema, set register=True, or use the message type of the subject"
        raise SchemaNotFoundError(msg, fix=fix, subject=subject)
    schema = _with_imports(registry, own)
    # Its answer has all reasons; that of a registration may have none.
    registry.check_compatible(subject, schema)
    return registry.register(subject, schema)


def _with_imports(registry: RegistryClient, message: Descriptor) -> Schema:
    known: dict[str, SchemaReference] = {}

    def referenced(file: FileDescriptorProto) -> tuple[SchemaReference, ...]:
        names = [name for name in file.dependency if own_file(name) is None]
        return tuple(known.get(name) or add(name) for name in names)

    def add(name: str) -> SchemaReference:
        found = _registered_file(registry, name, files[name])
        if found is None:
            schema = Schema(proto_text(files[name]), "PROTOBUF", referenced(files[name]))
            registry.register(name, schema)
            # Confluent's registry responds to a registration with the id only.
            found = registry.lookup(name, schema)
        if found.version is None:
            msg = f"the schema registry does not say which version of the subject {name!r} the schema has"
            raise ConfigError(msg, fix="register the schema and its imports with another tool")
        known[name] = SchemaReference(name, name, found.version, found)
        return known[name]

    files = files_of(message.file)
    file = files[message.file.name]
    return Schema(proto_text(file), "PROTOBUF", referenced(file))


def _registered_file(registry: RegistryClient, name: str, file: FileDescriptorProto) -> RegisteredSchema | None:
    """Return the latest version of a file if it is the same, whatever its text is."""
    try:
        found = registry.latest(name)
        other = last_file(compiled(found))
    except (SchemaNotFoundError, ConfigError):
        return None
    return found if _normalized(other) == _normalized(file) else None


def _normalized(file: FileDescriptorProto) -> FileDescriptorProto:
    def clear(message: DescriptorProto) -> None:
        for field in message.field:
            field.ClearField("json_name")
        for each in message.nested_type:
            clear(each)

    normalized = type(file)()
    normalized.CopyFrom(file)
    normalized.ClearField("name")
    normalized.ClearField("options")
    for message in normalized.message_type:
        clear(message)
    return normalized


def _is_same(found: Schema, own: Descriptor) -> bool:
    try:
        other = message_type(compiled(found), own.full_name)
    except ConfigError:
        return False
    return _shape(other) == _shape(own)


def _shape(message: Descriptor) -> dict[str, object]:
    """Return what matters of a message type and those within it, by name."""
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

    shapes: dict[str, object] = {}

    def add(each: Descriptor) -> None:
        if each.full_name in shapes:
            return
        made = DescriptorProto()
        each.CopyToProto(made)
        fields = []
        for field in made.field:
            field.ClearField("json_name")
            field.ClearField("options")
            fields.append(field.SerializeToString(deterministic=True))
        shapes[each.full_name] = (
            FileDescriptorProto.FromString(each.file.serialized_pb).syntax,
            tuple(sorted(fields)),
            tuple(one.name for one in made.oneof_decl),
            # In an edition, these depend on options.
            frozenset((one.number, one.type, one.is_required, one.has_presence) for one in each.fields),
        )
        for one in each.fields:
            if one.message_type is not None:
                add(one.message_type)
            if one.enum_type is not None:
                names = {value.name: value.number for value in one.enum_type.values}
                shapes[one.enum_type.full_name] = (one.enum_type.is_closed, names)

    add(message)
    return shapes

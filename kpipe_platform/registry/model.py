"""Schemas as a registry stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kpipe_platform.errors import ConfigError

__all__ = ["RegisteredSchema", "Schema", "SchemaReference", "SchemaType", "parse_schema"]

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]
"""Formats of schemas, by their names in the registry."""


@dataclass(frozen=True)
class Schema:
    """A schema, registered or not.

    Attributes:
        text: The schema as text. A Protobuf schema is the text of a ``.proto`` file.
        type: Format, ``AVRO`` by default.
        references: Schemas of other subjects that the text uses.
    """

    text: str
    type: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def dependencies(self) -> dict[str, Schema]:
        """Return all schemas that this schema needs, by the name under which the text of another uses them.

        A schema comes after those that it uses itself, and each comes once.

        Raises:
            ConfigError: References of one name lead to different schemas, or were not resolved. A `RegistryClient`
                resolves the references of each schema that it reads.
        """
        met: dict[str, SchemaReference] = {}
        found: dict[str, Schema] = {}

        def collect(schema: Schema) -> None:
            for reference in schema.references:
                other = met.setdefault(reference.name, reference)
                if (other.subject, other.version) != (reference.subject, reference.version):
                    msg = f"The schema refers to {reference.name!r} as {other.label} and as {reference.label}."
                    raise ConfigError(msg, fix="register the schema with references to one version")
                if reference is other:
                    collect(reference.resolved)
                    found[reference.name] = reference.resolved

        collect(self)
        return found

    def to_request(self) -> dict[str, Any]:
        """Render the schema as the body of a request to the registry."""
        references = [{"name": each.name, "subject": each.subject, "version": each.version} for each in self.references]
        return {"schema": self.text, "schemaType": self.type, "references": references}


@dataclass(frozen=True)
class SchemaReference:
    """A reference to a version of a subject.

    Attributes:
        name: Name under which the text uses it: the full name of an Avro type, the path of a Protobuf import, or a
            ``$ref`` of a JSON schema.
        subject: Subject in the registry.
        version: Version of the subject.
        schema: The schema itself; None if the reference was not read from the registry.
    """

    name: str
    subject: str
    version: int
    schema: Schema | None = None

    @property
    def label(self) -> str:
        """The subject and version, for messages."""
        return f"version {self.version} of {self.subject!r}"

    @property
    def resolved(self) -> Schema:
        """The schema itself.

        Raises:
            ConfigError: The reference was not read from the registry.
        """
        if self.schema is None:
            msg = f"The reference {self.name!r} to {self.label} has no schema."
            raise ConfigError(msg, fix="use a schema that a RegistryClient has read or registered")
        return self.schema


@dataclass(frozen=True, kw_only=True)
class RegisteredSchema(Schema):
    """A schema with its id in the registry.

    Attributes:
        id: Id, unique in the registry.
        guid: Globally unique id; None if the registry does not return one. Not compared.
        subject: Subject through which the schema was read; None if it was read by id. Not compared.
        version: Version of the subject; None if the registry did not return it. Not compared.
    """

    id: int
    guid: str | None = field(default=None, compare=False)
    subject: str | None = field(default=None, compare=False)
    version: int | None = field(default=None, compare=False)

    @property
    def plain(self) -> Schema:
        """The schema without its id."""
        return Schema(self.text, self.type, self.references)


def parse_schema(response: Mapping[str, Any]) -> RegisteredSchema:
    """Parse a schema in a response of the registry. Its references have no schemas yet.

    Raises:
        KeyError, TypeError, ValueError: The response does not have this form.
    """
    references = tuple(
        SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in response.get("references") or ()
    )
    version = response.get("version")
    return RegisteredSchema(
        str(response["schema"]),
        response.get("schemaType") or "AVRO",
        references,
        id=int(response["id"]),
        guid=response.get("guid"),
        subject=response.get("subject"),
        version=None if version is None else int(version),
    )

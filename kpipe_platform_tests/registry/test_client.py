"""The client with a real registry."""

from __future__ import annotations

import json
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from kpipe_platform.errors import ConfigError, IncompatibleSchemaError, RegistryUnavailableError, SchemaNotFoundError
from kpipe_platform.registry.client import RegistryClient, registry_client
from kpipe_platform.registry.model import RegisteredSchema, Schema, SchemaReference
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def client(schema_registry: EmbeddedRegistry) -> RegistryClient:
    return RegistryClient(RegistrySettings(schema_registry.url, timeout_s=0))


@pytest.fixture
def subject() -> str:
    return f"orders-{uuid.uuid4().hex[:12]}-value"


def record(*fields: str, name: str = "Order") -> Schema:
    """An Avro record. A field that ends in ``?`` has a default."""
    types = [
        {"name": each.rstrip("?"), "type": "int", **({"default": 0} if each.endswith("?") else {})} for each in fields
    ]
    # The name makes the text unique, because the registry gives equal texts one id.
    return Schema(json.dumps({"type": "record", "name": name, "fields": types}))


def set_compatibility(registry: EmbeddedRegistry, subject: str, level: str) -> None:
    request = urllib.request.Request(
        f"{registry.url}/config/{subject}",
        json.dumps({"compatibility": level}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()


def test_a_registered_schema_is_found_each_way(client: RegistryClient, subject: str) -> None:
    first, second = record("a", name=f"O{uuid.uuid4().hex}"), record("a", "b?", name=f"O{uuid.uuid4().hex}")
    registered = client.register(subject, first)
    assert registered.text == first.text
    assert (registered.type, registered.references, registered.subject) == ("AVRO", (), subject)
    assert client.register(subject, first) == registered
    newer = client.register(subject, second)
    assert newer.id != registered.id

    assert client.latest(subject) == newer
    assert client.latest(subject).version == 2
    assert client.lookup(subject, first) == registered
    assert client.lookup(subject, first).version == 1
    assert client.versions(subject) == (registered.id, newer.id)

    other = RegistryClient(client.settings)
    assert other.schema_by_id(registered.id) == registered
    assert other.schema_by_id(newer.id).text == second.text


@pytest.mark.parametrize(
    "schema",
    [
        Schema('syntax = "proto3";\nmessage Order {\n  int32 amount = 1;\n}\n', "PROTOBUF"),
        Schema('{"type": "object", "properties": {"amount": {"type": "integer"}}}', "JSON"),
    ],
    ids=["protobuf", "json"],
)
def test_each_format(client: RegistryClient, subject: str, schema: Schema) -> None:
    registered = client.register(subject, schema)
    read = RegistryClient(client.settings).schema_by_id(registered.id)
    assert read.type == schema.type
    assert client.latest(subject).type == schema.type
    assert client.lookup(subject, schema).id == registered.id


def test_what_does_not_exist(client: RegistryClient, subject: str) -> None:
    assert client.versions(subject) == ()
    with pytest.raises(SchemaNotFoundError, match=f"cannot read the latest schema of '{subject}'.*404"):
        client.latest(subject)
    with pytest.raises(SchemaNotFoundError, match="cannot look up a schema"):
        client.lookup(subject, record("a"))
    client.register(subject, record("a"))
    with pytest.raises(SchemaNotFoundError, match="cannot look up a schema"):
        client.lookup(subject, record("b"))
    for schema_id in (0, 2**31 - 1, 2**31, 2**32 - 1, -1):
        with pytest.raises(SchemaNotFoundError, match=f"cannot read schema {schema_id}"):
            client.schema_by_id(schema_id)


def test_a_registry_without_guids_is_no_missing_schema(client: RegistryClient) -> None:
    with pytest.raises(ConfigError, match="It does not have this API"):
        client.schema_by_guid(uuid.uuid4())


def test_subjects_with_special_characters(client: RegistryClient, subject: str) -> None:
    odd = f"{subject}/ä b?&%"
    registered = client.register(odd, record("a"))
    assert client.versions(odd) == (registered.id,)
    assert client.latest(odd).id == registered.id


def test_compatibility_is_checked_before_anything_is_registered(
    client: RegistryClient, schema_registry: EmbeddedRegistry, subject: str
) -> None:
    client.check_compatible(subject, record("a"))
    client.register(subject, record("a"))
    set_compatibility(schema_registry, subject, "BACKWARD")
    client.check_compatible(subject, record("a", "b?"))
    with pytest.raises(
        IncompatibleSchemaError, match=f"not compatible with the subject '{subject}'.*fields/1"
    ) as caught:
        client.check_compatible(subject, record("a", "b"))
    assert "fields/1" in caught.value.reasons[0]
    assert len(client.versions(subject)) == 1
    with pytest.raises(IncompatibleSchemaError, match=r"cannot register a schema.*fields/1") as caught:
        client.register(subject, record("a", "b"))
    assert caught.value.reasons


def test_a_schema_that_is_not_one(client: RegistryClient, subject: str) -> None:
    with pytest.raises(ConfigError, match="422"):
        client.register(subject, Schema('{"type": "rec'))


# ------------------------------------------------------------------------------------------- references


def refers(name: str, to: RegisteredSchema) -> SchemaReference:
    assert to.subject is not None
    return SchemaReference(name, to.subject, 1)


def test_references_are_read_with_the_schema(client: RegistryClient, subject: str) -> None:
    a, b, c, d = (f"t{uuid.uuid4().hex[:8]}.{letter}" for letter in "ABCD")

    def using(name: str, *others: str) -> str:
        fields = [{"name": f"f{at}", "type": other} for at, other in enumerate(others)]
        return json.dumps({"type": "record", "name": name, "fields": fields})

    at_a = client.register(f"{subject}-a", Schema(using(a, "int")))
    at_b = client.register(f"{subject}-b", Schema(using(b, a), references=(refers(a, at_a),)))
    at_c = client.register(f"{subject}-c", Schema(using(c, a), references=(refers(a, at_a),)))
    references = (refers(b, at_b), refers(c, at_c))
    # B and C both use A, which comes first and once.
    registered = client.register(subject, Schema(using(d, b, c), references=references))
    for found in (
        registered,
        client.latest(subject),
        client.lookup(subject, Schema(using(d, b, c), references=references)),
        RegistryClient(client.settings).schema_by_id(registered.id),
    ):
        assert list(found.dependencies()) == [a, b, c]
        assert found.dependencies()[b].text == using(b, a)
        assert [each.name for each in found.references] == [b, c]


def test_references_that_were_not_read() -> None:
    with pytest.raises(ConfigError, match=r"The reference 'x\.A' to version 3 of 'a' has no schema"):
        Schema("{}", references=(SchemaReference("x.A", "a", 3),)).dependencies()


def test_two_versions_of_one_name() -> None:
    text = Schema("{}")
    inner = Schema("{}", references=(SchemaReference("x.A", "a", 1, text),))
    outer = Schema("{}", references=(SchemaReference("x.B", "b", 1, inner), SchemaReference("x.A", "a", 2, text)))
    with pytest.raises(ConfigError, match=r"refers to 'x\.A' as version 1 of 'a' and as version 2 of 'a'"):
        outer.dependencies()


# ---------------------------------------------------------------------------------------------- several


def test_the_first_of_several_addresses_is_dead(schema_registry: EmbeddedRegistry, subject: str) -> None:
    client = RegistryClient(RegistrySettings(f"{NOBODY}, {schema_registry.url}/", timeout_s=0))
    registered = client.register(subject, record("a"))
    assert client.latest(subject) == registered
    with pytest.raises(SchemaNotFoundError):
        client.schema_by_id(2**31 - 1)


def test_an_outage_is_transient_and_cached_schemas_stay(schema_registry: EmbeddedRegistry, subject: str) -> None:
    client = RegistryClient(RegistrySettings(schema_registry.url, timeout_s=0.5))
    registered = client.register(subject, record("a"))
    with schema_registry.outage():
        with pytest.raises(RegistryUnavailableError, match="cannot be reached"):
            client.latest(subject)
        with pytest.raises(RegistryUnavailableError):
            client.schema_by_id(2**31 - 1)
        assert client.schema_by_id(registered.id) == registered
    assert client.latest(subject) == registered
    assert RegistryClient(client.settings).schema_by_id(registered.id) == registered


@pytest.mark.slow
def test_a_registry_that_comes_back_within_the_timeout(schema_registry: EmbeddedRegistry, subject: str) -> None:
    client = RegistryClient(RegistrySettings(schema_registry.url, timeout_s=60))
    registered = client.register(subject, record("a"))
    with ThreadPoolExecutor() as pool:
        with schema_registry.outage():
            reading = pool.submit(client.latest, subject)
        assert reading.result(60) == registered


def test_many_threads_share_a_client(client: RegistryClient, subject: str) -> None:
    ids = [client.register(subject, record("a", name=f"O{uuid.uuid4().hex}")).id for _ in range(4)]
    fresh = RegistryClient(client.settings)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fresh.schema_by_id, ids * 20))
    assert [each.id for each in found] == ids * 20


def test_one_client_in_a_process(schema_registry: EmbeddedRegistry) -> None:
    settings = RegistrySettings(schema_registry.url)
    assert registry_client(settings) is registry_client(RegistrySettings(schema_registry.url))
    assert registry_client(settings) is not registry_client(RegistrySettings(schema_registry.url, cache_size=5))

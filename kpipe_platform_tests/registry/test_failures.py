"""What is a fault of a record, what is transient, and what needs an operator."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import pickle
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kpipe_platform.errors import (
    AuthenticationFailedError,
    AuthorizationFailedError,
    ConfigError,
    IncompatibleSchemaError,
    KpipeError,
    RegistryUnavailableError,
    SchemaNotFoundError,
    TransientError,
)
from kpipe_platform.registry.client import RegistryClient
from kpipe_platform.registry.model import Schema
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform_tests.registry.answers import serving

SECRET = "s3cret-of-ann"
SCHEMA = {"schema": '"int"'}


def client(url: str, **settings: Any) -> RegistryClient:
    return RegistryClient(RegistrySettings(url, **{"timeout_s": 0, **settings}))


def error_of(read: Callable[[], object]) -> KpipeError:
    with pytest.raises(KpipeError) as caught:
        read()
    assert SECRET not in str(caught.value) + repr(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert caught.value.fix
    return caught.value


def not_found(code: int) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": "not found"}


# ----------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (404, {"error_code": 40403, "message": "Schema 7 not found"}, SchemaNotFoundError, "Schema 7 not found"),
        # A proxy, or a wrong path. Each record would become a dead letter if this counted as a missing schema.
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, ConfigError, "It does not have this API"),
        (404, b"<html>Not Found</html>", ConfigError, "It does not have this API"),
        (404, {}, ConfigError, "It does not have this API"),
        (401, {"error_code": 401, "message": "Unauthorized"}, AuthenticationFailedError, "401: Unauthorized"),
        (403, {"error_code": 40301, "message": "denied"}, AuthorizationFailedError, "403: denied"),
        (408, b"", RegistryUnavailableError, "408"),
        (429, {"error_code": 42901, "message": "slow down"}, RegistryUnavailableError, "429: slow down"),
        (500, {"error_code": 50001, "message": "store failed"}, RegistryUnavailableError, "500: store failed"),
        (502, b"<html>" + b"x" * 10_000, RegistryUnavailableError, "502"),
        (503, [], RegistryUnavailableError, "503"),
        (422, {"error_code": 42201, "message": "no schema"}, ConfigError, "422: no schema"),
        (409, {"error_code": 409, "message": "conflict"}, IncompatibleSchemaError, "409: conflict"),
        (302, b"", ConfigError, "302"),
        (400, {"error_code": 400, "message": "what?"}, ConfigError, "400: what?"),
        (200, b"<html>Please log in</html>", ConfigError, "that a schema registry does not respond with"),
        (200, {"status": "UP"}, ConfigError, "that a schema registry does not respond with"),
        (200, [1], ConfigError, "that a schema registry does not respond with"),
        (204, b"", ConfigError, "that a schema registry does not respond with"),
    ],
)
def test_each_answer_has_its_error(status: int, body: Any, kind: type[KpipeError], says: str) -> None:
    with serving(lambda _: (status, body)) as answers:
        found = error_of(lambda: client(answers.url).schema_by_id(7))
    assert type(found) is kind
    assert says in found.message
    assert "cannot read schema 7" in found.message
    assert answers.url in found.message
    assert len(found.message) < 600
    assert isinstance(found, TransientError) == (kind is RegistryUnavailableError)


@pytest.mark.parametrize("status", [401, 500])
def test_each_method_has_the_typed_errors(status: int) -> None:
    with serving(lambda _: (status, b"no")) as answers:
        registry = client(answers.url)
        for method in (
            lambda: registry.latest("orders-value"),
            lambda: registry.versions("orders-value"),
            lambda: registry.lookup("orders-value", Schema('"int"')),
            lambda: registry.register("orders-value", Schema('"int"')),
            lambda: registry.check_compatible("orders-value", Schema('"int"')),
            lambda: registry.schema_by_guid(uuid4()),
        ):
            assert type(error_of(method)) is (AuthenticationFailedError if status == 401 else RegistryUnavailableError)


def test_confluents_answers_about_compatibility() -> None:
    body = {"is_compatible": False, "messages": ["READER_FIELD_MISSING_DEFAULT_VALUE at /fields/1", "second"]}
    with serving(lambda _: (200, body)) as answers:
        found = error_of(lambda: client(answers.url).check_compatible("orders-value", Schema('"int"')))
        assert answers.requests[0][1] == "/compatibility/subjects/orders-value/versions?verbose=true"
    assert isinstance(found, IncompatibleSchemaError)
    assert found.reasons == tuple(body["messages"])
    assert "/fields/1; second" in found.message


def test_a_guid_is_read_by_its_own_path() -> None:
    guid = uuid4()
    with serving(lambda _: (200, {"schema": '"int"', "guid": str(guid)})) as answers:
        registry = client(answers.url)
        assert registry.schema_by_guid(guid) == Schema('"int"') == registry.schema_by_guid(guid)
        assert [path for _, path, _ in answers.requests] == [f"/schemas/guids/{guid}"]
        assert registry.schema_by_id(7).guid == str(guid)


# --------------------------------------------------------------------------------------- references


def test_a_reference_that_is_gone_is_no_missing_schema() -> None:
    whole = {**SCHEMA, "references": [{"name": "x.A", "subject": "a", "version": 3}]}
    with serving(lambda path: (200, whole) if "ids" in path else not_found(40402)) as answers:
        found = error_of(lambda: client(answers.url).schema_by_id(7))
    assert type(found) is ConfigError
    assert "does not have version 3 of 'a', to which a schema refers as 'x.A'" in found.message


def test_a_circle_of_references() -> None:
    circle = {"id": 1, "subject": "a", **SCHEMA, "references": [{"name": "x.A", "subject": "a", "version": 3}]}
    with serving(lambda _: (200, circle)) as answers:
        found = error_of(lambda: client(answers.url).schema_by_id(7))
    assert type(found) is ConfigError
    assert "refers to itself" in found.message


# ------------------------------------------------------------------------------------------ retries


def test_a_call_is_retried_until_it_succeeds() -> None:
    waits: list[float] = []
    left = [503, 429, 500]
    with serving(lambda _: (left.pop(), b"") if left else (200, SCHEMA)) as answers:
        settings = RegistrySettings(answers.url, timeout_s=60)
        assert RegistryClient(settings, sleep=waits.append).schema_by_id(7).text == '"int"'
        assert len(answers.requests) == 4
    assert len(waits) == 3
    assert max(waits) <= 2


@pytest.mark.parametrize(("status", "code"), [(401, 401), (403, 403), (404, 40403), (422, 42201)])
def test_what_a_retry_does_not_change_is_not_retried(status: int, code: int) -> None:
    with serving(lambda _: (status, {"error_code": code, "message": "no"})) as answers:
        error_of(lambda: client(answers.url, timeout_s=60).schema_by_id(7))
        assert len(answers.requests) == 1


def test_retries_end_at_the_timeout() -> None:
    begin = time.monotonic()
    with serving(lambda _: (503, b"")) as answers:
        error_of(lambda: client(answers.url, timeout_s=1).schema_by_id(7))
        assert len(answers.requests) > 1
    assert time.monotonic() - begin < 30


def test_a_slow_registry() -> None:
    begin = time.monotonic()
    with serving(lambda _: (200, SCHEMA), delay_s=3) as answers:
        found = error_of(lambda: client(answers.url, request_timeout_s=0.2).schema_by_id(7))
        assert time.monotonic() - begin < 3
    assert type(found) is RegistryUnavailableError
    assert "did not respond within 0.2 s" in found.message


def test_a_host_that_does_not_exist() -> None:
    found = error_of(lambda: client("http://nobody.invalid:8081").schema_by_id(7))
    assert type(found) is RegistryUnavailableError


@pytest.mark.parametrize("status", [500, 503])
def test_the_second_address_is_used_if_the_first_has_an_error(status: int) -> None:
    with serving(lambda _: (status, b"")) as first, serving(lambda _: (200, SCHEMA)) as second:
        assert client(f"{first.url},{second.url}").schema_by_id(7).text == '"int"'
        assert (len(first.requests), len(second.requests)) == (1, 1)


# -------------------------------------------------------------------------------------------- cache


def test_the_cache_is_bounded() -> None:
    with serving(lambda _: (200, SCHEMA)) as answers:
        registry = client(answers.url, cache_size=3)
        for schema_id in (1, 2, 3, 1, 4, 1, 3, 2):
            registry.schema_by_id(schema_id)
        asked = [path.rsplit("/", 1)[1] for _, path, _ in answers.requests]
        # 4 drops 2, which was used least recently.
        assert asked == ["1", "2", "3", "4", "2"]
        for schema_id in range(100):
            registry.schema_by_id(schema_id)
        assert len(registry._known) == 3


def test_a_missing_id_is_asked_for_again_after_five_seconds() -> None:
    now = [100.0]
    registered: list[int] = []
    with serving(lambda _: (200, SCHEMA) if registered else not_found(40403)) as answers:
        registry = RegistryClient(RegistrySettings(answers.url, timeout_s=0, cache_size=3), clock=lambda: now[0])
        first = error_of(lambda: registry.schema_by_id(7))
        registered.append(7)
        now[0] += 4.9
        again = error_of(lambda: registry.schema_by_id(7))
        assert (type(again), str(again)) == (SchemaNotFoundError, str(first))
        assert len(answers.requests) == 1
        now[0] += 0.2
        assert registry.schema_by_id(7).text == '"int"'
        registered.clear()
        for schema_id in range(100, 200):
            error_of(lambda schema_id=schema_id: registry.schema_by_id(schema_id))
        assert len(registry._missing) == 3


def test_failures_other_than_a_missing_schema_are_not_cached() -> None:
    left = [(500, b""), (401, b""), (404, b"")]
    with serving(lambda _: left.pop() if left else (200, SCHEMA)) as answers:
        registry = client(answers.url)
        for _ in range(3):
            error_of(lambda: registry.schema_by_id(7))
        assert registry.schema_by_id(7).text == '"int"'


# ------------------------------------------------------------------------------ credentials and TLS


def test_basic_authentication() -> None:
    with serving(lambda _: (200, SCHEMA)) as answers:
        client(answers.url, username="ann", password=SECRET + ":ü").schema_by_id(7)
        (_, _, headers) = answers.requests[0]
    assert headers["Authorization"] == "Basic " + base64.b64encode(f"ann:{SECRET}:ü".encode()).decode()


def test_a_bearer_token() -> None:
    with serving(lambda _: (200, SCHEMA)) as answers:
        client(answers.url, bearer_token=SECRET).schema_by_id(7)
        client(
            answers.url, bearer_token=SECRET, bearer_logical_cluster="lsrc-1", bearer_identity_pool="pool-2"
        ).schema_by_id(7)
    first, second = (headers for _, _, headers in answers.requests)
    assert first["Authorization"] == f"Bearer {SECRET}"
    assert second["target-sr-cluster"] == "lsrc-1"
    assert second["Confluent-Identity-Pool-Id"] == "pool-2"


def test_a_secret_that_the_registry_repeats_is_not_shown() -> None:
    with serving(lambda _: (401, {"error_code": 401, "message": f"wrong password {SECRET}"})) as answers:
        found = error_of(lambda: client(answers.url, username="ann", password=SECRET).schema_by_id(7))
    assert "wrong password **********" in found.message


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, which is its own CA, with its key; and its key with a password."""
    folder = tmp_path_factory.mktemp("pems")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    for file, encryption in (
        ("key.pem", serialization.NoEncryption()),
        ("locked.pem", serialization.BestAvailableEncryption(SECRET.encode())),
    ):
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        (folder / file).write_bytes(pem)
    return folder


def server_tls(pems: Path, *, mutual: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems / "cert.pem", pems / "key.pem")
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pems / "cert.pem")
    return context


def test_tls(pems: Path) -> None:
    with serving(lambda _: (200, SCHEMA), tls=server_tls(pems)) as answers:
        assert client(answers.url, ssl_ca_pem=str(pems / "cert.pem")).schema_by_id(7).text == '"int"'
        found = error_of(lambda: client(answers.url).schema_by_id(7))
        assert type(found) is AuthenticationFailedError
        assert "CERTIFICATE_VERIFY_FAILED" in found.message


@pytest.mark.parametrize("key", ["key.pem", "locked.pem"])
def test_mutual_tls(pems: Path, key: str) -> None:
    ca = str(pems / "cert.pem")
    with serving(lambda _: (200, SCHEMA), tls=server_tls(pems, mutual=True)) as answers:
        settings: dict[str, Any] = {"ssl_certificate_pem": ca, "ssl_key_pem": str(pems / key)}
        if key == "locked.pem":
            settings["ssl_key_password"] = SECRET
        assert client(answers.url, ssl_ca_pem=ca, **settings).schema_by_id(7).text == '"int"'
        found = error_of(lambda: client(answers.url, ssl_ca_pem=ca).schema_by_id(7))
        assert type(found) is AuthenticationFailedError


def test_tls_to_a_port_without_it() -> None:
    with serving(lambda _: (200, SCHEMA)) as answers:
        found = error_of(lambda: client(answers.url.replace("http:", "https:")).schema_by_id(7))
    assert type(found) is AuthenticationFailedError


def test_files_that_are_no_certificates(pems: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    url = "https://127.0.0.1:1"
    for settings, says in (
        ({"ssl_ca_pem": str(tmp_path / "none.pem")}, "ssl_ca_pem: cannot read"),
        ({"ssl_ca_pem": str(tmp_path / "empty.pem")}, "cannot be read"),
        (
            {
                "ssl_certificate_pem": str(pems / "cert.pem"),
                "ssl_key_pem": str(pems / "locked.pem"),
                "ssl_key_password": SECRET + "2",
            },
            "cannot be read",
        ),
    ):
        registry = client(url, **settings)
        found = error_of(lambda registry=registry: registry.schema_by_id(7))
        assert type(found) is ConfigError
        assert says in found.message

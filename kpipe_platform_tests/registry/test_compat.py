"""What ``registry/_compat.py`` relies on in confluent-kafka. Fails first when confluent-kafka is upgraded."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka.schema_registry import SchemaRegistryError
from confluent_kafka.schema_registry.common._httpx_compat import httpx

from kpipe_platform.registry import _compat
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform_tests.registry.answers import serving

# After an upgrade: run this file, read the release notes for what _compat.py relies on, and write the new version here.
CONFLUENT_KAFKA = "2.16.1"


def test_the_contracts_below_were_checked_with_this_version() -> None:
    assert confluent_kafka.__version__ == CONFLUENT_KAFKA


def test_a_request_returns_the_parsed_answer() -> None:
    with serving(lambda path: (200, {"path": path})) as answers:
        rest = _compat.rest_client(RegistrySettings(f"{answers.url}/api"))
        assert rest.get("a/b?c=d") == {"path": "/api/a/b?c=d"}
        assert rest.post("a%2Fb", {}) == {"path": "/api/a%2Fb"}
        assert [method for method, _, _ in answers.requests] == ["GET", "POST"]


def test_each_address_is_asked_once_and_the_status_and_code_are_in_the_error() -> None:
    with (
        serving(lambda _: (503, b"")) as first,
        serving(lambda _: (404, {"error_code": 40403, "message": "no"})) as last,
    ):
        rest = _compat.rest_client(RegistrySettings(f"{first.url},{last.url}"))
        with pytest.raises(SchemaRegistryError) as caught:
            rest.get("schemas/ids/7")
        assert (caught.value.http_status_code, caught.value.error_code, caught.value.error_message) == (
            404,
            40403,
            "no",
        )
        assert (len(first.requests), len(last.requests)) == (1, 1)


def test_a_failed_connection_is_an_error_of_httpx() -> None:
    rest = _compat.rest_client(RegistrySettings("http://127.0.0.1:1"))
    with pytest.raises(httpx.ConnectError):
        rest.get("schemas/ids/7")

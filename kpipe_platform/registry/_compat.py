"""The private interfaces of confluent-kafka's schema registry client that kpipe uses.

The public methods keep every schema forever, drop the GUID of a schema that is read by id, and drop the reasons of a
failed compatibility check. kpipe therefore uses the REST client beneath them. It has the addresses, authentication and
TLS. ``kpipe_platform_tests/registry/test_compat.py`` tests the behavior that kpipe relies on.
"""

from __future__ import annotations

from typing import Any, Protocol

from kpipe_platform.errors import require_packages
from kpipe_platform.registry.settings import RegistrySettings

__all__ = ["RestClient", "require", "rest_client"]


class RestClient(Protocol):
    """The methods of the REST client that kpipe uses. Each tries the addresses in turn, once."""

    def get(self, url: str, query: dict[str, Any] | None = None) -> Any:
        """Send a GET request and return the parsed response."""

    def post(self, url: str, body: dict[str, Any] | None) -> Any:
        """Send a POST request and return the parsed response."""


def require() -> None:
    """Check that the optional packages are installed.

    Raises:
        EnvironmentSetupError: A package is missing.
    """
    require_packages("A schema registry", "registry", "cachetools", "confluent_kafka.schema_registry")


def rest_client(settings: RegistrySettings) -> RestClient:
    """Create a REST client. It opens no connection before the first request.

    Raises:
        EnvironmentSetupError: An optional package is missing.
        OSError: A certificate or key cannot be read; ``ssl.SSLError`` if it is not valid.
    """
    require()
    from confluent_kafka.schema_registry import SchemaRegistryClient

    client: RestClient = SchemaRegistryClient(settings.for_confluent())._rest_client
    return client

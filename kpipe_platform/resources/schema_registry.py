"""The resource for a schema registry."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from kpipe_platform.registry.client import RegistryClient, registry_client
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.resources.secrets import HasSecrets, read_value


class SchemaRegistry(HasSecrets):
    """A schema registry with Confluent's API, such as Confluent's, Apicurio's, Karapace or Redpanda's.

    It is part of a connection: ``KafkaConnection(bootstrap_servers=..., schema_registry=SchemaRegistry(url=...))``. The
    codecs of that connection's topics use it. Needs the extra ``registry``.

    Pass secrets only as ``dagster.EnvVar``: Dagster would show a plain value in its UI and store it.

    Raises:
        ConfigError: A secret is a plain value. The other settings are checked by ``settings``.
    """

    _secrets: ClassVar[tuple[str, ...]] = ("password", "bearer_token", "ssl_key_password")
    _variables: ClassVar[str] = "REGISTRY"

    url: str = Field(
        description="http:// or https:// address, with the path of the API if it has one. Several addresses of one "
        "registry are separated by commas, or a list; a call tries them in this order"
    )
    username: str | None = Field(
        default=None, description="user of basic authentication; in Confluent Cloud the API key"
    )
    password: str | None = Field(default=None, description="password of this user; pass it as EnvVar", repr=False)
    bearer_token: str | None = Field(
        default=None, description="token, instead of username and password; pass it as EnvVar", repr=False
    )
    bearer_logical_cluster: str | None = Field(
        default=None, description="Confluent Cloud's id of the registry's cluster (lsrc-...); only with bearer_token"
    )
    bearer_identity_pool: str | None = Field(
        default=None, description="Confluent Cloud's id of the identity pool; only with bearer_token"
    )
    ssl_ca_pem: str | None = Field(default=None, description="path of the CA certificates, a PEM file")
    ssl_certificate_pem: str | None = Field(default=None, description="path of the client certificate, a PEM file")
    ssl_key_pem: str | None = Field(default=None, description="path of the client's private key, a PEM file")
    ssl_key_password: str | None = Field(
        default=None, description="password of the private key; pass it as EnvVar", repr=False
    )
    request_timeout_s: float = Field(
        default=5.0, description="deadline to connect to an address, and for its response, seconds"
    )
    timeout_s: float = Field(
        default=20.0,
        description="time for which a call is retried while the registry is unavailable, seconds; 0: a single attempt",
    )
    cache_size: int = Field(default=1000, description="maximum number of schemas that a process keeps")

    def __init__(self, **data: Any) -> None:
        if isinstance(data.get("url"), list | tuple):
            data = {**data, "url": ",".join(data["url"])}
        super().__init__(**data)

    @property
    def settings(self) -> RegistrySettings:
        """The checked settings, with environment variables read.

        Raises:
            ConfigError: A value or a combination of values is invalid, or an environment variable is not set.
        """
        names = type(self).model_fields
        return RegistrySettings(**{name: read_value(self, name, getattr(self, name)) for name in names})

    def client(self) -> RegistryClient:
        """Return the client that this process uses for the registry.

        Raises:
            ConfigError: As `settings`.
            EnvironmentSetupError: The extra ``registry`` is not installed.
        """
        return registry_client(self.settings)

    def __repr__(self) -> str:
        return f"SchemaRegistry(url={self.url!r})"

    __str__ = __repr__

"""The resource for the connection to a Kafka cluster."""

# No postponed annotations here: Dagster reads the type of a resource dependency when it creates the class.

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.properties import Dialect, check_client, is_secret
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.registry.settings import RegistrySettings
from kpipe_platform.resources.known_names import require_kind
from kpipe_platform.resources.schema_registry import SchemaRegistry
from kpipe_platform.resources.secrets import HasSecrets, is_plain, read_value

_SECRETS = ("sasl_password", "ssl_key_password", "oauth_client_secret")


class KafkaConnection(HasSecrets):
    """Connection to a Kafka cluster, shared by librdkafka, Spark's Java client and the tools.

    Pass secrets only as ``dagster.EnvVar``: Dagster would show a plain value in its UI and store it.

    Raises:
        ConfigError: A secret is a plain value, or a property in ``librdkafka`` or ``java`` is unknown or set by kpipe.
            The other settings are checked by ``settings``.
    """

    _secrets: ClassVar[tuple[str, ...]] = _SECRETS
    _variables: ClassVar[str] = "KAFKA"

    bootstrap_servers: str = Field(description="host:port of one or more brokers, separated by commas")
    security_protocol: str = Field(default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    sasl_mechanism: str | None = Field(
        default=None, description="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM or GSSAPI"
    )
    sasl_username: str | None = Field(default=None, description="user of PLAIN and SCRAM")
    sasl_password: str | None = Field(
        default=None, description="password of PLAIN and SCRAM; pass it as EnvVar", repr=False
    )
    oauth_token_url: str | None = Field(
        default=None, description="token endpoint of OAUTHBEARER with OIDC client credentials"
    )
    oauth_client_id: str | None = Field(default=None, description="client id at the token endpoint")
    oauth_client_secret: str | None = Field(
        default=None, description="client secret at the token endpoint; pass it as EnvVar", repr=False
    )
    oauth_scope: str | None = Field(default=None, description="scope of the token")
    oauth_extensions: dict[str, str] = Field(default={}, description="SASL extensions, sent with the token")
    oauth_ca_pem: str | None = Field(
        default=None, description="path of the CA certificates of the token endpoint, a PEM file; None: the system's"
    )
    oauth_token_callback: str | None = Field(
        default=None, description="package.module:function that returns the token, instead of a token endpoint"
    )
    aws_region: str | None = Field(default=None, description="AWS region of the cluster, for AWS_MSK_IAM")
    aws_role_arn: str | None = Field(default=None, description="role to assume; None: the process's credentials")
    aws_profile: str | None = Field(default=None, description="AWS profile; None: the process's credentials")
    kerberos_keytab: str | None = Field(default=None, description="path of the keytab, for GSSAPI")
    kerberos_principal: str | None = Field(default=None, description="principal of the client, for GSSAPI")
    kerberos_service_name: str | None = Field(
        default=None, description="Kerberos service name of the brokers; None: kafka"
    )
    ssl_ca_pem: str | None = Field(default=None, description="path of the CA certificates, a PEM file")
    ssl_certificate_pem: str | None = Field(default=None, description="path of the client certificate, a PEM file")
    ssl_key_pem: str | None = Field(default=None, description="path of the client's private key, a PEM file")
    ssl_key_password: str | None = Field(
        default=None, description="password of the private key; pass it as EnvVar", repr=False
    )
    ssl_verify_hostname: bool = Field(
        default=True, description="verify that the broker's certificate matches its host name"
    )
    client_id: str = Field(default="kpipe", description="client id in broker logs and quotas")
    request_timeout_s: float = Field(default=10.0, description="deadline of one broker call, seconds")
    librdkafka: dict[str, str] = Field(default={}, description="further librdkafka properties", repr=False)
    java: dict[str, str] = Field(default={}, description="further properties of Spark's Kafka client", repr=False)

    schema_registry: dg.ResourceDependency[SchemaRegistry | None] = Field(
        default=None,  # type: ignore[arg-type]  # Dagster replaces the descriptor with the value
        description="the cluster's schema registry; None: there is none",
    )

    def __init__(self, **data: Any) -> None:
        require_kind(type(self), data, "schema_registry", SchemaRegistry)
        super().__init__(**data)
        self._check_properties("librdkafka", self.librdkafka)
        self._check_properties("java", self.java)

    @classmethod
    def _check_properties(cls, dialect: Dialect, given: Mapping[str, str]) -> None:
        where = f"KafkaConnection({dialect}=...)"
        check_client(where, dialect, known_values(given))
        for name, value in given.items():
            if is_secret(name) and cls._is_shown(value):
                msg = f"{where}: {name!r} is a plain value, which Dagster would show in its UI"
                variable = re.sub(r"\W", "_", name.upper())
                raise ConfigError(msg, fix=f'{{"{name}": dg.EnvVar("KAFKA_{variable}")}}', property=name)

    @property
    def settings(self) -> ConnectionSettings:
        """The checked settings, with environment variables read.

        Raises:
            ConfigError: A value or a combination of values is invalid, or an environment variable is not set.
        """
        names = [name for name in type(self).model_fields if name != "schema_registry"]
        values = {name: read_value(self, name, getattr(self, name)) for name in names}
        return ConnectionSettings(**values, schema_registry=self._registry_settings())

    def _registry_settings(self) -> RegistrySettings | None:
        registry = self.schema_registry
        if registry is None:
            return None
        if not isinstance(registry, SchemaRegistry):
            msg = "the schema registry of the connection is configured at launch, so it is available only within a run"
            raise ConfigError(msg, fix="access the connection as a resource of a run", setting="schema_registry")
        return registry.settings

    def __repr__(self) -> str:
        return f"KafkaConnection(bootstrap_servers={self.bootstrap_servers!r}, {self.security_protocol})"

    __str__ = __repr__


def known_values(given: Mapping[str, str]) -> dict[str, str | None]:
    """Return properties with None for each value from an environment variable: it is not available before a run."""
    return {name: value if is_plain(value) else None for name, value in given.items()}

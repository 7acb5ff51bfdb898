"""The resource for the connection to a Kafka cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.properties import Dialect, check_client, is_secret
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.resources.known_names import KnownNames

_SECRETS = ("sasl_password", "ssl_key_password", "oauth_client_secret")
# True while Dagster recreates the resource with the values of its environment variables.
_resolving: ContextVar[bool] = ContextVar("_resolving", default=False)


class KafkaConnection(KnownNames, dg.ConfigurableResource):  # type: ignore[type-arg]
    """Connection to a Kafka cluster, shared by librdkafka, Spark's Java client and the tools.

    Pass secrets only as ``dagster.EnvVar``: Dagster would show a plain value in its UI and store it.

    Raises:
        ConfigError: A secret is a plain value, or a property in ``librdkafka`` or ``java`` is unknown or set by kpipe.
            The other settings are checked by ``settings``.
    """

    # Whether the values come from a run config, in which Dagster has replaced variable names with their values.
    _is_from_run_config: ClassVar[bool] = False

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

    def __init__(self, **data: Any) -> None:
        self._refuse_plain_secrets(data)
        super().__init__(**data)
        self._check_properties("librdkafka", self.librdkafka)
        self._check_properties("java", self.java)

    @classmethod
    def configure_at_launch(cls, **kwargs: Any) -> Any:
        """Same as Dagster's. In the run config, secrets are ``{"env": "VARIABLE"}``.

        Raises:
            ConfigError: A setting is unknown, or a secret is a plain value.
        """
        cls._refuse_plain_secrets(kwargs)
        # Dagster creates a launch-configured resource from this class alone, so a subclass marks that its values come
        # from a run config. The subclass keeps the name, because Dagster shows it.
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        launched: Any = type(cls.__name__, (cls,), {**names, "_is_from_run_config": True})
        return super(KafkaConnection, launched).configure_at_launch(**kwargs)

    @classmethod
    def _refuse_plain_secrets(cls, data: Mapping[str, Any]) -> None:
        for name in _SECRETS:
            if cls._is_shown(data.get(name)):
                msg = f"KafkaConnection({name}=...) is a plain value, which Dagster would show in its UI"
                variable = f"KAFKA_{name.upper()}"
                fix = f'{name}=dg.EnvVar("{variable}"); in the run config {{"env": "{variable}"}}'
                raise ConfigError(msg, fix=fix, setting=name)

    @classmethod
    def _check_properties(cls, dialect: Dialect, given: Mapping[str, str]) -> None:
        where = f"KafkaConnection({dialect}=...)"
        check_client(where, dialect, known_values(given))
        for name, value in given.items():
            if is_secret(name) and cls._is_shown(value):
                msg = f"{where}: {name!r} is a plain value, which Dagster would show in its UI"
                variable = re.sub(r"\W", "_", name.upper())
                raise ConfigError(msg, fix=f'{{"{name}": dg.EnvVar("KAFKA_{variable}")}}', property=name)

    @classmethod
    def _is_shown(cls, secret: object) -> bool:
        """Return whether a secret is a plain value that Dagster shows and stores.

        A value from a run config is not shown if the run config named an environment variable. Then the value is that
        of some environment variable.
        """
        if not is_plain(secret) or _resolving.get():
            return False
        return not (cls._is_from_run_config and secret in os.environ.values())

    def _with_updated_values(self, values: Mapping[str, Any] | None) -> Any:
        with _resolution():
            return super()._with_updated_values(values)

    @property
    def settings(self) -> ConnectionSettings:
        """The checked settings, with environment variables read.

        Raises:
            ConfigError: A value or a combination of values is invalid, or an environment variable is not set.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return ConnectionSettings(**{name: _read(name, value) for name, value in values.items()})

    def __repr__(self) -> str:
        return f"KafkaConnection(bootstrap_servers={self.bootstrap_servers!r}, {self.security_protocol})"

    __str__ = __repr__


def is_plain(value: object) -> bool:
    """Return whether a setting is a plain value, which Dagster shows and stores, and not an ``EnvVar``."""
    return value is not None and not isinstance(value, dg.EnvVar)


def known_values(given: Mapping[str, str]) -> dict[str, str | None]:
    """Return properties with None for each value from an environment variable: it is not available before a run."""
    return {name: value if is_plain(value) else None for name, value in given.items()}


def _read(setting: str, value: Any) -> Any:
    """Return a setting with environment variables replaced by their values."""
    if isinstance(value, dict):
        return {name: _read(f"{setting}[{name!r}]", each) for name, each in value.items()}
    if not isinstance(value, dg.EnvVar):
        return value
    found = value.get_value()
    if found is None:
        msg = f"KafkaConnection.{setting}: the environment variable {value.env_var_name} is not set"
        raise ConfigError(msg, fix=f"export {value.env_var_name}=...", setting=setting)
    return found


@contextmanager
def _resolution() -> Iterator[None]:
    token = _resolving.set(True)
    try:
        yield
    finally:
        _resolving.reset(token)

"""Connection of commands to a Kafka cluster: an option has the servers, the environment has the security settings.

Secrets are read only from the environment: an option would show them in the process list and in the shell's history.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kpipe_platform.errors import ConfigError

if TYPE_CHECKING:
    from kpipe_platform.kafka.client.clients import Clients
    from kpipe_platform.kafka.client.settings import ConnectionSettings

__all__ = ["DEFAULT_SERVERS", "BootstrapServers", "connection_settings", "open_clients"]

DEFAULT_SERVERS = "127.0.0.1:9092"

BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        envvar="KAFKA_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT,...",
        help="Addresses of the Kafka brokers.",
    ),
]
"""Option of every command that connects to Kafka; its default is `DEFAULT_SERVERS`."""

_VARIABLES = {
    "security_protocol": "KAFKA_SECURITY_PROTOCOL",
    "sasl_mechanism": "KAFKA_SASL_MECHANISM",
    "sasl_username": "KAFKA_SASL_USERNAME",
    "sasl_password": "KAFKA_SASL_PASSWORD",
    "oauth_token_url": "KAFKA_OAUTH_TOKEN_URL",
    "oauth_client_id": "KAFKA_OAUTH_CLIENT_ID",
    "oauth_client_secret": "KAFKA_OAUTH_CLIENT_SECRET",
    "oauth_scope": "KAFKA_OAUTH_SCOPE",
    "oauth_ca_pem": "KAFKA_OAUTH_CA_PEM",
    "oauth_token_callback": "KAFKA_OAUTH_TOKEN_CALLBACK",
    "aws_region": "KAFKA_AWS_REGION",
    "aws_role_arn": "KAFKA_AWS_ROLE_ARN",
    "aws_profile": "KAFKA_AWS_PROFILE",
    "kerberos_keytab": "KAFKA_KERBEROS_KEYTAB",
    "kerberos_principal": "KAFKA_KERBEROS_PRINCIPAL",
    "kerberos_service_name": "KAFKA_KERBEROS_SERVICE_NAME",
    "ssl_ca_pem": "KAFKA_SSL_CA_PEM",
    "ssl_certificate_pem": "KAFKA_SSL_CERTIFICATE_PEM",
    "ssl_key_pem": "KAFKA_SSL_KEY_PEM",
    "ssl_key_password": "KAFKA_SSL_KEY_PASSWORD",
}

# name=value, several separated by commas.
_EXTENSIONS = "KAFKA_OAUTH_EXTENSIONS"


def connection_settings(bootstrap_servers: str, environment: Mapping[str, str] | None = None) -> ConnectionSettings:
    """Return the connection settings of a command.

    Args:
        bootstrap_servers: ``host:port``, several separated by commas.
        environment: Environment variables with the security settings; this process's environment by default. Empty
            variables are ignored.

    Raises:
        ConfigError: A value is invalid, or a combination of values is.
    """
    from kpipe_platform.kafka.client.settings import ConnectionSettings

    variables = os.environ if environment is None else environment
    values: dict[str, Any] = {name: variables[v] for name, v in _VARIABLES.items() if variables.get(v)}
    if extensions := variables.get(_EXTENSIONS):
        values["oauth_extensions"] = dict(_extension(each) for each in extensions.split(","))
    try:
        return ConnectionSettings(bootstrap_servers, client_id="kpipe-cli", **values)
    except ConfigError as error:
        # The fix must name the option or environment variable that sets the value.
        setting = error.attributes.get("setting")
        if setting == "bootstrap_servers":
            fix = 'use --bootstrap-servers "broker-1:9092,broker-2:9092", or set KAFKA_BOOTSTRAP_SERVERS'
        elif setting in _VARIABLES:
            fix = f"set, correct or unset the environment variable {_VARIABLES[setting]}"
        else:
            raise
        raise ConfigError(error.message, fix=fix, setting=setting) from error


def _extension(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        msg = f"{_EXTENSIONS} contains {text!r}, which is not name=value"
        raise ConfigError(msg, fix="use name=value, several separated by commas", setting="oauth_extensions")
    return name.strip(), value


def open_clients(bootstrap_servers: str) -> Clients:
    """Return clients for a command, for use in a ``with`` block.

    Raises:
        ConfigError: A connection setting is invalid.
    """
    from kpipe_platform.kafka.client.clients import Clients

    return Clients(connection_settings(bootstrap_servers))

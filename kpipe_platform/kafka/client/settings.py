"""Typed connection settings, rendered for librdkafka and for the Java client.

Source: librdkafka CONFIGURATION.md, Kafka's "Security" documentation, Spark's Kafka source option prefix
``kafka.``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.properties import check_client, is_secret
from kpipe_platform.kafka.client.sasl import LOGIN_HANDLER, SaslSettings
from kpipe_platform.registry.client import RegistryClient, registry_client
from kpipe_platform.registry.settings import RegistrySettings, check_path

_REDACTED = "**********"
_SECRET_FIELDS = ("sasl_password", "ssl_key_password", "oauth_client_secret")
_FILE_FIELDS = ("ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem", "oauth_ca_pem", "kerberos_keytab")
_TRADITIONAL_KEY = re.compile(r"-----BEGIN (RSA|EC|DSA) PRIVATE KEY-----")
_SERVER = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^\s:,\[\]]+):(\d{1,5})$")


@dataclass(frozen=True)
class ConnectionSettings(SaslSettings):
    """Settings to connect to a Kafka cluster, for every client that kpipe creates, with those of `SaslSettings`.

    Args:
        bootstrap_servers: ``host:port``, several separated by commas.
        ssl_ca_pem: Path of the file with the CA certificates (PEM).
        ssl_certificate_pem: Path of the client certificate (PEM), for mutual TLS.
        ssl_key_pem: Path of the client's private key (PEM, PKCS#8), for mutual TLS.
        ssl_key_password: Password of the private key; never shown.
        ssl_verify_hostname: Whether the certificate must match the host name, True by default.
        client_id: Client id in broker logs, quotas and group member lists, ``kpipe`` by default.
        request_timeout_s: Deadline of one broker call, seconds, 10 by default.
        librdkafka: Further librdkafka properties.
        java: Further properties of the Java client (Spark), without Spark's ``kafka.`` prefix.
        schema_registry: The cluster's schema registry, if it has one.

    Raises:
        ConfigError: A value is unknown, or a combination is invalid.
        EnvironmentSetupError: A package or a feature of librdkafka is missing.
    """

    bootstrap_servers: str
    ssl_ca_pem: str | None = None
    ssl_certificate_pem: str | None = None
    ssl_key_pem: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_verify_hostname: bool = True
    client_id: str = "kpipe"
    request_timeout_s: float = 10.0
    librdkafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    java: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema_registry: RegistrySettings | None = None

    def __post_init__(self) -> None:
        self._check_servers()
        for name in _FILE_FIELDS:
            check_path(name, getattr(self, name))
        self.check_sasl()
        self._check_ssl()
        if not self.request_timeout_s > 0:
            msg = f"request_timeout_s is {self.request_timeout_s}; it must be greater than 0 seconds"
            raise ConfigError(msg, fix="set request_timeout_s to a number of seconds, for example 10")
        check_client("librdkafka=", "librdkafka", self.librdkafka)
        check_client("java=", "java", self.java)

    def for_executors(self) -> ConnectionSettings:
        """The settings that Spark's tasks get: without the registry, which only the driver uses."""
        return dataclasses.replace(self, schema_registry=None)

    def registry(self) -> RegistryClient | None:
        """The client of the cluster's schema registry, shared by this process; None if there is no registry.

        Raises:
            EnvironmentSetupError: The extra ``registry`` is not installed.
        """
        return None if self.schema_registry is None else registry_client(self.schema_registry)

    def _check_servers(self) -> None:
        for server in (part.strip() for part in self.bootstrap_servers.split(",")):
            match = _SERVER.match(server)
            if match is None or not 0 < int(match.group(2)) < 65536:
                msg = f"bootstrap_servers contains {server!r}, which is not host:port"
                raise ConfigError(
                    msg, fix='use host:port, for example "broker-1:9092,broker-2:9092"', setting="bootstrap_servers"
                )

    def _check_ssl(self) -> None:
        encrypted = self.security_protocol.endswith("SSL")
        for name in ("ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem", "ssl_key_password"):
            value = getattr(self, name)
            if value is not None and not encrypted:
                msg = f"{name} is set, but security_protocol is {self.security_protocol}"
                raise ConfigError(msg, fix="use SSL or SASL_SSL, or remove the ssl_* settings", setting=name)
        if (self.ssl_certificate_pem is None) != (self.ssl_key_pem is None):
            msg = "only one of ssl_certificate_pem and ssl_key_pem is set"
            raise ConfigError(msg, fix="set both for mutual TLS, or neither", setting="ssl_certificate_pem")

    def _require_files(self) -> None:
        # On the machine of the client: the paths may not exist where the connection is declared.
        for name in _FILE_FIELDS:
            path = getattr(self, name)
            try:
                if path is not None:
                    content = Path(path).read_bytes()
            except OSError as error:
                msg = f"{name}: cannot read {path}: {error.strerror}"
                fix = "check the path and its permissions, where Dagster runs and where Spark's workers run"
                raise ConfigError(msg, fix=fix, setting=name, path=path) from error
            if path is not None and name == "ssl_key_pem" and self.ssl_key_password is None and b"ENCRYPTED" in content:
                # The clients' errors name neither.
                msg = f"ssl_key_pem: the private key in {path} is encrypted, but ssl_key_password is not set"
                raise ConfigError(msg, fix="set ssl_key_password; use dagster.EnvVar for secrets", setting=name)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values, for redaction."""
        values = [getattr(self, name) for name in _SECRET_FIELDS]
        values += [v for props in (self.librdkafka, self.java) for k, v in props.items() if is_secret(k)]
        if self.schema_registry is not None:
            values += self.schema_registry.secrets
        return tuple(value for value in values if value)

    def redact(self, text: str) -> str:
        """Return ``text`` with all secrets replaced."""
        # Longest first, because one secret may be part of another.
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, _REDACTED)
        return text

    def for_librdkafka(self) -> dict[str, Any]:
        """Return settings for confluent-kafka clients. They contain secrets: never log them.

        Raises:
            ConfigError: A file cannot be read on this machine.
        """
        self._require_files()
        timeout_ms = int(self.request_timeout_s * 1000)
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "client.id": self.client_id,
            "socket.timeout.ms": max(timeout_ms, 10),
            "socket.connection.setup.timeout.ms": max(timeout_ms, 1000),
            # Callers receive client errors as typed errors; librdkafka's log lines would repeat them on stderr.
            "log_level": 2,
            # librdkafka waits for half of this between two connection attempts, and a client needs two connections for
            # its first response, so the default of 100 ms delays it by 40 ms. The value grows with each failed attempt.
            "reconnect.backoff.ms": 20,
            # The default backoff grows to 10 s, so a restarted broker would seem unavailable for that long.
            "reconnect.backoff.max.ms": 1000,
        }
        optional = {
            "ssl.ca.location": self.ssl_ca_pem,
            "ssl.certificate.location": self.ssl_certificate_pem,
            "ssl.key.location": self.ssl_key_pem,
            "ssl.key.password": self.ssl_key_password,
        }
        settings.update({name: value for name, value in optional.items() if value is not None})
        if self.security_protocol.endswith("SSL") and not self.ssl_verify_hostname:
            settings["ssl.endpoint.identification.algorithm"] = "none"
        return {**settings, **self.sasl_for_librdkafka(), **self.librdkafka}

    def for_java(self) -> dict[str, str]:
        """Return settings for the Java client: Spark options without the ``kafka.`` prefix. They contain secrets.

        Raises:
            ConfigError: A file cannot be read, or the Java client cannot connect with these settings.
        """
        self._require_files()
        if not self.reads_by_java:
            msg = "the Java client cannot call oauth_token_callback, which is a Python function"
            fix = f'name a Java class that gets the token: KafkaConnection(java={{"{LOGIN_HANDLER}": "..."}})'
            raise ConfigError(msg, fix=fix, setting="oauth_token_callback")
        timeout_ms = str(max(int(self.request_timeout_s * 1000), 1000))
        settings: dict[str, str] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "client.id": self.client_id,
            # With the default timeouts, Spark's source waits three minutes for unreachable brokers.
            "default.api.timeout.ms": timeout_ms,
            "request.timeout.ms": timeout_ms,
        }
        if self.ssl_ca_pem is not None:
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.location"] = self.ssl_ca_pem
        if self.ssl_certificate_pem is not None and self.ssl_key_pem is not None:
            settings["ssl.keystore.type"] = "PEM"
            settings["ssl.keystore.certificate.chain"] = _read_pem(self.ssl_certificate_pem)
            settings["ssl.keystore.key"] = _read_key(self.ssl_key_pem)
        if self.ssl_key_password is not None:
            settings["ssl.key.password"] = self.ssl_key_password
        if self.security_protocol.endswith("SSL") and not self.ssl_verify_hostname:
            settings["ssl.endpoint.identification.algorithm"] = ""
        return {**settings, **self.sasl_for_java(), **self.java}

    @property
    def reads_by_java(self) -> bool:
        """Whether Spark's Java client can connect. If not, kpipe's own client reads in Spark's Python workers."""
        return self.oauth_token_callback is None or LOGIN_HANDLER in self.java

    def describe(self) -> dict[str, Any]:
        """Return the settings for display, with secrets replaced."""
        shown = dataclasses.asdict(self)
        if self.schema_registry is not None:
            shown["schema_registry"] = self.schema_registry.describe()
        for name in _SECRET_FIELDS:
            if shown[name] is not None:
                shown[name] = _REDACTED
        for dialect in ("librdkafka", "java"):
            shown[dialect] = {k: _REDACTED if is_secret(k) else v for k, v in shown[dialect].items()}
        return shown


def _read_pem(path: str) -> str:
    # The Java client accepts certificate and key as one file or as text. Text allows two separate files.
    # Text outside the blocks, such as names of subjects, may have any encoding.
    return Path(path).read_text(encoding="latin-1")


def _read_key(path: str) -> str:
    text = _read_pem(path)
    found = _TRADITIONAL_KEY.search(text)
    if found is not None:
        msg = f"ssl_key_pem: {path} begins with {found.group()}; the Java client reads only PKCS#8"
        raise ConfigError(msg, fix=f"openssl pkcs8 -topk8 -nocrypt -in {path} -out key.pem", setting="ssl_key_pem")
    return text

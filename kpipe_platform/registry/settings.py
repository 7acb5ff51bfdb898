"""Typed settings of a schema registry, rendered for confluent-kafka's client.

Source: confluent-kafka-python, ``SchemaRegistryClient``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kpipe_platform.errors import ConfigError

__all__ = ["RegistrySettings", "check_path"]

_REDACTED = "**********"
_SECRETS = ("password", "bearer_token", "ssl_key_password")
_SSL_FIELDS = ("ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem", "ssl_key_password")


@dataclass(frozen=True)
class RegistrySettings:
    """Settings to connect to a schema registry with Confluent's API.

    Args:
        url: ``http://`` or ``https://`` address, including the path of the API if it has one. Several addresses of one
            registry are separated by commas; each call tries them in this order.
        username: User of HTTP basic authentication. In Confluent Cloud, the API key.
        password: Its password; never shown.
        bearer_token: Token that is sent as ``Authorization: Bearer``; never shown. Not together with ``username``.
        bearer_logical_cluster: Confluent Cloud's id of the registry's cluster; only with ``bearer_token``.
        bearer_identity_pool: Confluent Cloud's id of the identity pool; only with ``bearer_token``.
        ssl_ca_pem: Path of the file with the CA certificates (PEM). Default: the file that ``SSL_CERT_FILE`` names,
            else certifi's certificates.
        ssl_certificate_pem: Path of the client certificate (PEM), for mutual TLS.
        ssl_key_pem: Path of the client's private key (PEM), for mutual TLS.
        ssl_key_password: Password of the private key; never shown.
        request_timeout_s: Deadline to connect to an address, and for its response, seconds, 5 by default.
        timeout_s: Seconds for which a call is retried while the registry is unavailable, 20 by default. A call takes at
            most this time and one further attempt at each address. 0 means a single attempt.
        cache_size: Maximum number of schemas that a client keeps, 1000 by default.

    Raises:
        ConfigError: A value or a combination of values is invalid.
    """

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    bearer_logical_cluster: str | None = None
    bearer_identity_pool: str | None = None
    ssl_ca_pem: str | None = None
    ssl_certificate_pem: str | None = None
    ssl_key_pem: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    request_timeout_s: float = 5.0
    timeout_s: float = 20.0
    cache_size: int = 1000

    def __post_init__(self) -> None:
        for url in self.urls:
            _check_url(url)
        self._check_credentials()
        self._check_ssl()
        if not self.request_timeout_s > 0:
            msg = f"request_timeout_s is {self.request_timeout_s}; it must be greater than 0 seconds"
            raise _invalid("request_timeout_s", msg, "set it to a number of seconds, for example 5")
        if not self.timeout_s >= 0:
            msg = f"timeout_s is {self.timeout_s}; it must not be negative"
            raise _invalid("timeout_s", msg, "set it to a number of seconds, for example 20; 0 means one attempt")
        if self.cache_size < 1:
            msg = f"cache_size is {self.cache_size}; it must be at least 1"
            raise _invalid("cache_size", msg, "set it to a number of schemas, for example 1000")

    def _check_credentials(self) -> None:
        if (self.username is None) != (self.password is None):
            msg = "only one of username and password is set"
            raise _invalid("username", msg, "set both for basic authentication, or neither")
        if self.username is not None and ":" in self.username:
            msg = "username contains a colon, which HTTP basic authentication cannot send"
            raise _invalid("username", msg, "use a user without a colon in its name")
        if self.bearer_token is None:
            for name in ("bearer_logical_cluster", "bearer_identity_pool"):
                if getattr(self, name) is not None:
                    raise _invalid(
                        name, f"{name} is set, but bearer_token is not", f"set bearer_token, or remove {name}"
                    )
            return
        if self.username is not None:
            msg = "username and bearer_token are both set, but a request has only one Authorization header"
            raise _invalid("bearer_token", msg, "keep username and password, or bearer_token")
        # An HTTP header cannot contain these characters, and the client's error would quote the token.
        if not self.bearer_token or not all("!" <= each <= "~" for each in self.bearer_token):
            msg = "bearer_token is empty, or contains white space or characters other than printable ASCII"
            raise _invalid("bearer_token", msg, "remove a line break at its end, and the word Bearer before it")

    def _check_ssl(self) -> None:
        encrypted = any(url.startswith("https://") for url in self.urls)
        for name in _SSL_FIELDS:
            path = getattr(self, name)
            if path is None:
                continue
            if name != "ssl_key_password":
                check_path(name, path)
            if not encrypted:
                raise _invalid(
                    name, f"{name} is set, but no address begins with https://", f"use https://, or remove {name}"
                )
        if self.ssl_certificate_pem is None and (self.ssl_key_pem is not None or self.ssl_key_password is not None):
            msg = "a private key is set without ssl_certificate_pem"
            raise _invalid("ssl_certificate_pem", msg, "set it for mutual TLS, or remove the key")

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses, without white space and trailing slashes."""
        return tuple(url.strip().rstrip("/") for url in self.url.split(","))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secret values, for redaction."""
        return tuple(filter(None, (getattr(self, name) for name in _SECRETS)))

    def redact(self, text: str) -> str:
        """Return ``text`` with all secrets replaced."""
        # Longest first, because one secret may be part of another.
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, _REDACTED)
        return text

    def describe(self) -> dict[str, Any]:
        """Return the settings for display, with secrets replaced."""
        shown = dataclasses.asdict(self)
        return {name: _REDACTED if name in _SECRETS and value else value for name, value in shown.items()}

    def for_confluent(self) -> dict[str, Any]:
        """Return settings for confluent-kafka's ``SchemaRegistryClient``. They contain secrets: never log them.

        Raises:
            ConfigError: A file cannot be read on this machine.
        """
        for name in ("ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem"):
            path = getattr(self, name)
            try:
                if path is not None:
                    Path(path).open("rb").close()
            except OSError as error:
                msg = f"{name}: cannot read {path}: {error.strerror}"
                raise _invalid(name, msg, "check the path and its permissions, where Dagster runs") from error
        optional = {
            "ssl.ca.location": self.ssl_ca_pem,
            "ssl.certificate.location": self.ssl_certificate_pem,
            "ssl.key.location": self.ssl_key_pem,
            "ssl.key.password": self.ssl_key_password,
        }
        settings = {name: value for name, value in optional.items() if value is not None}
        if self.username is not None:
            settings["basic.auth.user.info"] = f"{self.username}:{self.password}"
        if self.bearer_token is not None:
            settings["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            settings["bearer.auth.token"] = self.bearer_token
            # The client requires both. Registries other than Confluent Cloud ignore them.
            settings["bearer.auth.logical.cluster"] = self.bearer_logical_cluster or ""
            if self.bearer_identity_pool is not None:
                settings["bearer.auth.identity.pool.id"] = self.bearer_identity_pool
        return {
            **settings,
            "url": ",".join(self.urls),
            "timeout": self.request_timeout_s,
            # The client would wait for up to 20 s between attempts, without a deadline for all of them.
            "max.retries": 0,
        }


def check_path(setting: str, path: str | None) -> None:
    """Refuse the content of a file in place of its path. It may be a private key, which errors would then quote.

    Raises:
        ConfigError: The value is not a path.
    """
    if path is not None and ("-----BEGIN" in path or "\n" in path or "\0" in path):
        msg = f"{setting} is the content of a file; it must be the path of a file"
        raise ConfigError(msg, fix=f"write it to a file, and set {setting} to its path", setting=setting)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        # The URL is not quoted, because it may contain a password.
        raise _invalid("url", f"url contains an address that is not a URL: {error}", _URL_FIX) from None
    if parts.username is not None or parts.password is not None:
        msg = "url contains a user or a password, which logs and the Dagster UI would show"
        raise _invalid("url", msg, "remove them from the URL, and set username and password")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise _invalid("url", f"url contains {url!r}, which is not the address of a schema registry", _URL_FIX)


_URL_FIX = 'use http:// or https://, for example "https://registry-1:8081,https://registry-2:8081"'


def _invalid(setting: str, message: str, fix: str) -> ConfigError:
    return ConfigError(f"schema registry: {message}", fix=fix, setting=setting)

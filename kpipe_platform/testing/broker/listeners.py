"""Additional SASL and TLS listeners of the embedded broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kpipe_platform.errors import ConfigError

__all__ = ["BrokerListener", "SecurityProtocol", "TlsFiles"]

SecurityProtocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]

_JAAS = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class TlsFiles:
    """A broker's certificate, and the client certificates that it trusts.

    Attributes:
        keystore: PKCS12 file with the broker's key and certificate, as written by ``keytool -genkeypair``. Clients
            accept the certificate only if it has the subject alternative name ``ip:127.0.0.1``.
        password: Password of the keystore, of its key and of the truststore.
        truststore: PKCS12 file with the certificates of clients. Only for ``client_auth``.
        client_auth: Whether clients must present a certificate.
    """

    keystore: Path
    password: str = field(repr=False)
    truststore: Path | None = None
    client_auth: Literal["none", "requested", "required"] = "none"

    def settings(self) -> dict[str, str]:
        """Render the listener's ``ssl.*`` settings."""
        settings = {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.keystore),
            "ssl.keystore.password": self.password,
            "ssl.key.password": self.password,
            "ssl.client.auth": self.client_auth,
        }
        if self.truststore is not None:
            settings |= {
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": str(self.truststore),
                "ssl.truststore.password": self.password,
            }
        return settings


@dataclass(frozen=True)
class BrokerListener:
    """An additional listener, for which every broker opens its own loopback port.

    Attributes:
        name: Its name for `EmbeddedBroker.listener`. Letters, digits and underscores.
        security_protocol: Its security protocol.
        settings: Broker settings of this listener only, without the prefix ``listener.name.{name}.``.
        scram_users: Users and passwords to store in the cluster for the SCRAM mechanisms.
        scram_mechanisms: SCRAM mechanisms for which each user is stored.
        jvm_options: JVM options that the listener needs.
    """

    name: str
    security_protocol: SecurityProtocol
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    scram_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    scram_mechanisms: tuple[str, ...] = ()
    jvm_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.replace("_", "").isalnum() or self.name in {"INTERNAL", "CONTROLLER"}:
            msg = f"{self.name!r} cannot be the name of an additional listener."
            raise ConfigError(msg, fix="use letters, digits and underscores, as in SASL_PLAINTEXT")

    @classmethod
    def sasl(
        cls,
        users: Mapping[str, str],
        *,
        mechanisms: Sequence[str] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        tls: TlsFiles | None = None,
        name: str | None = None,
    ) -> BrokerListener:
        """Create a listener that requires a user name and a password.

        Args:
            users: Passwords by user name, valid for every mechanism.
            mechanisms: ``PLAIN``, ``SCRAM-SHA-256`` and ``SCRAM-SHA-512``, or some of them.
            tls: The broker's certificate. With it, the protocol is ``SASL_SSL`` instead of ``SASL_PLAINTEXT``.
            name: Name of the listener. Default: the name of the security protocol.
        """
        protocol: SecurityProtocol = "SASL_PLAINTEXT" if tls is None else "SASL_SSL"
        settings = {"sasl.enabled.mechanisms": ",".join(mechanisms)}
        scram = tuple(each for each in mechanisms if each.startswith("SCRAM-"))
        for mechanism in scram:
            settings[f"{mechanism.lower()}.sasl.jaas.config"] = f"{_JAAS}.scram.ScramLoginModule required;"
        if "PLAIN" in mechanisms:
            entries = " ".join(f"user_{user}={_quoted(word)}" for user, word in users.items())
            settings["plain.sasl.jaas.config"] = f"{_JAAS}.plain.PlainLoginModule required {entries};"
        if tls is not None:
            settings |= tls.settings()
        return cls(name or protocol, protocol, settings, users if scram else {}, scram)

    @classmethod
    def oauth(
        cls,
        jwks_url: str,
        *,
        issuer: str,
        audience: str,
        tls: TlsFiles | None = None,
        name: str | None = None,
    ) -> BrokerListener:
        """Create a listener that requires a signed token (OAUTHBEARER). Kafka's own validator checks it.

        A client must authenticate again before its token expires; otherwise the broker closes its connection.

        Args:
            jwks_url: Address of the keys that sign tokens.
            issuer: The tokens' ``iss``.
            audience: The tokens' ``aud``.
            tls: The broker's certificate. With it, the protocol is ``SASL_SSL`` instead of ``SASL_PLAINTEXT``.
            name: Name of the listener. Default: the name of the security protocol.
        """
        protocol: SecurityProtocol = "SASL_PLAINTEXT" if tls is None else "SASL_SSL"
        package = f"{_JAAS}.oauthbearer"
        settings = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "oauthbearer.sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
            "oauthbearer.sasl.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
            "oauthbearer.connections.max.reauth.ms": "3600000",
            "sasl.oauthbearer.jwks.endpoint.url": jwks_url,
            "sasl.oauthbearer.expected.issuer": issuer,
            "sasl.oauthbearer.expected.audience": audience,
        }
        if tls is not None:
            settings |= tls.settings()
        # By default, Kafka 4 fetches keys from no address.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks_url}"
        return cls(name or protocol, protocol, settings, jvm_options=(allowed,))

    @classmethod
    def ssl(cls, tls: TlsFiles, *, name: str | None = None) -> BrokerListener:
        """Create a TLS listener.

        Args:
            tls: The broker's certificate, and the client certificates that it trusts.
            name: Name of the listener. Default: ``SSL``.
        """
        return cls(name or "SSL", "SSL", tls.settings())


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

"""Additional listeners of the embedded broker: SASL and TLS beside the plain one."""

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
    """A broker's certificate, and whom it trusts.

    Attributes:
        keystore: PKCS12 file with the broker's key and certificate, as ``keytool -genkeypair`` writes it. For
            clients to accept it, the certificate has the subject alternative name ``ip:127.0.0.1``.
        password: Password of the keystore, of its key and of the truststore.
        truststore: PKCS12 file with the certificates of clients; only for ``client_auth``.
        client_auth: Whether clients must show a certificate of their own.
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
    """One more listener that every broker opens on a loopback port of its own.

    Attributes:
        name: Its name, by which `EmbeddedBroker.listener` finds it; letters, digits and underscores.
        security_protocol: What it speaks.
        settings: Broker settings of this listener alone, without the prefix ``listener.name.{name}.``.
        scram_users: Users and passwords that are stored in the cluster for the SCRAM mechanisms.
        scram_mechanisms: SCRAM mechanisms that each of the users is stored for.
    """

    name: str
    security_protocol: SecurityProtocol
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    scram_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    scram_mechanisms: tuple[str, ...] = ()

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
        """A listener that asks for a user name and a password.

        Args:
            users: Passwords by user name; valid for every mechanism.
            mechanisms: ``PLAIN``, ``SCRAM-SHA-256`` and ``SCRAM-SHA-512``, or some of them.
            tls: Makes it ``SASL_SSL`` instead of ``SASL_PLAINTEXT``.
            name: Name; the security protocol's by default.
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
    def ssl(cls, tls: TlsFiles, *, name: str | None = None) -> BrokerListener:
        """A listener that speaks TLS.

        Args:
            tls: The broker's certificate and whom it trusts.
            name: Name; ``SSL`` by default.
        """
        return cls(name or "SSL", "SSL", tls.settings())


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

"""A certificate authority of the tests' own: a broker's keystore, and certificates of clients as PEM files."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from kpipe_platform.testing.broker.listeners import TlsFiles

STORE_PASSWORD = "store-secret"


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@dataclass(frozen=True)
class Identity:
    """A client's files, and the principal that brokers see."""

    certificate: Path
    key: Path
    principal: str


class Authority:
    """Signs certificates that are valid for a day."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._signed("authority", self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.pem = folder / "ca.pem"
        self.pem.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def broker(self) -> TlsFiles:
        """A keystore for brokers on 127.0.0.1, which require a certificate of this authority from clients."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._signed("broker", key, names)
        keystore, truststore = self._folder / "broker.p12", self._folder / "trusted.p12"
        secret = BestAvailableEncryption(STORE_PASSWORD.encode())
        keystore.write_bytes(
            pkcs12.serialize_key_and_certificates(b"broker", key, certificate, [self._certificate], secret)
        )
        trusted = [pkcs12.PKCS12Certificate(self._certificate, b"ca")]
        truststore.write_bytes(pkcs12.serialize_java_truststore(trusted, secret))
        return TlsFiles(keystore, STORE_PASSWORD, truststore, "required")

    def client(self, name: str, *, password: str | None = None, traditional: bool = False) -> Identity:
        """A client's certificate and private key, encrypted with the password if there is one."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(name, key)
        files = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key", f"User:CN={name}")
        files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        secret: KeySerializationEncryption = NoEncryption()
        if password is not None:
            secret = BestAvailableEncryption(password.encode())
        form = PrivateFormat.TraditionalOpenSSL if traditional else PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(Encoding.PEM, form, secret))
        return files

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=5))
            .not_valid_after(now + dt.timedelta(days=1))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())

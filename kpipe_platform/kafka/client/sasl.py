"""SASL mechanisms: the settings that each needs, and how it is rendered for librdkafka and for the Java client.

Source: librdkafka CONFIGURATION.md; Kafka's "Authentication using SASL"; KIP-768 (OIDC); the READMEs of
aws-msk-iam-auth (Java) and aws-msk-iam-sasl-signer-python.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.kafka.client._compat import has_feature
from kpipe_platform.kafka.client.tokens import CallbackTokens, MskTokens, load_callback, require_msk_package

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"]

MSK_COORDINATE = "software.amazon.msk:aws-msk-iam-auth:2.3.5"
"""The jar that Spark's Java client needs for AWS_MSK_IAM, for ``spark.jars.packages``."""

# The settings of each mechanism; those of the first tuple are required.
_PASSWORD: tuple[tuple[str, ...], tuple[str, ...]] = (("sasl_username", "sasl_password"), ())
_SETTINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _PASSWORD,
    "SCRAM-SHA-512": _PASSWORD,
    "OAUTHBEARER": (
        (),
        (
            *("oauth_token_url", "oauth_client_id", "oauth_client_secret", "oauth_scope", "oauth_extensions"),
            *("oauth_ca_pem", "oauth_token_callback"),
        ),
    ),
    "AWS_MSK_IAM": (("aws_region",), ("aws_role_arn", "aws_profile")),
    "GSSAPI": (("kerberos_keytab", "kerberos_principal"), ("kerberos_service_name",)),
}
_ALL_SETTINGS = tuple(dict.fromkeys(name for pair in _SETTINGS.values() for names in pair for name in names))

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_OIDC_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MSK_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
LOGIN_HANDLER = "sasl.login.callback.handler.class"
"""The property that names a Java class that gets tokens."""
# Without a user and a password, which logs and the UI would show.
_URL = re.compile(r"^https?://[^\s/@]+(/\S*)?$")
# KIP-342 allows only letters. librdkafka takes the extensions as a list that commas separate.
_EXTENSION = re.compile(r"^(?!auth$)[A-Za-z]+$")


@dataclass(frozen=True, kw_only=True)
class SaslSettings:
    """Security protocol, and the settings of the SASL mechanisms.

    Args:
        security_protocol: One of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL; PLAINTEXT by default.
        sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM or GSSAPI; only for the SASL
            protocols.
        sasl_username: User of PLAIN and SCRAM.
        sasl_password: Password of PLAIN and SCRAM; never shown.
        oauth_token_url: URL of the token endpoint, for OAUTHBEARER with OIDC client credentials.
        oauth_client_id: Client id at the token endpoint.
        oauth_client_secret: Client secret at the token endpoint; never shown.
        oauth_scope: Scope of the token.
        oauth_extensions: SASL extensions by name, sent to the brokers with the token.
        oauth_ca_pem: Path of the CA certificates of the token endpoint (PEM). Default: those of the system, and in
            librdkafka those of the file that ``SSL_CERT_FILE`` names.
        oauth_token_callback: ``package.module:function`` that returns the token, instead of a token endpoint. It takes
            the value of librdkafka's ``sasl.oauthbearer.config`` or None, and returns (token, expiry in seconds since
            1970), and optionally the principal and a dict of extensions.
        aws_region: AWS region of the cluster, for AWS_MSK_IAM.
        aws_role_arn: ARN of the role to assume. Default: the credentials of the process.
        aws_profile: Profile of the AWS configuration. Default: the credentials of the process.
        kerberos_keytab: Path of the keytab, for GSSAPI.
        kerberos_principal: Principal of the client.
        kerberos_service_name: Service name of the brokers, ``kafka`` by default.
    """

    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    oauth_token_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: str | None = field(default=None, repr=False)
    oauth_scope: str | None = None
    oauth_extensions: Mapping[str, str] = field(default_factory=dict)
    oauth_ca_pem: str | None = None
    oauth_token_callback: str | None = None
    aws_region: str | None = None
    aws_role_arn: str | None = None
    aws_profile: str | None = None
    kerberos_keytab: str | None = None
    kerberos_principal: str | None = None
    kerberos_service_name: str | None = None

    def check_sasl(self) -> None:
        """Check the settings of the mechanism, and that this machine has what it needs.

        Raises:
            ConfigError: A setting is missing, is wrong, or belongs to another mechanism.
            EnvironmentSetupError: A package or a feature of librdkafka is missing.
        """
        protocol, mechanism = self.security_protocol, self.sasl_mechanism
        if protocol not in get_args(SecurityProtocol):
            raise _unknown("security_protocol", protocol, get_args(SecurityProtocol))
        if not protocol.startswith("SASL_"):
            for name in ("sasl_mechanism", *_ALL_SETTINGS):
                if getattr(self, name):
                    msg = f"{name} is set, but security_protocol is {protocol}"
                    fix = f"use SASL_SSL or SASL_PLAINTEXT, or remove the {name.partition('_')[0]}_* settings"
                    raise ConfigError(msg, fix=fix, setting=name)
            return
        if mechanism is None or mechanism not in get_args(SaslMechanism):
            raise _unknown("sasl_mechanism", mechanism, get_args(SaslMechanism))
        required, optional = _SETTINGS[mechanism]
        for name in _ALL_SETTINGS:
            if getattr(self, name) and name not in required + optional:
                msg = f"{name} is set, but sasl_mechanism is {mechanism}"
                raise ConfigError(msg, fix=f"remove {name}, or change sasl_mechanism", setting=name)
        for name in required:
            if not getattr(self, name):
                raise _missing(name, f"sasl_mechanism {mechanism}")
        if mechanism == "OAUTHBEARER":
            _check_oauth(self)
        elif mechanism == "AWS_MSK_IAM":
            _check_msk(self)
        elif mechanism == "GSSAPI":
            _check_kerberos()

    def sasl_for_librdkafka(self) -> dict[str, Any]:
        """Return the properties of the mechanism for confluent-kafka clients. They contain secrets."""
        mechanism = self.sasl_mechanism
        if mechanism is None:
            return {}
        if mechanism == "AWS_MSK_IAM":
            tokens = MskTokens(self.aws_region or "", self.aws_role_arn, self.aws_profile)
            return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": tokens}
        if self.oauth_token_callback is not None:
            return {"sasl.mechanism": mechanism, "oauth_cb": CallbackTokens(self.oauth_token_callback)}
        extensions = ",".join(f"{name}={value}" for name, value in self.oauth_extensions.items())
        optional = {
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
            # librdkafka then gets the tokens itself, in a thread of its own.
            "sasl.oauthbearer.method": "oidc" if mechanism == "OAUTHBEARER" else None,
            "sasl.oauthbearer.token.endpoint.url": self.oauth_token_url,
            "sasl.oauthbearer.client.id": self.oauth_client_id,
            "sasl.oauthbearer.client.secret": self.oauth_client_secret,
            "sasl.oauthbearer.scope": self.oauth_scope,
            "sasl.oauthbearer.extensions": extensions or None,
            "https.ca.location": self._oauth_ca(),
            "sasl.kerberos.service.name": self._service_name,
            "sasl.kerberos.keytab": self.kerberos_keytab,
            "sasl.kerberos.principal": self.kerberos_principal,
        }
        return {"sasl.mechanism": mechanism, **{name: value for name, value in optional.items() if value is not None}}

    def sasl_for_java(self) -> dict[str, str]:
        """Return the properties of the mechanism for the Java client. They contain secrets."""
        mechanism = self.sasl_mechanism
        if mechanism is None:
            return {}
        options: dict[str, str | None] = {}
        properties: dict[str, str] = {"sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER" and self.oauth_token_url is not None:
            properties[LOGIN_HANDLER] = _OIDC_HANDLER
            properties["sasl.oauthbearer.token.endpoint.url"] = self.oauth_token_url
            options = {
                "clientId": self.oauth_client_id,
                "clientSecret": self.oauth_client_secret,
                "scope": self.oauth_scope,
                **{f"extension_{name}": value for name, value in self.oauth_extensions.items()},
                # TLS of the token endpoint. That of the brokers is apart from it.
                "ssl.truststore.type": None if self.oauth_ca_pem is None else "PEM",
                "ssl.truststore.location": self.oauth_ca_pem,
            }
        elif mechanism == "AWS_MSK_IAM":
            properties["sasl.client.callback.handler.class"] = _MSK_HANDLER
            options = {"awsRoleArn": self.aws_role_arn, "awsProfileName": self.aws_profile}
            if self.aws_role_arn is not None:
                options["awsStsRegion"] = self.aws_region
        elif mechanism == "GSSAPI":
            properties["sasl.kerberos.service.name"] = self._service_name or ""
            options = {
                "useKeyTab": "true",
                "storeKey": "true",
                "keyTab": self.kerberos_keytab,
                "principal": self.kerberos_principal,
            }
        elif mechanism != "OAUTHBEARER":
            options = {"username": self.sasl_username, "password": self.sasl_password}
        given = "".join(f' {name}="{_quoted(value)}"' for name, value in options.items() if value is not None)
        properties["sasl.jaas.config"] = f"{_LOGIN_MODULES[mechanism]} required{given};"
        return properties

    def _oauth_ca(self) -> str | None:
        if self.oauth_ca_pem is not None or not (self.oauth_token_url or "").startswith("https:"):
            return self.oauth_ca_pem
        # The libcurl in confluent-kafka's wheels reads only a file that Debian and Ubuntu do not have.
        system = ssl.get_default_verify_paths()
        return system.cafile or system.capath

    @property
    def _service_name(self) -> str | None:
        return (self.kerberos_service_name or "kafka") if self.sasl_mechanism == "GSSAPI" else None


def _check_oauth(settings: SaslSettings) -> None:
    if settings.oauth_token_callback is not None:
        for name in _SETTINGS["OAUTHBEARER"][1]:
            if name != "oauth_token_callback" and getattr(settings, name):
                msg = f"{name} is set together with oauth_token_callback"
                fix = f"remove {name}: the callback gets the token, and returns its extensions"
                raise ConfigError(msg, fix=fix, setting=name)
        load_callback(settings.oauth_token_callback)
        return
    if settings.oauth_token_url is None:
        msg = "sasl_mechanism OAUTHBEARER has neither oauth_token_url nor oauth_token_callback"
        fix = "set oauth_token_url, oauth_client_id and oauth_client_secret; or set oauth_token_callback"
        raise ConfigError(msg, fix=fix, setting="oauth_token_url")
    if not _URL.match(settings.oauth_token_url):
        msg = "oauth_token_url is not a URL, or contains a user"
        raise ConfigError(
            msg, fix='use the token endpoint, for example "https://login.example.com/token"', setting="oauth_token_url"
        )
    for name in ("oauth_client_id", "oauth_client_secret"):
        if not getattr(settings, name):
            raise _missing(name, "oauth_token_url")
    for name, value in settings.oauth_extensions.items():
        if not _EXTENSION.match(name) or "," in value or not (value.isascii() and value.isprintable()):
            msg = f"oauth_extensions: {name!r} cannot be sent as an extension"
            fix = "use letters only in a name, and printable ASCII characters without a comma in a value"
            raise ConfigError(msg, fix=fix, setting="oauth_extensions")


def _check_msk(settings: SaslSettings) -> None:
    if settings.security_protocol != "SASL_SSL":
        msg = f"security_protocol is {settings.security_protocol}, but MSK accepts AWS_MSK_IAM only over TLS"
        raise ConfigError(msg, fix="set security_protocol to SASL_SSL", setting="security_protocol")
    if settings.aws_role_arn is not None and settings.aws_profile is not None:
        msg = "both aws_role_arn and aws_profile are set"
        raise ConfigError(msg, fix="set only one of them, or neither", setting="aws_profile")
    require_msk_package()


def _check_kerberos() -> None:
    if not has_feature("gssapi"):
        msg = "sasl_mechanism GSSAPI needs librdkafka with libsasl2, which the wheels of confluent-kafka do not have"
        fix = (
            "install librdkafka with libsasl2 and its headers, then: pip install --no-binary confluent-kafka "
            "confluent-kafka"
        )
        raise EnvironmentSetupError(msg, fix=fix, feature="gssapi")


def _unknown(name: str, value: object, known: tuple[str, ...]) -> ConfigError:
    msg = f"{name} is {value!r}; it must be one of {', '.join(known)}"
    return ConfigError(msg, fix=f"set {name} to one of these values", setting=name)


def _missing(name: str, needed_for: str) -> ConfigError:
    secret = "; use dagster.EnvVar for secrets" if name.endswith(("password", "secret")) else ""
    return ConfigError(f"{name} is required for {needed_for}", fix=f"set {name}{secret}", setting=name)


def _quoted(value: str) -> str:
    # Java's StreamTokenizer ends a quoted text at the end of the line.
    return value.translate({ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n", ord("\r"): "\\r"})


__all__ = ["LOGIN_HANDLER", "MSK_COORDINATE", "SaslMechanism", "SaslSettings", "SecurityProtocol"]

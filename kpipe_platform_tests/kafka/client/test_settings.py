"""One typed object renders both dialects, refuses what is unknown, and never shows a secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from kpipe_platform.errors import ConfigError, EnvironmentSetupError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.client.tokens import CallbackTokens, MskTokens

# Any file: nothing connects.
CA = __file__
SCRAM: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "ann",
    "sasl_password": 's3cr"et\\',
    "ssl_ca_pem": CA,
}
OAUTH: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "oauth_token_url": "https://login.example.com/token",
    "oauth_client_id": "me",
    "oauth_client_secret": 's3cr"et',
}
CALLBACK = "kpipe_platform_tests.security.callbacks:token"
BY_CALLBACK: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "oauth_token_callback": CALLBACK,
}
MSK: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM", "aws_region": "eu-west-1"}
KERBEROS: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "GSSAPI",
    "kerberos_keytab": CA,
    "kerberos_principal": "kpipe@EXAMPLE.COM",
}
_OAUTH_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"


def settings(**changes: Any) -> ConnectionSettings:
    return ConnectionSettings("b1:9092,b2:9092", **changes)


@pytest.mark.parametrize(
    ("given", "librdkafka", "java"),
    [
        ({}, {"security.protocol": "PLAINTEXT"}, {"security.protocol": "PLAINTEXT"}),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "ann",
                "sasl_password": "pw",
            },
            {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "pw"},
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="ann" password="pw";',
            },
        ),
        (
            SCRAM,
            {"sasl.password": 's3cr"et\\', "ssl.ca.location": CA},
            {
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="ann" password="s3cr\\"et\\\\";',
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": CA,
            },
        ),
        (
            {**OAUTH, "oauth_scope": "kafka", "oauth_extensions": {"pool": "p1", "cluster": "c1"}, "oauth_ca_pem": CA},
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": 's3cr"et',
                "sasl.oauthbearer.scope": "kafka",
                "sasl.oauthbearer.extensions": "pool=p1,cluster=c1",
                "https.ca.location": CA,
            },
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.login.callback.handler.class": f"{_OAUTH_LOGIN}CallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": "https://login.example.com/token",
                "sasl.jaas.config": f'{_OAUTH_LOGIN}Module required clientId="me" clientSecret="s3cr\\"et" '
                'scope="kafka" extension_pool="p1" extension_cluster="c1" '
                f'ssl.truststore.type="PEM" ssl.truststore.location="{CA}";',
            },
        ),
        (
            {**BY_CALLBACK, "java": {"sasl.login.callback.handler.class": "com.example.Tokens"}},
            {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": CallbackTokens(CALLBACK)},
            {
                "sasl.login.callback.handler.class": "com.example.Tokens",
                "sasl.jaas.config": f"{_OAUTH_LOGIN}Module required;",
            },
        ),
        (
            {**MSK, "aws_role_arn": "arn:aws:iam::1:role/kpipe"},
            {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": MskTokens("eu-west-1", "arn:aws:iam::1:role/kpipe")},
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
                "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required "
                'awsRoleArn="arn:aws:iam::1:role/kpipe" awsStsRegion="eu-west-1";',
            },
        ),
        (
            {"security_protocol": "SSL", "ssl_verify_hostname": False},
            {"ssl.endpoint.identification.algorithm": "none"},
            {"ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {"librdkafka": {"socket.keepalive.enable": "true"}, "java": {"receive.buffer.bytes": "1"}},
            {"socket.keepalive.enable": "true"},
            {"receive.buffer.bytes": "1"},
        ),
    ],
)
def test_both_dialects(given: dict[str, Any], librdkafka: dict[str, Any], java: dict[str, str]) -> None:
    rendered = settings(**given)
    assert librdkafka.items() <= rendered.for_librdkafka().items()
    assert java.items() <= rendered.for_java().items()
    for dialect in (rendered.for_librdkafka(), rendered.for_java()):
        assert dialect["bootstrap.servers"] == "b1:9092,b2:9092"


@pytest.mark.parametrize("name", ["ssl_ca_pem", "ssl_key_pem", "oauth_ca_pem", "kerberos_keytab"])
def test_the_content_of_a_file_is_refused_and_not_shown(name: str) -> None:
    for content in ("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nhidden\n", "hidden\0"):
        with pytest.raises(ConfigError, match=f"{name} is the content of a file") as caught:
            settings(**{name: content})
        assert "hidden" not in str(caught.value)
        assert "BEGIN" not in str(caught.value)


def test_a_password_in_java_keeps_each_character() -> None:
    """Java's tokenizer ends a quoted text at a line break, and reads escapes."""
    given = {**SCRAM, "sasl_password": 'a"b\\c$d\ne\rf\\n'}
    jaas = settings(**given).for_java()["sasl.jaas.config"]
    assert jaas.endswith(r'password="a\"b\\c$d\ne\rf\\n";')


def test_the_token_endpoints_authority_is_the_systems_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", CA)
    assert settings(**OAUTH).for_librdkafka()["https.ca.location"] == CA
    plain = settings(**{**OAUTH, "oauth_token_url": "http://127.0.0.1/token"})
    assert "https.ca.location" not in plain.for_librdkafka()


def test_kerberos_with_a_librdkafka_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kpipe_platform.kafka.client.sasl.has_feature", lambda feature: feature == "gssapi")
    rendered = settings(**KERBEROS)
    librdkafka = {
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": CA,
        "sasl.kerberos.principal": "kpipe@EXAMPLE.COM",
    }
    assert librdkafka.items() <= rendered.for_librdkafka().items()
    java = rendered.for_java()
    assert java["sasl.kerberos.service.name"] == "kafka"
    assert java["sasl.jaas.config"] == (
        f'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true" storeKey="true" keyTab="{CA}" '
        'principal="kpipe@EXAMPLE.COM";'
    )


def test_kerberos_with_the_wheels_of_confluent_kafka() -> None:
    with pytest.raises(EnvironmentSetupError, match="--no-binary confluent-kafka"):
        settings(**KERBEROS)


def test_msk_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentSetupError, match=r"kpipe-platform\[msk\]"):
        settings(**MSK)


def test_java_cannot_call_a_python_function() -> None:
    rendered = settings(**BY_CALLBACK)
    assert not rendered.reads_by_java
    with pytest.raises(ConfigError, match=r"sasl\.login\.callback\.handler\.class"):
        rendered.for_java()
    assert settings(**OAUTH).reads_by_java


@pytest.mark.parametrize("kind", ["RSA", "EC"])
def test_a_key_that_java_cannot_read_names_the_command_that_converts_it(kind: str, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text(f"-----BEGIN {kind} PRIVATE KEY-----\n")
    wrong = settings(security_protocol="SSL", ssl_certificate_pem=str(key), ssl_key_pem=str(key))
    with pytest.raises(ConfigError, match="openssl pkcs8 -topk8"):
        wrong.for_java()


def test_an_encrypted_key_without_its_password(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    wrong = settings(security_protocol="SSL", ssl_certificate_pem=CA, ssl_key_pem=str(key))
    for render in (wrong.for_java, wrong.for_librdkafka):
        with pytest.raises(ConfigError, match="is encrypted, but ssl_key_password is not set"):
            render()


def test_files_of_windows_and_text_around_the_blocks(tmp_path: Path) -> None:
    pem = tmp_path / "key.pem"
    pem.write_bytes("subject=CN=Zo\u00eb\r\n-----BEGIN PRIVATE KEY-----\r\n-----END PRIVATE KEY-----\r\n".encode())
    java = settings(security_protocol="SSL", ssl_certificate_pem=str(pem), ssl_key_pem=str(pem)).for_java()
    assert "-----BEGIN PRIVATE KEY-----\n" in java["ssl.keystore.key"]


def test_mutual_tls_hands_java_the_text_of_two_files(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("CERT")
    (tmp_path / "key.pem").write_text("KEY")
    rendered = settings(
        security_protocol="SSL",
        ssl_certificate_pem=str(tmp_path / "cert.pem"),
        ssl_key_pem=str(tmp_path / "key.pem"),
        ssl_key_password="pw",
    ).for_java()
    assert rendered["ssl.keystore.certificate.chain"] == "CERT"
    assert rendered["ssl.keystore.key"] == "KEY"
    assert rendered["ssl.key.password"] == "pw"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"security_protocol": "TLS"}, "'TLS'; it must be one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism is None"),
        ({**SCRAM, "sasl_mechanism": "NTLM"}, "'NTLM'; it must be one of PLAIN"),
        ({**SCRAM, "sasl_mechanism": "OAUTHBEARER"}, "sasl_username is set, but sasl_mechanism is OAUTHBEARER"),
        ({**SCRAM, "sasl_password": None}, "sasl_password is required for sasl_mechanism SCRAM-SHA-512"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "neither oauth_token_url nor"),
        ({**OAUTH, "oauth_client_secret": None}, "oauth_client_secret is required for oauth_token_url"),
        ({**OAUTH, "oauth_token_url": "login.example.com"}, "oauth_token_url is not a URL"),
        ({**OAUTH, "oauth_token_url": "https://me:hidden@login.example.com"}, "or contains a user"),
        ({**OAUTH, "oauth_extensions": {"pool-id": "p"}}, "'pool-id' cannot be sent as an extension"),
        ({**OAUTH, "oauth_extensions": {"pool": "a,b"}}, "'pool' cannot be sent as an extension"),
        ({**OAUTH, "oauth_token_callback": CALLBACK}, "oauth_token_url is set together with oauth_token_callback"),
        ({**BY_CALLBACK, "oauth_token_callback": "no_such:token"}, "cannot be imported: ModuleNotFoundError"),
        ({**OAUTH, "librdkafka": {"sasl.oauthbearer.scope": "x"}}, "KafkaConnection(oauth_scope=...)"),
        ({**MSK, "aws_region": None}, "aws_region is required for sasl_mechanism AWS_MSK_IAM"),
        ({**MSK, "security_protocol": "SASL_PLAINTEXT"}, "MSK accepts AWS_MSK_IAM only over TLS"),
        ({**MSK, "aws_profile": "p", "aws_role_arn": "r"}, "both aws_role_arn and aws_profile"),
        ({"sasl_username": "ann"}, "sasl_username is set, but security_protocol is PLAINTEXT"),
        ({"ssl_ca_pem": "/x"}, "ssl_ca_pem is set, but security_protocol is PLAINTEXT"),
        ({"security_protocol": "SSL", "ssl_key_pem": "/x"}, "only one of ssl_certificate_pem"),
        ({"request_timeout_s": 0}, "greater than 0 seconds"),
        ({"librdkafka": {"enable.auto.commit": "true"}}, "'enable.auto.commit' is set by kpipe"),
        ({"java": {"isolation.level": "read_uncommitted"}}, "'isolation.level' is set by kpipe"),
    ],
)
def test_unknown_values_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match="How to fix") as caught:
        settings(**given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "servers", ["", "host", "host:", "host:0", "host:70000", "a:1,,b:2", "http://host:9092", "a b:1"]
)
def test_servers_are_host_and_port(servers: str) -> None:
    with pytest.raises(ConfigError, match="not host:port"):
        ConnectionSettings(servers)


@pytest.mark.parametrize("servers", ["host:9092", "a:1, b:2", "[::1]:9092", "10.0.0.1:9092"])
def test_good_servers(servers: str) -> None:
    assert ConnectionSettings(servers).bootstrap_servers == servers


def test_no_secret_is_shown() -> None:
    oauth = settings(**OAUTH)
    assert "s3cr" not in repr(oauth) + str(oauth.describe())
    assert oauth.redact('refused s3cr"et') == "refused **********"
    secret = settings(**SCRAM, librdkafka={"ssl.keystore.password": "other-secret"})
    for shown in (repr(secret), str(secret), str(secret.describe())):
        assert "s3cr" not in shown
        assert "other-secret" not in shown
    assert secret.redact('refused s3cr"et\\ and other-secret') == "refused ********** and **********"


def test_a_secret_that_holds_another_is_hidden_whole() -> None:
    given = {"ssl.keystore.password": "swordfish", "sasl.oauthbearer.config": "swordfish-2026"}
    assert settings(librdkafka=given).redact("refused swordfish-2026") == "refused **********"


def test_a_file_that_is_not_there_is_an_error_of_the_settings() -> None:
    wrong = settings(security_protocol="SSL", ssl_ca_pem="/no/such/ca.pem")
    for make in (lambda: Clients(wrong).admin(), lambda: Clients(wrong).consumer("g"), wrong.for_java):
        with pytest.raises(ConfigError, match=r"ssl_ca_pem: cannot read /no/such/ca\.pem"):
            make()


@pytest.mark.parametrize("given", [SCRAM, OAUTH, BY_CALLBACK, MSK])
def test_it_pickles(given: dict[str, Any]) -> None:
    again = pickle.loads(pickle.dumps(settings(**given)))
    assert again == settings(**given)
    assert again.for_librdkafka() == settings(**given).for_librdkafka()

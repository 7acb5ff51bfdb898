"""One typed object renders both dialects, refuses what is unknown, and never shows a secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings

SCRAM: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "ann",
    "sasl_password": 's3cr"et\\',
    "ssl_ca_pem": "/etc/ca.pem",
}


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
            {"sasl.password": 's3cr"et\\', "ssl.ca.location": "/etc/ca.pem"},
            {
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="ann" password="s3cr\\"et\\\\";',
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/etc/ca.pem",
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
        ({**SCRAM, "sasl_mechanism": "GSSAPI"}, "'GSSAPI'; it must be one of PLAIN"),
        ({**SCRAM, "sasl_password": None}, "sasl_password is required"),
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
    secret = settings(**SCRAM, librdkafka={"ssl.keystore.password": "other-secret"})
    for shown in (repr(secret), str(secret), str(secret.describe())):
        assert "s3cr" not in shown
        assert "other-secret" not in shown
    assert secret.redact('refused s3cr"et\\ and other-secret') == "refused ********** and **********"


def test_a_secret_that_holds_another_is_hidden_whole() -> None:
    given = {"ssl.keystore.password": "swordfish", "sasl.oauthbearer.client.secret": "swordfish-2026"}
    assert settings(librdkafka=given).redact("refused swordfish-2026") == "refused **********"


def test_a_file_that_is_not_there_is_an_error_of_the_settings() -> None:
    wrong = settings(security_protocol="SSL", ssl_ca_pem="/no/such/ca.pem")
    for make in (lambda: Clients(wrong).admin(), lambda: Clients(wrong).consumer("g")):
        with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
            make()


def test_it_pickles() -> None:
    assert pickle.loads(pickle.dumps(settings(**SCRAM))) == settings(**SCRAM)

"""Credentials that brokers or the token endpoint refuse, and things that are missing: each a clear error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclOperation, ResourceType
from py4j.protocol import Py4JJavaError

from kpipe_platform.errors import (
    AuthenticationFailedError,
    BrokerUnavailableError,
    EnvironmentSetupError,
)
from kpipe_platform.jvm.ports import LOOPBACK, free_port
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client._compat import denied_cause
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.spark.failures import classify
from kpipe_platform.spark.source.reader import read_ranges
from kpipe_platform.testing.topics import create_topic

from .certificates import Authority
from .conftest import PASSWORD, Acl, Cluster, Way

pytestmark = pytest.mark.broker


def refused(settings: ConnectionSettings) -> Exception:
    """The error of a first request."""
    with Clients(settings) as clients, pytest.raises(Exception, match="cannot describe topic") as caught:
        describe_topics(clients, ["orders"])
    return caught.value


@pytest.fixture
def settings(way: Callable[..., Way]) -> Callable[..., ConnectionSettings]:
    def make(protocol: str, **changes: Any) -> ConnectionSettings:
        # As short as a refusal needs on a busy machine.
        return dataclasses.replace(way(protocol, request_timeout_s=3).connection.settings, **changes)

    return make


def test_no_certificate_and_one_of_another_authority(
    settings: Callable[..., ConnectionSettings], tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = refused(settings("mutual TLS", ssl_certificate_pem=None, ssl_key_pem=None))
    assert isinstance(found, AuthenticationFailedError)
    assert "ssl_*" in str(found)
    other = Authority(tmp_path_factory.mktemp("other")).client("kpipe")
    files = {"ssl_certificate_pem": str(other.certificate), "ssl_key_pem": str(other.key)}
    assert isinstance(refused(settings("mutual TLS", **files)), AuthenticationFailedError)


def test_a_broker_whose_certificate_is_not_trusted(
    settings: Callable[..., ConnectionSettings], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Another authority, and another host name; librdkafka does not tell them apart."""
    given = settings("mutual TLS")
    other = Authority(tmp_path_factory.mktemp("another"))
    elsewhere = given.bootstrap_servers.replace(LOOPBACK, "localhost")
    for changes in ({"ssl_ca_pem": str(other.pem)}, {"bootstrap_servers": elsewhere}):
        found = refused(dataclasses.replace(given, **changes))
        assert isinstance(found, AuthenticationFailedError)
        assert "openssl s_client" in str(found)


def test_an_encrypted_key(cluster: Cluster, settings: Callable[..., ConnectionSettings], authority: Authority) -> None:
    files = authority.client("encrypted", password="of-the-key")
    given = {"ssl_certificate_pem": str(files.certificate), "ssl_key_pem": str(files.key)}
    create_topic(cluster.broker.bootstrap_servers, "for-encrypted")
    acl = Acl(ResourceType.TOPIC, "for-encrypted", AclOperation.READ)
    cluster.grant(files.principal, [acl])
    with Clients(settings("mutual TLS", ssl_key_password="of-the-key", **given)) as clients:
        assert describe_topics(clients, ["for-encrypted"])["for-encrypted"].partitions == 1


def test_a_secret_that_the_token_endpoint_refuses(settings: Callable[..., ConnectionSettings]) -> None:
    found = refused(settings("OAUTHBEARER", oauth_client_secret="wrong-secret"))
    assert isinstance(found, AuthenticationFailedError)
    assert "invalid_client" in str(found)
    assert "wrong-secret" not in str(found)
    assert PASSWORD not in str(found)


def test_a_token_endpoint_that_does_not_respond_is_not_a_refusal(settings: Callable[..., ConnectionSettings]) -> None:
    found = refused(settings("OAUTHBEARER", oauth_token_url=f"http://{LOOPBACK}:{free_port()}/token"))
    assert isinstance(found, BrokerUnavailableError)
    assert "oauth_token_url" in str(found)


def test_the_cause_of_purged_records(cluster: Cluster, settings: Callable[..., ConnectionSettings]) -> None:
    """Contract of ``denied_cause``."""
    topic = create_topic(cluster.broker.bootstrap_servers, "write-denied")
    cluster.grant("User:kpipe", [Acl(ResourceType.TRANSACTIONAL_ID, "of-purged", AclOperation.WRITE)])
    cluster.grant("User:kpipe", [Acl(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)])
    config = settings("SCRAM", request_timeout_s=10).for_librdkafka()
    producer = Producer({**config, "transactional.id": "of-purged"})
    producer.init_transactions(20)
    producer.begin_transaction()
    errors: list[KafkaError] = []
    producer.produce(topic, b"1", on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors[0].code() == KafkaError._PURGE_QUEUE
    assert denied_cause(producer, errors[0]).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    # A transaction without an error has no cause, and stays open.
    healthy = Producer({**config, "transactional.id": "of-purged"})
    healthy.init_transactions(20)
    healthy.begin_transaction()
    assert denied_cause(healthy, errors[0]) is errors[0]
    healthy.commit_transaction(20)


@pytest.mark.spark
def test_spark_without_the_jar_of_msk_names_its_coordinate(spark: Any) -> None:
    msk = ConnectionSettings(
        f"{LOOPBACK}:9", security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM", aws_region="eu-west-1"
    )
    with pytest.raises(Py4JJavaError) as caught:
        read_ranges(spark, msk, [OffsetRange("t", 0, 0, 1)], isolation="read_committed", group="g", parts=1).collect()
    found = classify(caught.value, "t/0")
    assert isinstance(found, EnvironmentSetupError)
    assert "software.amazon.msk:aws-msk-iam-auth:" in str(found)

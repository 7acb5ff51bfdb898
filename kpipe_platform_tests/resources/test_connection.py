"""The connection resource: secrets come by environment variable and are shown nowhere; SASL on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from kpipe_platform import (
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    SparkEngine,
    kafka_asset,
    kafka_topic_asset,
)
from kpipe_platform.errors import AuthenticationFailedError, ConfigError
from kpipe_platform.kafka.admin.topics import describe_topics
from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.broker.listeners import BrokerListener
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic

PASSWORD = "s3cret-of-ann"


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> dg.EnvVar:
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", PASSWORD)
    return dg.EnvVar("TEST_KAFKA_PASSWORD")


def sasl(servers: str, mechanism: str, password: Any) -> KafkaConnection:
    return KafkaConnection(
        bootstrap_servers=servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username="ann",
        sasl_password=password,
        request_timeout_s=10,
    )


def test_a_plain_secret_is_refused_because_dagster_would_show_it() -> None:
    with pytest.raises(ConfigError, match=r'sasl_password=dg\.EnvVar\("KAFKA_SASL_PASSWORD"\)'):
        sasl("b:9092", "PLAIN", PASSWORD)


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        ("librdkafka", "ssl.keystore.password"),
        ("librdkafka", "ssl.key.pem"),
        ("librdkafka", "sasl.oauthbearer.config"),
        ("librdkafka", "sasl.oauthbearer.assertion.private.key.passphrase"),
        ("java", "ssl.truststore.password"),
        ("java", "ssl.keystore.key"),
        ("java", "sasl.oauthbearer.assertion.private.key.passphrase"),
    ],
)
def test_secrets_among_further_properties(dialect: str, name: str, password: dg.EnvVar) -> None:
    with pytest.raises(ConfigError, match=r"a plain value, which Dagster would show") as caught:
        KafkaConnection(bootstrap_servers="b:9092", **{dialect: {name: PASSWORD}})
    assert f'"{name}": dg.EnvVar(' in str(caught.value)
    assert PASSWORD not in str(caught.value)
    connection = KafkaConnection(bootstrap_servers="b:9092", **{dialect: {name: password}})
    assert getattr(connection.settings, dialect) == {name: PASSWORD}
    assert PASSWORD not in repr(connection) + str(connection.settings.describe())
    assert connection.settings.redact(f"refused {PASSWORD}") == "refused **********"


@pytest.mark.parametrize(
    ("dialect", "name", "says"),
    [
        ("librdkafka", "bootstrap.servers", "KafkaConnection(bootstrap_servers=...)"),
        ("librdkafka", "metadata.broker.list", "KafkaConnection(bootstrap_servers=...)"),
        ("librdkafka", "socket.timeout.ms", "KafkaConnection(request_timeout_s=...)"),
        ("librdkafka", "message.timeout.ms", "KafkaDestination(delivery_timeout_s=...)"),
        ("librdkafka", "session.timeout.ms", "PartitionOwnership(session_timeout_s=...)"),
        ("librdkafka", "socket.keepalive.enabled", 'No such configuration property: "socket.keepalive.enabled"'),
        ("librdkafka", "socket.keepalive.enable", "Expected bool value"),
        ("java", "bootstrap.servers", "KafkaConnection(bootstrap_servers=...)"),
        ("java", "auto.offset.reset", "KafkaSource(start=...)"),
        ("java", "key.deserializer", "Spark's reader"),
        ("java", "kafka.fetch.max.bytes", "remove the prefix: 'fetch.max.bytes'"),
    ],
)
def test_further_properties_that_are_refused_when_they_are_declared(dialect: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"KafkaConnection\({dialect}=\.\.\.\)") as caught:
        KafkaConnection(bootstrap_servers=dg.EnvVar("NOT_SET_ANYWHERE"), **{dialect: {name: "other:9092"}})
    assert says in str(caught.value)


def test_the_variable_is_read_late_and_shown_nowhere(password: dg.EnvVar) -> None:
    connection = sasl("b:9092", "PLAIN", password)
    assert connection.settings.sasl_password == PASSWORD
    assert PASSWORD not in repr(connection) + str(connection)
    assert "ann" not in repr(connection)


def test_a_missing_variable_says_which() -> None:
    connection = sasl("b:9092", "PLAIN", dg.EnvVar("NOT_SET_ANYWHERE"))
    with pytest.raises(ConfigError, match="export NOT_SET_ANYWHERE="):
        _ = connection.settings


def test_dagster_resolves_it_and_stores_only_its_name(password: dg.EnvVar) -> None:
    seen: list[str | None] = []

    @dg.asset
    def reads(connection: KafkaConnection) -> None:
        seen.append(connection.settings.sasl_password)

    defs = dg.Definitions([reads], resources={"connection": sasl("b:9092", "PLAIN", password)})
    with dg.DagsterInstance.ephemeral() as instance:
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
        events = instance.all_logs(result.run_id)
        stored = json.dumps([str(event) for event in events]) + str(instance.get_run_by_id(result.run_id))
    assert seen == [PASSWORD]
    assert PASSWORD not in stored
    schema = defs.get_repository_def().get_top_level_resources()["connection"].config_schema
    assert PASSWORD not in str(schema.default_value)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(extra_listeners=[BrokerListener.sasl({"ann": PASSWORD})]) as made:
        create_topic(made.bootstrap_servers, "source")
        create_topic(made.bootstrap_servers, "target")
        yield made


@pytest.mark.broker
class TestSasl:
    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_accepted(self, broker: EmbeddedBroker, password: dg.EnvVar, mechanism: str) -> None:
        settings = sasl(broker.listener("SASL_PLAINTEXT"), mechanism, password).settings
        with Clients(settings) as clients:
            assert describe_topics(clients, ["source"])["source"].partitions == 1

    def test_refused_without_showing_the_password(
        self, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEST_KAFKA_PASSWORD", "wrong-secret")
        connection = sasl(broker.listener("SASL_PLAINTEXT"), "PLAIN", dg.EnvVar("TEST_KAFKA_PASSWORD"))
        with Clients(connection.settings) as clients, pytest.raises(AuthenticationFailedError) as caught:
            describe_topics(clients, ["source"])
        assert "wrong-secret" not in str(caught.value)
        assert "sasl_" in str(caught.value)

    @pytest.mark.spark
    def test_a_slice_through_librdkafka_and_spark(
        self, broker: EmbeddedBroker, password: dg.EnvVar, spark: SparkSession, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """One connection object for both clients, and the password in neither log nor metadata."""
        connection = sasl(broker.listener("SASL_PLAINTEXT"), "SCRAM-SHA-512", password)
        topic = kafka_topic_asset("source", value_codec=JsonCodec("id BIGINT NOT NULL"), partitions=1)

        @kafka_asset(source=topic, topic=KafkaTopic("target", value_codec=JsonCodec()))
        def copy(source: DataFrame) -> DataFrame:
            return source

        produce(broker.bootstrap_servers, "source", [b'{"id": 1}', b'{"id": 2}'])
        result = dg.materialize(
            [topic, copy],
            selection=[copy],
            partition_key="0",
            resources={
                "kafka_io_manager": KafkaIOManager(
                    source=KafkaSource(connection=connection),
                    destination=KafkaDestination(connection=connection),
                    dead_letter=KafkaDeadLetterDestination(connection=connection),
                    spark=SparkEngine(),
                )
            },
        )
        metadata = result.get_asset_materialization_events()[0].materialization.metadata
        assert metadata["kpipe/records_written"].value == 2
        assert len(consume(broker.bootstrap_servers, "target")) == 2
        shown = capfd.readouterr()
        assert PASSWORD not in shown.out + shown.err + str(metadata)


def test_a_pem_that_cannot_be_read(tmp_path: Path) -> None:
    connection = KafkaConnection(
        bootstrap_servers="b:9092",
        security_protocol="SSL",
        ssl_certificate_pem=str(tmp_path / "none.pem"),
        ssl_key_pem=str(tmp_path / "none.key"),
    )
    with pytest.raises(ConfigError, match="cannot read"):
        connection.settings.for_java()

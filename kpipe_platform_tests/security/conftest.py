"""A broker with an authorizer and a listener for each security protocol, and an asset with only the documented ACLs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kpipe_platform import (
    FaultAction,
    JsonCodec,
    KafkaConnection,
    KafkaDeadLetterDestination,
    KafkaIOManager,
    KafkaSource,
    KafkaTopic,
    SparkEngine,
    kafka_asset,
    kafka_offset_sensor,
    kafka_topic_asset,
    register_kafka_partitions,
)
from kpipe_platform.jobs import redrive_job
from kpipe_platform.testing.broker.embedded import EmbeddedBroker
from kpipe_platform.testing.broker.listeners import BrokerListener
from kpipe_platform.testing.clients import client_config
from kpipe_platform.testing.records import consume, produce
from kpipe_platform.testing.topics import create_topic
from kpipe_platform_tests.processes import wait_until

from .certificates import Authority
from .token_server import AUDIENCE, TokenServer

NAME = "kpipe"
PASSWORD = "s3cret-of-kpipe"
# Shorter than a slice with a slow stage takes.
TOKEN_LIFETIME_S = 4.0


@dataclass(frozen=True)
class Acl:
    """An ACL, with the name by which errors should name it."""

    kind: ResourceType
    name: str
    operation: AclOperation
    prefixed: bool = False

    def binding(self, principal: str) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL
        return AclBinding(self.kind, self.name, pattern, principal, "*", self.operation, AclPermissionType.ALLOW)

    def filter(self, principal: str) -> AclBindingFilter:
        pattern = ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL
        return AclBindingFilter(self.kind, self.name, pattern, principal, "*", self.operation, AclPermissionType.ALLOW)


@dataclass
class Cluster:
    """A broker whose listeners know one client, by several credentials."""

    broker: EmbeddedBroker
    tokens: TokenServer
    authority: Authority
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        self.admin = AdminClient(client_config(self.broker.bootstrap_servers))

    def grant(self, principal: str, acls: Iterable[Acl]) -> None:
        """Grant ACLs, and wait until the broker applies them."""
        for acl in acls:
            for future in self.admin.create_acls([acl.binding(principal)]).values():
                future.result(10)
            wait_until(lambda acl=acl: self._has(principal, acl), "the ACL", 20)

    def revoke(self, principal: str, acl: Acl) -> None:
        for future in self.admin.delete_acls([acl.filter(principal)]).values():
            future.result(10)
        wait_until(lambda: not self._has(principal, acl), "the end of the ACL", 20)

    def _has(self, principal: str, acl: Acl) -> bool:
        return bool(self.admin.describe_acls(acl.filter(principal)).result(10))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenServer]:
    with TokenServer({NAME: PASSWORD}, TOKEN_LIFETIME_S).running() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(authority: Authority, tokens: TokenServer) -> Iterator[Cluster]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    listeners = [
        BrokerListener.ssl(authority.broker()),
        BrokerListener.sasl({NAME: PASSWORD}, mechanisms=["SCRAM-SHA-512"], name="SCRAM"),
        BrokerListener.oauth(tokens.jwks_url, issuer=tokens.url, audience=AUDIENCE, name="OAUTH"),
    ]
    with EmbeddedBroker(settings=settings, extra_listeners=listeners) as broker:
        yield Cluster(broker, tokens, authority)


@dataclass
class Way:
    """A security protocol: the connection, and the principal that the broker sees."""

    connection: KafkaConnection
    principal: str


@pytest.fixture
def way(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Way]:
    """Makes a connection of the client by a security protocol."""

    def make(protocol: str, **more: Any) -> Way:
        monkeypatch.setenv("TEST_KAFKA_SECRET", PASSWORD)
        secret, user = dg.EnvVar("TEST_KAFKA_SECRET"), f"User:{NAME}"
        if protocol == "mutual TLS":
            files = cluster.authority.client(NAME)
            given = {
                "bootstrap_servers": cluster.broker.listener("SSL"),
                "security_protocol": "SSL",
                "ssl_ca_pem": str(cluster.authority.pem),
                "ssl_certificate_pem": str(files.certificate),
                "ssl_key_pem": str(files.key),
            }
            return Way(KafkaConnection(**given, **more), files.principal)
        if protocol == "SCRAM":
            given = {
                "bootstrap_servers": cluster.broker.listener("SCRAM"),
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_username": NAME,
                "sasl_password": secret,
            }
            return Way(KafkaConnection(**given, **more), user)
        given = {
            "bootstrap_servers": cluster.broker.listener("OAUTH"),
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
        }
        if protocol == "OAUTHBEARER":
            given |= {
                "oauth_token_url": cluster.tokens.token_url,
                "oauth_client_id": NAME,
                "oauth_client_secret": secret,
                "oauth_scope": "kafka",
            }
        else:
            monkeypatch.setenv("TEST_CALLBACK_CONFIG", f"{cluster.tokens.token_url} {PASSWORD}")
            given |= {
                "oauth_token_callback": "kpipe_platform_tests.security.callbacks:token",
                "librdkafka": {"sasl.oauthbearer.config": dg.EnvVar("TEST_CALLBACK_CONFIG")},
            }
        return Way(KafkaConnection(**given, **more), user)

    return make


@dataclass
class Shop:
    """An asset over a topic, with its sensor and the redrive of its dead letters."""

    cluster: Cluster
    way: Way
    prefix: str
    instance: dg.DagsterInstance
    stage: Callable[..., Any]
    cursor: str | None = None
    skip_reason: str | None = None

    def __post_init__(self) -> None:
        servers = self.cluster.broker.bootstrap_servers
        self.source, self.target = f"{self.prefix}.orders", f"{self.prefix}.priced"
        self.dlq = f"{self.source}.dlq"
        for topic in (self.source, self.target, self.dlq):
            create_topic(servers, topic)
        self.manager = KafkaIOManager(
            connection=self.way.connection,
            source=KafkaSource(group_prefix=self.prefix),
            dead_letter=KafkaDeadLetterDestination(),
            spark=SparkEngine(),
        )
        self.topic_asset = kafka_topic_asset(self.source, value_codec=JsonCodec("id BIGINT NOT NULL"), name="orders")
        self.asset = kafka_asset(
            source=self.topic_asset,
            topic=KafkaTopic(self.target, value_codec=JsonCodec()),
            name="priced",
            on_fault=FaultAction.DEAD_LETTER,
        )(self.stage)
        self.sensor = kafka_offset_sensor(self.asset, min_records=1)
        register_kafka_partitions(self.instance, self.source, [0])

    @property
    def acls(self) -> list[Acl]:
        """The ACLs of docs/guides/connection.md and docs/guides/redrive.md."""
        topic, operation = ResourceType.TOPIC, AclOperation
        return [
            Acl(topic, self.source, operation.READ),
            *(
                Acl(topic, name, op)
                for name in (self.target, self.dlq)
                for op in (operation.WRITE, operation.DESCRIBE_CONFIGS)
            ),
            Acl(ResourceType.GROUP, f"{self.prefix}.", operation.READ, prefixed=True),
            Acl(ResourceType.TRANSACTIONAL_ID, f"{self.prefix}.", operation.WRITE, prefixed=True),
        ]

    @property
    def redrive_acls(self) -> list[Acl]:
        topic, operation = ResourceType.TOPIC, AclOperation
        return [
            Acl(topic, self.dlq, operation.READ),
            Acl(topic, self.source, operation.WRITE),
            Acl(topic, self.source, operation.DESCRIBE_CONFIGS),
            Acl(ResourceType.GROUP, f"{self.dlq}.redrive", operation.READ),
            Acl(ResourceType.TRANSACTIONAL_ID, f"{self.dlq}.redrive", operation.WRITE, prefixed=True),
        ]

    def send(self, *values: bytes) -> None:
        produce(self.cluster.broker.bootstrap_servers, self.source, list(values))

    def read(self, topic: str) -> list[Any]:
        return [each.json() for each in consume(self.cluster.broker.bootstrap_servers, topic)]

    def tick(self) -> list[dg.RunRequest]:
        definitions = dg.Definitions(
            [self.topic_asset, self.asset], sensors=[self.sensor], resources={"kafka_io_manager": self.manager}
        )
        with dg.build_sensor_context(
            instance=self.instance,
            instance_ref=self.instance.get_ref(),
            cursor=self.cursor,
            definitions=definitions,
            resources={"kafka_io_manager": self.manager},
        ) as context:
            made = self.sensor.evaluate_tick(context)
        self.cursor, self.skip_reason = made.cursor, made.skip_message
        return list(made.run_requests or [])

    def run(self, partition: str | None = "0", tags: dict[str, str] | None = None) -> dg.ExecuteInProcessResult:
        """Materialize once; raises the asset's own error."""
        return dg.materialize(
            [self.topic_asset, self.asset],
            selection=[self.asset],
            resources={"kafka_io_manager": self.manager},
            partition_key=partition,
            instance=self.instance,
            tags=tags,
        )

    def redrive(self) -> dict[str, Any]:
        job = redrive_job(self.way.connection)
        config = {"ops": {"redrive": {"config": {"topic": self.dlq}}}}
        result = job.execute_in_process(run_config=config, instance=self.instance)
        found: dict[str, Any] = result.output_for_node("redrive")
        return found


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster-home"
    home.mkdir()
    with dg.instance_for_test(temp_dir=str(home)) as made:
        yield made


@pytest.fixture
def make_shop(cluster: Cluster, instance: dg.DagsterInstance, spark: Any) -> Callable[..., Shop]:
    def make(way: Way, stage: Callable[..., Any] | None = None) -> Shop:
        def keep(orders):  # type: ignore[no-untyped-def]
            return orders

        return Shop(cluster, way, f"shop{time.monotonic_ns()}", instance, stage or keep)

    return make

"""Pytest fixtures: a Kafka broker, functions for its topics, a schema registry, a Spark session, an IO manager.

Pytest loads this plugin through an entry point when kpipe is installed. Heavy modules are imported by the fixtures, so
they do not slow down a test run that does not use them.

Ini options:
    kpipe_brokers: Number of brokers, 1 to 3. Default 1.
    kpipe_broker_settings: Broker settings, one ``name = value`` per line.
    kpipe_spark_master: Master of the `spark` fixture. Default ``local[2]``.
    kpipe_spark: ``classic`` (the default): Spark in the test process. ``connect``: a Spark Connect server for the test
        session. ``sc://host:port``: a running server. The environment variable ``KPIPE_TEST_SPARK`` overrides this.

The environment variable ``KPIPE_TEST_KAFKA=host:port`` (several separated by commas) names a running broker. Tests
then use this broker, and the ini options for brokers have no effect.

If a test suite computes broker settings, override the `kafka_broker_settings` fixture.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kpipe_platform.io_managers import KafkaIOManager
    from kpipe_platform.testing.broker.embedded import EmbeddedBroker
    from kpipe_platform.testing.clients import Client
    from kpipe_platform.testing.messages import ConsumedRecord
    from kpipe_platform.testing.records import Isolation
    from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

__all__ = ["Consume", "Produce", "RunningBroker", "TopicFactory"]

RUNNING_BROKER = "KPIPE_TEST_KAFKA"
_ANSWER_DEADLINE_S = 15.0


class RunningBroker:
    """The running broker that ``KPIPE_TEST_KAFKA`` names, which the tests did not start.

    It has only `bootstrap_servers`. The other attributes of an `EmbeddedBroker` raise `ConfigError`.

    Args:
        bootstrap_servers: ``host:port``, several separated by commas.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def __getattr__(self, name: str) -> Any:
        from kpipe_platform.errors import ConfigError
        from kpipe_platform.testing.broker.embedded import EmbeddedBroker

        if name.startswith("_") or not hasattr(EmbeddedBroker, name):
            msg = f"RunningBroker has no attribute {name!r}"
            raise AttributeError(msg)
        msg = f"kafka_broker is the running broker of {RUNNING_BROKER}={self.bootstrap_servers}, which has no {name}."
        fix = f"start an EmbeddedBroker in the test, or unset {RUNNING_BROKER}"
        raise ConfigError(msg, fix=fix, setting=RUNNING_BROKER)

    def check(self) -> None:
        """Raise `pytest.UsageError` unless the address is valid and a broker responds there."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        from kpipe_platform.errors import ConfigError
        from kpipe_platform.kafka.client.settings import ConnectionSettings
        from kpipe_platform.testing.clients import client_config

        given = f"{RUNNING_BROKER}={self.bootstrap_servers}"
        try:
            ConnectionSettings(self.bootstrap_servers)
            AdminClient(client_config(self.bootstrap_servers)).list_topics(timeout=_ANSWER_DEADLINE_S)
        except ConfigError as error:
            msg = f"{given}: {error}"
            raise pytest.UsageError(msg) from error
        except KafkaException as error:
            msg = (
                f"{given}: no Kafka broker answered within {_ANSWER_DEADLINE_S:.0f} s ({error.args[0].str()}).\n"
                f"  How to fix: correct the address, start the broker (kpipe broker start), or unset {RUNNING_BROKER}"
            )
            raise pytest.UsageError(msg) from error


class TopicFactory(Protocol):
    """Type of the `kafka_topic` fixture."""

    def __call__(
        self,
        name: str = "topic",
        *,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic whose name starts with ``name``, and return its full name."""


class Produce(Protocol):
    """Type of the `produce` fixture."""

    def __call__(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        transaction: Literal["commit", "abort"] | None = None,
        deadline_s: float = 60.0,
        client: Client | None = None,
    ) -> int:
        """Write records, wait until all are acknowledged, and return their number."""


class Consume(Protocol):
    """Type of the `consume` fixture."""

    def __call__(
        self,
        topic: str,
        *,
        isolation: Isolation = "read_committed",
        deadline_s: float = 60.0,
        settle_s: float = 2.0,
        client: Client | None = None,
    ) -> list[ConsumedRecord]:
        """Read a topic from its log start to its current log end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini options."""
    parser.addini("kpipe_brokers", "number of brokers of the kafka_broker fixture, 1 to 3", default="1")
    parser.addini(
        "kpipe_broker_settings",
        "broker settings of the kafka_broker fixture, one `name = value` per line",
        type="linelist",
        default=[],
    )
    parser.addini("kpipe_spark_master", "master of the spark fixture", default="local[2]")
    parser.addini("kpipe_spark", "classic, connect, or sc://host:port of a running server", default="classic")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Check once that the broker of ``KPIPE_TEST_KAFKA`` responds, instead of in each test that uses it."""
    servers, config = os.environ.get(RUNNING_BROKER), session.config
    # The workers of pytest-xdist start after the main process, which has checked already.
    if servers and not config.option.collectonly and not hasattr(config, "workerinput"):
        RunningBroker(servers).check()


# ------------------------------------------------------------------------------------------------ Kafka

# Tests write records of any age. With Kafka's defaults, the broker deletes records older than a week after half a
# minute, and then every five minutes, in the middle of a test.
_DAY_MS = "86400000"
_NOTHING_DELETED = {"log.initial.task.delay.ms": _DAY_MS, "log.retention.check.interval.ms": _DAY_MS}


@pytest.fixture(scope="session")
def kafka_broker_settings(pytestconfig: pytest.Config) -> dict[str, str]:
    """Broker settings of the `kafka_broker` fixture. Override this fixture to compute settings."""
    settings = {}
    for line in pytestconfig.getini("kpipe_broker_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            msg = f"kpipe_broker_settings: {line!r} is not of the form name = value"
            raise pytest.UsageError(msg)
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def kafka_broker(
    pytestconfig: pytest.Config, kafka_broker_settings: dict[str, str]
) -> Iterator[EmbeddedBroker | RunningBroker]:
    """A Kafka cluster for the whole test session. Its data is deleted at the end.

    During the session, no records are deleted for their age or their topic's size, unless
    ``log.initial.task.delay.ms`` and ``log.retention.check.interval.ms`` are set. If ``KPIPE_TEST_KAFKA`` is set, the
    fixture is a `RunningBroker`.
    """
    if servers := os.environ.get(RUNNING_BROKER):
        yield RunningBroker(servers)
        return

    from kpipe_platform.testing.broker.embedded import EmbeddedBroker

    brokers = int(pytestconfig.getini("kpipe_brokers"))
    with EmbeddedBroker(brokers, settings={**_NOTHING_DELETED, **kafka_broker_settings}) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_topic(kafka_broker: EmbeddedBroker | RunningBroker) -> Iterator[TopicFactory]:
    """Creates topics: ``kafka_topic("flights", partitions=4)`` returns a name that no other test has.

    On a `RunningBroker`, the topics have unlimited retention and are deleted at the end of the test session.
    """
    from kpipe_platform.testing.topics import create_topic, delete_topic

    ours = not isinstance(kafka_broker, RunningBroker)
    made: list[str] = []

    def make(
        name: str = "topic",
        *,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        topic = create_topic(
            kafka_broker.bootstrap_servers,
            f"{name}-{uuid.uuid4().hex[:12]}",
            partitions=partitions,
            replication=replication,
            config=config if ours else {"retention.ms": "-1", **(config or {})},
        )
        made.append(topic)
        return topic

    yield make
    for topic in () if ours else made:
        delete_topic(kafka_broker.bootstrap_servers, topic)


@pytest.fixture(scope="session")
def produce(kafka_broker: EmbeddedBroker | RunningBroker) -> Produce:
    """Writes records and waits for their acknowledgements; see `kpipe_platform.testing.records.produce`."""
    from kpipe_platform.testing import records as functions

    def write(
        topic: str,
        records: Iterable[Any],
        *,
        transaction: Literal["commit", "abort"] | None = None,
        deadline_s: float = 60.0,
        client: Client | None = None,
    ) -> int:
        target = client or kafka_broker.bootstrap_servers
        return functions.produce(target, topic, records, transaction=transaction, deadline_s=deadline_s)

    return write


@pytest.fixture(scope="session")
def consume(kafka_broker: EmbeddedBroker | RunningBroker) -> Consume:
    """Reads a topic from log start to log end; see `kpipe_platform.testing.records.consume`."""
    from kpipe_platform.testing import records as functions

    def read(
        topic: str,
        *,
        isolation: Isolation = "read_committed",
        deadline_s: float = 60.0,
        settle_s: float = 2.0,
        client: Client | None = None,
    ) -> list[ConsumedRecord]:
        target = client or kafka_broker.bootstrap_servers
        return functions.consume(target, topic, isolation=isolation, deadline_s=deadline_s, settle_s=settle_s)

    return read


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[EmbeddedRegistry]:
    """A schema registry for the whole test session, for ``SchemaRegistry(url=schema_registry.url)``.

    It needs the extra ``registry``. Tests share it, so use subjects of topics that no other test has. A test may stop
    it: ``with schema_registry.outage(): ...``.
    """
    from kpipe_platform.testing.registry.embedded import EmbeddedRegistry

    with EmbeddedRegistry() as registry:
        yield registry


# ------------------------------------------------------------------------------------------------ Spark


# In a short session, the optimizing compiler costs more CPU time than it saves. Disabling it halves the CPU time.
_QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def spark_remote(pytestconfig: pytest.Config) -> Iterator[str | None]:
    """Address of the Spark Connect server of this test session. None if Spark runs in the test process."""
    from kpipe_platform.errors import EngineUnavailableError
    from kpipe_platform.spark.connect.server import ConnectServer

    wanted = os.environ.get("KPIPE_TEST_SPARK") or pytestconfig.getini("kpipe_spark")
    if wanted == "connect":
        with ConnectServer(master=pytestconfig.getini("kpipe_spark_master"), settings=_QUICK, warm=False) as server:
            yield server.remote
            if not server.is_running():
                msg = f"the Spark Connect server stopped during the tests. The end of its log:\n{server.log_tail()}"
                raise EngineUnavailableError(msg, fix="fix the cause that the log names")
    elif wanted == "classic":
        yield None
    elif wanted.startswith("sc://"):
        yield wanted
    else:
        msg = f"kpipe_spark is {wanted!r}; use classic, connect or sc://host:port"
        raise pytest.UsageError(msg)


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, spark_remote: str | None) -> Iterator[SparkSession]:
    """A Spark session for the whole test session, with the Kafka connector."""
    from kpipe_platform.spark.engine.attach import detach
    from kpipe_platform.spark.engine.session import get_session
    from kpipe_platform.spark.engine.settings import EngineSettings

    if spark_remote is not None:
        holder = object()
        yield get_session(EngineSettings(remote=spark_remote), holder)
        detach(holder)
        return
    session = get_session(EngineSettings(master=pytestconfig.getini("kpipe_spark_master"), config=_QUICK))
    yield session
    with warnings.catch_warnings():
        # If the JVM has already exited, that is not a failure of the tests.
        warnings.simplefilter("ignore", RuntimeWarning)
        session.stop()


@pytest.fixture
def kafka_io_manager(
    kafka_broker: EmbeddedBroker | RunningBroker, spark: SparkSession, spark_remote: str | None
) -> KafkaIOManager:
    """A KafkaIOManager for the `kafka_broker`, with consumer groups that no other test has.

    Output is written exactly once. Dead letters go to ``{source topic}.dlq``, which is created if it is missing.
    """
    from kpipe_platform.io_managers import KafkaIOManager
    from kpipe_platform.resources.connection import KafkaConnection
    from kpipe_platform.resources.destination import KafkaDeadLetterDestination, KafkaDestination
    from kpipe_platform.resources.source import KafkaSource
    from kpipe_platform.resources.spark import SparkEngine

    connection = KafkaConnection(bootstrap_servers=kafka_broker.bootstrap_servers)
    return KafkaIOManager(
        connection=connection,
        source=KafkaSource(group_prefix=f"test-{uuid.uuid4().hex[:12]}"),
        destination=KafkaDestination(),
        dead_letter=KafkaDeadLetterDestination(create_topic=True),
        spark=SparkEngine(remote=spark_remote),
    )

"""Properties of Kafka's clients that users add to kpipe's options: which are kpipe's own, unknown, or secret.

Source: librdkafka CONFIGURATION.md, Kafka's consumer configuration reference, Spark's Kafka source.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaException, Producer

from kpipe_platform.errors import ConfigError

Dialect = Literal["librdkafka", "java"]

# kpipe decides these itself; a value from outside would break a promise without a sign of it, or be ignored. Names of
# both dialects, with librdkafka's aliases, and what decides each.
OWNED: Mapping[str, str] = {
    "bootstrap.servers": "KafkaConnection(bootstrap_servers=...)",
    "metadata.broker.list": "KafkaConnection(bootstrap_servers=...)",
    "security.protocol": "KafkaConnection(security_protocol=...)",
    "sasl.mechanism": "KafkaConnection(sasl_mechanism=...)",
    "sasl.mechanisms": "KafkaConnection(sasl_mechanism=...)",
    "sasl.username": "KafkaConnection(sasl_username=...)",
    "sasl.password": "KafkaConnection(sasl_password=...)",
    "sasl.jaas.config": "KafkaConnection(sasl_username=..., sasl_password=...)",
    "ssl.key.password": "KafkaConnection(ssl_key_password=...)",
    "socket.timeout.ms": "KafkaConnection(request_timeout_s=...)",
    "group.id": "KafkaSource(group_prefix=...)",
    "isolation.level": "KafkaSource(isolation=...)",
    "auto.offset.reset": "KafkaSource(start=...)",
    "enable.auto.commit": "the slice protocol",
    "auto.commit.enable": "the slice protocol",
    "allow.auto.create.topics": "KafkaTopic(create=TopicSpec(...))",
    "key.deserializer": "Spark's reader",
    "value.deserializer": "Spark's reader",
    "interceptor.classes": "Spark's reader",
    "transactional.id": "the slice protocol",
    "transaction.timeout.ms": "KafkaDestination(transaction_timeout_s=...)",
    "enable.idempotence": "the slice protocol",
    "acks": "the slice protocol",
    "request.required.acks": "the slice protocol",
    "delivery.report.only.error": "the writer",
    "logger": "Python's logging",
    "message.timeout.ms": "KafkaDestination(delivery_timeout_s=...)",
    "delivery.timeout.ms": "KafkaDestination(delivery_timeout_s=...)",
    "compression.type": "KafkaDestination(compression=...)",
    "compression.codec": "KafkaDestination(compression=...)",
    "message.max.bytes": "the topics' own max.message.bytes",
    "group.protocol": "PartitionOwnership(protocol=...)",
    "partition.assignment.strategy": "PartitionOwnership(protocol=...)",
    "group.instance.id": "PartitionOwnership(instance_id=...)",
    "session.timeout.ms": "PartitionOwnership(session_timeout_s=...)",
    "heartbeat.interval.ms": "PartitionOwnership(session_timeout_s=...)",
    "max.poll.interval.ms": "PartitionOwnership(drain_deadline_s=...)",
}
# How the brokers are reached is one thing for all clients.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.")
_SECRET_WORDS = ("password", "passphrase", "secret", "jaas", "key.pem", "keystore.key", "oauthbearer.config")


def is_secret(name: str) -> bool:
    """Whether the value of a property is a secret, by its name."""
    return any(word in name for word in _SECRET_WORDS)


def check_client(where: str, dialect: Dialect, given: Mapping[str, str | None]) -> None:
    """Check properties for every client of a dialect.

    Args:
        where: The option that has them, for the message.
        dialect: ``java`` has no client here that could be asked; only kpipe's own properties are refused then.
        given: Values by name; None where the value is not known yet.

    Raises:
        ConfigError: A property is kpipe's own, or the client does not take it.
    """
    _refuse_owned(where, given)
    if dialect == "librdkafka":
        _refuse_wrong(where, given, {})
    for name in given:
        if name.startswith("kafka."):
            # Spark would pass it on with one prefix left, and Kafka's client ignores what it does not know.
            msg = f"{where}: {name!r} has Spark's prefix"
            raise ConfigError(msg, fix=f"write {name.removeprefix('kafka.')!r}", property=name)


def check_producer(where: str, given: Mapping[str, str | None], own: Mapping[str, str]) -> None:
    """Check librdkafka properties for the producer of outputs.

    Args:
        where: The option that has them, for the message.
        given: Values by name; None where the value is not known yet.
        own: kpipe's own properties, which those have to fit.

    Raises:
        ConfigError: A property is kpipe's own, or the connection's, or the producer does not take it.
    """
    _refuse_owned(where, given)
    for name in given:
        if name.startswith(_CONNECTION):
            msg = f"{where}: {name!r} is a property of the connection"
            raise ConfigError(
                msg, fix="move it to KafkaConnection(librdkafka=...), secrets by dagster.EnvVar", property=name
            )
    _refuse_wrong(where, given, {"enable.idempotence": "true", **own}, only_producer=True)


def _refuse_owned(where: str, given: Mapping[str, str | None]) -> None:
    for name in given:
        if name in OWNED:
            msg = f"{where}: {name!r} is set by kpipe itself"
            raise ConfigError(msg, fix=f"remove it; it is decided by {OWNED[name]}", property=name)


def _refuse_wrong(
    where: str, given: Mapping[str, str | None], own: Mapping[str, str], *, only_producer: bool = False
) -> None:
    known = {name: value for name, value in given.items() if value is not None}
    # Of a value that is not known yet, librdkafka can judge the name.
    for name in given.keys() - known.keys():
        wrong = _asked(((name, ""),), only_producer)
        if wrong is not None and "No such configuration" in wrong:
            raise _wrong(where, wrong)
    if known and (wrong := _asked((*own.items(), *known.items()), only_producer)) is not None:
        raise _wrong(where, wrong)


def _wrong(where: str, wrong: str) -> ConfigError:
    return ConfigError(
        f"{where}: librdkafka refuses it: {wrong}",
        fix="correct the name or the value; librdkafka's CONFIGURATION.md has all of them",
    )


# Settings are checked wherever they are made; the answer for the same properties is the same.
@lru_cache(maxsize=128)
def _asked(properties: tuple[tuple[str, str], ...], only_producer: bool) -> str | None:
    """What librdkafka says against some properties; None: nothing.

    A client without brokers connects to nothing.
    """
    # By no name, so that nothing else hears or changes it.
    logger, said = logging.Logger("librdkafka"), _Said()  # noqa: LOG001
    logger.addHandler(said)
    config: dict[str, Any] = dict(properties)
    try:
        producer = Producer(config, logger=logger)
        producer.poll(0)
        if not only_producer:
            Consumer({"group.id": "kpipe", **config}, logger=logger).close()
    except KafkaException as exception:
        return str(exception.args[0].str()).strip()
    except (TypeError, ValueError, AttributeError) as error:
        # A name that confluent-kafka takes for a callback or an object.
        return str(error)
    ignored = (line.rpartition("]: ")[2] for line in said.lines if only_producer and "will be ignored" in line)
    return next(ignored, None)


class _Said(logging.Handler):
    """Keeps what a client logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

"""Checks of additional Kafka client properties from users: which ones kpipe sets, which are unknown or secret.

Source: librdkafka CONFIGURATION.md, Kafka's consumer configuration reference, Spark's Kafka source.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaException, Producer

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client._compat import ignored_by_producer, is_unknown_property

Dialect = Literal["librdkafka", "java"]

# Properties that kpipe sets: a user's value would be ignored or silently break a guarantee. Contains the names in both
# dialects, with librdkafka's aliases, and the setting that decides each.
OWNED: Mapping[str, str] = {
    "bootstrap.servers": "KafkaConnection(bootstrap_servers=...)",
    "metadata.broker.list": "KafkaConnection(bootstrap_servers=...)",
    "security.protocol": "KafkaConnection(security_protocol=...)",
    "sasl.mechanism": "KafkaConnection(sasl_mechanism=...)",
    "sasl.mechanisms": "KafkaConnection(sasl_mechanism=...)",
    "sasl.username": "KafkaConnection(sasl_username=...)",
    "sasl.password": "KafkaConnection(sasl_password=...)",
    "sasl.jaas.config": "KafkaConnection(sasl_mechanism=...) and the settings of the mechanism",
    "sasl.oauthbearer.method": "KafkaConnection(oauth_token_url=...)",
    "sasl.oauthbearer.token.endpoint.url": "KafkaConnection(oauth_token_url=...)",
    "sasl.oauthbearer.client.id": "KafkaConnection(oauth_client_id=...)",
    "sasl.oauthbearer.client.secret": "KafkaConnection(oauth_client_secret=...)",
    "sasl.oauthbearer.client.credentials.client.id": "KafkaConnection(oauth_client_id=...)",
    "sasl.oauthbearer.client.credentials.client.secret": "KafkaConnection(oauth_client_secret=...)",
    "sasl.oauthbearer.scope": "KafkaConnection(oauth_scope=...)",
    "sasl.oauthbearer.extensions": "KafkaConnection(oauth_extensions=...)",
    "sasl.kerberos.keytab": "KafkaConnection(kerberos_keytab=...)",
    "sasl.kerberos.principal": "KafkaConnection(kerberos_principal=...)",
    "sasl.kerberos.service.name": "KafkaConnection(kerberos_service_name=...)",
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
# Connection properties apply to all clients.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.")
SECRET_WORDS = ("password", "passphrase", "secret", "jaas", "key.pem", "keystore.key", "oauthbearer.config")
"""Parts of the names of properties whose values are secrets."""


def is_secret(name: str) -> bool:
    """Return whether a property's value is a secret, judged by its name."""
    return any(word in name for word in SECRET_WORDS)


def check_client(where: str, dialect: Dialect, given: Mapping[str, str | None]) -> None:
    """Check properties for every client of a dialect.

    Args:
        where: The option that contains the properties, for the message.
        dialect: With ``librdkafka``, a client also validates the properties. With ``java``, no client is available, so
            only properties that kpipe sets and names with Spark's ``kafka.`` prefix are refused.
        given: Values by name; None if the value is not known yet.

    Raises:
        ConfigError: kpipe sets a property itself, or the client refuses it.
    """
    _refuse_owned(where, given)
    if dialect == "librdkafka":
        _refuse_wrong(where, given, {})
    for name in given:
        if name.startswith("kafka."):
            # Spark would remove only one prefix, and Kafka's client ignores unknown properties.
            msg = f"{where}: {name!r} has the prefix of Spark's Kafka options"
            raise ConfigError(msg, fix=f"remove the prefix: {name.removeprefix('kafka.')!r}", property=name)


def check_producer(where: str, given: Mapping[str, str | None], own: Mapping[str, str]) -> None:
    """Check librdkafka properties for the producer of outputs.

    Args:
        where: The option that contains the properties, for the message.
        given: Values by name; None if the value is not known yet.
        own: Properties that kpipe sets, with which the given ones must be compatible.

    Raises:
        ConfigError: kpipe sets a property itself, it belongs to the connection, or the producer refuses it.
    """
    _refuse_owned(where, given)
    for name in given:
        if name.startswith(_CONNECTION):
            msg = f"{where}: {name!r} belongs to the connection"
            raise ConfigError(
                msg, fix="move it to KafkaConnection(librdkafka=...); use dagster.EnvVar for secrets", property=name
            )
    _refuse_wrong(where, given, {"enable.idempotence": "true", **own}, only_producer=True)


def _refuse_owned(where: str, given: Mapping[str, str | None]) -> None:
    for name in given:
        if name in OWNED:
            msg = f"{where}: {name!r} is set by kpipe"
            raise ConfigError(msg, fix=f"remove it; its value comes from {OWNED[name]}", property=name)


def _refuse_wrong(
    where: str, given: Mapping[str, str | None], own: Mapping[str, str], *, only_producer: bool = False
) -> None:
    known = {name: value for name, value in given.items() if value is not None}
    # If a value is not known yet, librdkafka can still check the name.
    for name in given.keys() - known.keys():
        wrong = _rejection(((name, ""),), only_producer)
        if wrong is not None and is_unknown_property(wrong):
            raise _wrong(where, wrong)
    if known and (wrong := _rejection((*own.items(), *known.items()), only_producer)) is not None:
        raise _wrong(where, wrong)


def _wrong(where: str, wrong: str) -> ConfigError:
    return ConfigError(
        f"{where}: librdkafka rejects it: {wrong}",
        fix="correct the name or the value; librdkafka's CONFIGURATION.md lists all properties",
    )


# Cached, because settings are checked each time they are created, and equal properties give the same result.
@lru_cache(maxsize=128)
def _rejection(properties: tuple[tuple[str, str], ...], only_producer: bool) -> str | None:
    """Return librdkafka's error for some properties; None if it accepts them.

    The client has no brokers, so it does not connect.
    """
    # A separate logger instance, so that logging configuration does not affect it and no other handler receives its
    # messages.
    logger, lines = logging.Logger("librdkafka"), _LogLines()  # noqa: LOG001
    logger.addHandler(lines)
    config: dict[str, Any] = dict(properties)
    try:
        producer = Producer(config, logger=logger)
        producer.poll(0)
        if not only_producer:
            Consumer({"group.id": "kpipe", **config}, logger=logger).close()
    except KafkaException as exception:
        return str(exception.args[0].str()).strip()
    except (TypeError, ValueError, AttributeError) as error:
        # A name that confluent-kafka treats as a callback or an object.
        return str(error)
    return ignored_by_producer(lines.lines) if only_producer else None


class _LogLines(logging.Handler):
    """Collects the log lines of a client."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

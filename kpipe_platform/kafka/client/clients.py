"""Kafka clients of one process: made at first use, never shared across a fork, closed when done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.settings import ConnectionSettings

REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)
"""Errors of a connection that waiting does not mend."""


Client = TypeVar("Client")


def new_client(
    kind: Callable[[dict[str, Any]], Client], config: Mapping[str, Any], settings: ConnectionSettings
) -> Client:
    """Make a client of librdkafka's.

    Args:
        kind: ``Producer``, ``Consumer`` or ``AdminClient``.
        config: Its properties, by librdkafka's names.
        settings: The connection, for redaction.

    Raises:
        ConfigError: librdkafka refuses the properties. What does not depend on the machine is found when it is
            declared; a file that is not where the client runs, for example on an executor, is found here.
    """
    try:
        return kind(dict(config))
    except KafkaException as exception:
        text = settings.redact(str(exception.args[0].str()))
        msg = f"librdkafka makes no client for {settings.bootstrap_servers} of these properties: {text}"
        fix = "correct KafkaConnection, or KafkaDestination(producer=...); Spark's executors need the same files"
        raise ConfigError(msg, fix=fix) from exception


def reader_config(settings: ConnectionSettings, group: str, isolation: str) -> dict[str, Any]:
    """Properties of a consumer, by librdkafka's names, that joins no group, stores no offsets and makes no topics.

    Args:
        settings: The connection.
        group: Group id of the client, which its ACLs are for.
        isolation: Isolation of the read.
    """
    return {
        **settings.for_librdkafka(),
        "group.id": group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        # An offset that is not there is an error, never another place.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


class Clients:
    """Lazy admin and consumer clients for one connection.

    librdkafka's threads do not survive a fork and its handles do not pickle; so a client belongs to the
    process that made it, a forked child makes its own, and pickling carries the settings only.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._admin: AdminClient | None = None
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._refusal: KafkaError | None = None

    def admin(self) -> AdminClient:
        """The admin client of this process."""
        with self._lock:
            self._forget_after_fork()
            if self._admin is None:
                config: dict[str, Any] = {**self.settings.for_librdkafka(), "error_cb": self._note}
                self._admin = new_client(AdminClient, config, self.settings)
            return self._admin

    def refusal(self) -> KafkaError | None:
        """Why the brokers refuse this client, if they do.

        librdkafka tries refused credentials again until the request times out; only its error callback says why.
        """
        if self._admin is not None:
            self._admin.poll(0)
        return self._refusal

    def _note(self, error: KafkaError) -> None:
        if error.code() in REFUSALS:
            self._refusal = error

    def consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        """A consumer that never joins ``group``: for its committed offsets and its group metadata."""
        with self._lock:
            self._forget_after_fork()
            consumer = self._consumers.get((group, isolation))
            if consumer is None:
                consumer = new_client(Consumer, reader_config(self.settings, group, isolation), self.settings)
                self._consumers[(group, isolation)] = consumer
            return consumer

    def close(self) -> None:
        """Close the clients of this process. They are made again if asked for."""
        with self._lock:
            self._forget_after_fork()
            consumers, self._consumers, self._admin = self._consumers, {}, None
        for consumer in consumers.values():
            consumer.close()

    def _forget_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._admin = None
            self._consumers = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"])  # type: ignore[misc]  # a fresh object in this process is the point

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Kafka clients of one process: created at first use, never shared across a fork, closed when done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client._compat import is_refused
from kpipe_platform.kafka.client.settings import ConnectionSettings

Client = TypeVar("Client")
Owner = TypeVar("Owner", bound="Closable")


def new_client(
    kind: Callable[[dict[str, Any]], Client], config: Mapping[str, Any], settings: ConnectionSettings
) -> Client:
    """Create a librdkafka client.

    Args:
        kind: ``Producer``, ``Consumer`` or ``AdminClient``.
        config: Properties, by their librdkafka names.
        settings: The connection, for redaction.

    Raises:
        ConfigError: librdkafka refuses the properties. Errors that do not depend on the machine are found when the
            properties are declared. A file that is missing where the client runs, for example on an executor, is
            found here.
        AuthenticationFailedError: The connection's token callback failed.
    """
    if (tokens := config.get("oauth_cb")) is not None:
        # If a callback fails, the constructor waits 10 s and reports only that there is no token.
        tokens(config.get("sasl.oauthbearer.config"))
    try:
        return kind(dict(config))
    except KafkaException as exception:
        text = settings.redact(str(exception.args[0].str()))
        msg = f"librdkafka rejects the client properties for {settings.bootstrap_servers}: {text}"
        fix = "correct KafkaConnection or KafkaDestination(producer=...); Spark's executors need the same files"
        raise ConfigError(msg, fix=fix) from exception


def reader_config(settings: ConnectionSettings, group: str, isolation: str) -> dict[str, Any]:
    """Return librdkafka properties of a consumer that does not join its group, commit offsets or create topics.

    Args:
        settings: The connection.
        group: Group id of the client, to which ACLs apply.
        isolation: Isolation level of the read.
    """
    return {
        **settings.for_librdkafka(),
        "group.id": group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        # A missing offset is an error; the consumer must not continue at another offset.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
    }


class Closable:
    """A context manager that calls ``close`` on exit: base of the objects that own Kafka clients."""

    def close(self) -> None:
        """Close the clients."""
        raise NotImplementedError

    def __enter__(self: Owner) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Clients(Closable):
    """Lazy admin and consumer clients for one connection.

    librdkafka's threads do not survive a fork, and its handles do not pickle. So a client belongs to the process that
    created it, a forked child creates its own, and pickling keeps only the settings.
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
        """Return why the brokers refuse this client, or None.

        librdkafka retries refused credentials until the request times out; only its error callback has the reason.
        """
        if self._admin is not None:
            self._admin.poll(0)
        return self._refusal

    def _note(self, error: KafkaError) -> None:
        if is_refused(error):
            self._refusal = error

    def consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        """Return a consumer that never joins ``group``, for its committed offsets and group metadata."""
        with self._lock:
            self._forget_after_fork()
            consumer = self._consumers.get((group, isolation))
            if consumer is None:
                consumer = new_client(Consumer, reader_config(self.settings, group, isolation), self.settings)
                self._consumers[(group, isolation)] = consumer
            return consumer

    def close(self) -> None:
        """Close the clients of this process. The next use creates new ones."""
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

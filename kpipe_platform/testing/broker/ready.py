"""Wait until brokers are ready."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kpipe_platform.jvm.ports import LOOPBACK
from kpipe_platform.testing.clients import client_config

__all__ = ["await_brokers", "exercise"]

_POLL_S = 0.02


def await_brokers(
    cluster_id: str, ports: Mapping[int, int], end: float, check: Callable[[], None], *, exact: bool = True
) -> bool:
    """Wait until each broker responds to a metadata request, and every response lists all of them.

    Metadata lists a broker once it is registered and unfenced, so topics can be created from then on.

    Args:
        cluster_id: The expected cluster.
        ports: Port of the plaintext listener by broker id.
        end: ``time.monotonic()`` at which to give up.
        check: Called repeatedly while waiting. Raises an exception to stop waiting.
        exact: Whether responses must list no other brokers.

    Returns:
        Whether the brokers were ready in time.
    """
    expected = set(ports)
    for port in ports.values():
        if not _until(lambda port=port: _accepts(port), end, check):  # type: ignore[misc]
            return False
    for port in ports.values():
        admin = AdminClient(client_config(f"{LOOPBACK}:{port}"))

        def lists_all(admin: AdminClient = admin) -> bool:
            try:
                metadata = admin.list_topics(timeout=1.0)
            except KafkaException:
                return False
            listed = set(metadata.brokers)
            if metadata.cluster_id != cluster_id:
                # Another cluster took the port just before this broker, which is about to exit for that reason.
                return False
            return listed == expected or (not exact and listed > expected)

        if not _until(lists_all, end, check):
            return False
    return True


def exercise(bootstrap_servers: str) -> None:
    """Write two records in a transaction and read them, so that a broker loads the classes that every later run needs.

    Args:
        bootstrap_servers: Address of the broker's plaintext listener.
    """
    # Imported here, because tests that only start a broker need neither module.
    from kpipe_platform.testing.records import consume, produce
    from kpipe_platform.testing.topics import create_topic

    topic = create_topic(bootstrap_servers, "exercise", partitions=2)
    produce(bootstrap_servers, topic, [b"1", b"2"], transaction="commit")
    consume(bootstrap_servers, topic)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _until(condition: Callable[[], bool], end: float, check: Callable[[], None]) -> bool:
    while True:
        check()
        if condition():
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)

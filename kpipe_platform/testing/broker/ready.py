"""Waiting until brokers answer."""

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
    """Wait until each broker answers a metadata request, and every answer lists all of them.

    Metadata lists a broker once it is registered and let in, so topics can be made from then on.

    Args:
        cluster_id: The cluster that is waited for.
        ports: Plain port by broker id.
        end: ``time.monotonic()`` at which to give up.
        check: Called all along; raises when waiting has no sense any more.
        exact: False lets answers list other brokers too.

    Returns:
        Whether they were ready in time.
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
            found = set(metadata.brokers)
            if metadata.cluster_id != cluster_id:
                # Another cluster took the port a moment before this one, which is about to end for it.
                return False
            return found == expected or (not exact and found > expected)

        if not _until(lists_all, end, check):
            return False
    return True


def exercise(bootstrap_servers: str) -> None:
    """Write, read and commit a little, so that a broker loads the classes that every later run needs.

    Args:
        bootstrap_servers: Plain listener of the broker.
    """
    # Imported here: tests that only start a broker need neither.
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

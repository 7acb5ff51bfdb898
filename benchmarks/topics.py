"""Topics of a benchmark: filled once, read back by a plain consumer that shares no code with what is measured."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.orders import Orders
from kpipe_platform.testing.records import log_ranges
from kpipe_platform.testing.topics import create_topic, delete_topic

# Old timestamps are none of a benchmark's business, and neither is retention.
TOPIC = {"retention.ms": "-1"}

_BATCH = 10_000
_DEADLINE_S = 600.0
_GROUPS_DEADLINE_S = 30.0


@contextmanager
def filled(bootstrap_servers: str, orders: Orders, *, partitions: int = 1, headers: bool = False) -> Iterator[str]:
    """A topic with the orders in it, deleted at the end; order n is in partition n % ``partitions``.

    Args:
        bootstrap_servers: The broker.
        orders: What to write.
        partitions: Number of partitions.
        headers: Give each record the two headers of ``Orders.headers``.

    Raises:
        RuntimeError: The broker did not take all of them.
    """
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap_servers, topic, partitions=partitions, config=TOPIC)
    try:
        _fill(bootstrap_servers, topic, orders, partitions, headers)
        yield topic
    finally:
        delete_topic(bootstrap_servers, topic)


def _fill(bootstrap_servers: str, topic: str, orders: Orders, partitions: int, headers: bool) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
        }
    )
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    for number, (key, value) in enumerate(orders.records()):
        own = orders.headers(number) if headers else None
        while True:
            try:
                producer.produce(
                    topic, value=value, key=key, partition=number % partitions, headers=own, on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(_DEADLINE_S) or refused:
        msg = f"topic {topic} could not be filled: {refused[:1]}"
        raise RuntimeError(msg)


def await_groups(bootstrap_servers: str) -> None:
    """Wait until a new broker has made and loaded the topic that keeps the offsets of consumer groups.

    Raises:
        RuntimeError: It has not within half a minute.
    """
    deadline = time.monotonic() + _GROUPS_DEADLINE_S
    # That topic's partitions load one by one; so many groups are spread over all of them.
    for number in range(200):
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": f"benchmarks-{number}"}
        with closing(Consumer(settings)) as consumer:
            while not _has_coordinator(consumer):
                if time.monotonic() > deadline:
                    msg = f"the broker at {bootstrap_servers} does not coordinate consumer groups"
                    raise RuntimeError(msg)
                time.sleep(0.05)


def _has_coordinator(consumer: Consumer) -> bool:
    try:
        consumer.committed([TopicPartition("none", 0)], _GROUPS_DEADLINE_S)
    except KafkaException:
        return False
    return True


def read(bootstrap_servers: str, topic: str) -> Iterator[Message]:
    """Committed records of a topic, from its start to its present end.

    Raises:
        RuntimeError: The end was not reached within ten minutes.
    """
    deadline = time.monotonic() + _DEADLINE_S
    ends = {number: end for number, (start, end) in _settled(bootstrap_servers, topic, deadline).items() if end > start}
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "benchmarks",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        # Whole values are looked at, so the read is bounded by Python, not by the fetches.
        "queued.max.messages.kbytes": 65_536,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        while ends:
            if time.monotonic() > deadline:
                msg = f"topic {topic} could not be read to its end"
                raise RuntimeError(msg)
            for message in consumer.consume(_BATCH, timeout=0.1):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends.pop(message.partition() or 0, None)
                else:
                    raise KafkaException(error)


def _settled(bootstrap_servers: str, topic: str, deadline: float) -> dict[int, tuple[int, int]]:
    """Ends once no transaction is open: a commit returns a moment before its markers are in every partition."""
    while True:
        everything = log_ranges(bootstrap_servers, topic, isolation="read_uncommitted")
        if log_ranges(bootstrap_servers, topic) == everything:
            return everything
        if time.monotonic() > deadline:
            msg = f"topic {topic} has an open transaction"
            raise RuntimeError(msg)
        time.sleep(0.05)

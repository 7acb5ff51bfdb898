"""Topics of a benchmark: filled once, read back by a plain consumer that shares no code with what is measured."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from types import TracebackType

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from benchmarks.orders import Orders
from kpipe_platform.testing.records import log_ranges
from kpipe_platform.testing.topics import create_topic, delete_topic

# Old timestamps are none of a benchmark's business, and neither is retention.
TOPIC = {"retention.ms": "-1"}

_BATCH = 10_000
_BATCH_BYTES = 8 * 2**20
# 32 times 8 MiB, or 320,000 records: within the bounds of the producer's queue.
_BATCHES_AHEAD = 32
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


def run_tag(source: str, contestant: str, turn: int) -> str:
    """What names the topics and the group of one run, and of no other: cases have sources in common."""
    return f"{source}.{contestant}.{turn}.{uuid.uuid4().hex[:6]}"


class Sources:
    """Source topics that several cases have in common: filled at the first use, deleted at the end.

    Args:
        bootstrap_servers: The broker.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics: dict[tuple[Orders, int, bool], str] = {}
        self._stack = ExitStack()

    def topic(self, orders: Orders, *, partitions: int = 1, headers: bool = False) -> str:
        """A topic as of ``filled``."""
        wanted = orders, partitions, headers
        if wanted not in self._topics:
            made = filled(self._bootstrap_servers, orders, partitions=partitions, headers=headers)
            self._topics[wanted] = self._stack.enter_context(made)
        return self._topics[wanted]

    def __enter__(self) -> Sources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _fill(bootstrap_servers: str, topic: str, orders: Orders, partitions: int, headers: bool) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            # The broker's own limit is a little higher; the client's would not take a value of a million bytes.
            "message.max.bytes": 1_048_576,
            "delivery.report.only.error": True,
        }
    )
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    largest = max(len(orders.value(0)), 1)
    at_once = max(min(_BATCH, _BATCH_BYTES // largest), 1)
    numbers = iter(range(orders.count))
    while batch := list(islice(numbers, at_once)):
        # A record that finds the queue full would have to be sent again after those behind it.
        while len(producer) > _BATCHES_AHEAD * at_once:
            producer.poll(0.05)
        if headers:
            for number in batch:
                producer.produce(
                    topic,
                    orders.value(number),
                    orders.key(number),
                    headers=orders.headers(number),
                    partition=number % partitions,
                    on_delivery=on_delivery,
                )
            continue
        for start in batch[:partitions]:
            messages = [
                {"value": orders.value(number), "key": orders.key(number)}
                for number in range(start, batch[-1] + 1, partitions)
            ]
            partition = start % partitions
            if producer.produce_batch(topic, messages, partition, on_delivery=on_delivery) != len(messages):
                errors = [each["_error"] for each in messages if "_error" in each]
                msg = f"topic {topic} could not be filled: {errors[:1]}"
                raise RuntimeError(msg)
    if producer.flush(_DEADLINE_S) or refused:
        msg = f"topic {topic} could not be filled: {refused[:1]}"
        raise RuntimeError(msg)


def await_groups(bootstrap_servers: str) -> None:
    """Wait until a new broker has made and loaded the topic that keeps the offsets of consumer groups.

    Raises:
        RuntimeError: It has not within half a minute.
    """
    deadline = time.monotonic() + _GROUPS_DEADLINE_S
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    # That topic's partitions load one by one; so many groups are spread over all of them.
    waiting = [f"benchmarks-{number}" for number in range(200)]
    while waiting:
        if time.monotonic() > deadline:
            msg = f"the broker at {bootstrap_servers} has no consumer group coordinator yet"
            raise RuntimeError(msg)
        answers = admin.describe_consumer_groups(waiting, request_timeout=_GROUPS_DEADLINE_S)
        # Brokers of today say of a group without members that there is none; a partition that loads says so.
        errors = {group: answer.exception(_GROUPS_DEADLINE_S) for group, answer in answers.items()}
        waiting = [group for group, error in errors.items() if error is not None and not _is_unknown(error)]
        if waiting:
            time.sleep(0.05)


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


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
        # What tells the end is an answer without records, which a broker keeps back for half a second by default.
        "fetch.wait.max.ms": 10,
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

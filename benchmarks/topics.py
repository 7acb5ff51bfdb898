"""Topics of a benchmark: filled once, read back by a plain consumer that shares no code with what is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.measure import Problems
from benchmarks.orders import Orders
from kpipe_platform.testing.records import log_ranges

_BATCH = 10_000
_READ_DEADLINE_S = 300.0
_GROUPS_DEADLINE_S = 30.0
_ERROR_OFFSET_HEADER = "__connect.errors.offset"


def fill(bootstrap_servers: str, topic: str, orders: Orders) -> None:
    """Write the orders to a topic of one partition, once and in order.

    Raises:
        RuntimeError: The broker did not take all of them.
    """
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

    for key, value in orders.records():
        while True:
            try:
                producer.produce(topic, value=value, key=key, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(_READ_DEADLINE_S) or refused:
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
    """Committed records of a topic, from its start to its present last stable offset.

    Raises:
        RuntimeError: The end was not reached within five minutes.
    """
    ends = {number: end for number, (start, end) in log_ranges(bootstrap_servers, topic).items() if end > start}
    deadline = time.monotonic() + _READ_DEADLINE_S
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


def enriched_problems(bootstrap_servers: str, topic: str, orders: Orders) -> Problems:
    """What is wrong with a topic that must hold every good order enriched, once, in order and with its key."""
    seen = bytearray(orders.count)
    wrong: dict[str, int] = {}
    last = -1

    def note(what: str) -> None:
        wrong[what] = wrong.get(what, 0) + 1

    for message in read(bootstrap_servers, topic):
        found = _object(message.value())
        number = found.get("order_id")
        if not isinstance(number, int) or not 0 <= number < orders.count or orders.is_bad(number):
            note("are no good order")
            continue
        if found != orders.enriched(number) or message.key() != orders.customer(number).encode():
            note("have another key or value than they should")
        if seen[number]:
            note("are there again")
        elif number < last:
            note("are out of order")
        seen[number] = 1
        last = number
    missing = orders.count - orders.bad - sum(seen)
    if missing:
        wrong["are missing"] = missing
    return [f"{topic}: {count:,} records {what}" for what, count in wrong.items()]


def _object(data: bytes | None) -> dict[str, object]:
    try:
        found = json.loads(data or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def dead_letter_problems(bootstrap_servers: str, topic: str, orders: Orders) -> Problems:
    """What is wrong with a dead-letter topic that must hold every bad order once."""
    found: list[int] = []
    for message in read(bootstrap_servers, topic):
        headers = dict(message.headers() or ())
        found.append(int(headers.get(_ERROR_OFFSET_HEADER) or -1))
    # The source topic has one partition and was filled in order: its offsets are the orders' numbers.
    expected = [number for number in range(orders.count) if orders.is_bad(number)]
    if sorted(found) == expected:
        return []
    return [
        f"{topic}: {len(found):,} dead letters of {len(set(found)):,} records, where {len(expected):,} orders are bad"
    ]

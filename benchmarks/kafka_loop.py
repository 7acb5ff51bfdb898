"""A plain confluent-kafka program as a contestant: consume, transform and produce in transactions, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from benchmarks.checks import ERROR_OFFSET, ERROR_PARTITION
from benchmarks.measure import Problems, Run, stopwatch
from benchmarks.orders import TAX
from benchmarks.topics import TOPIC, run_tag
from benchmarks.work import Work
from kpipe_platform.testing.topics import create_topic, delete_topic

RECORDS_A_TRANSACTION = 10_000
_AT_ONCE = 1_000
_TIMEOUT_S = 60.0

Record = Callable[[Producer, Message, str, str], None]
"""Takes a producer, a record, the topic of the outputs and that of the dead letters."""


class KafkaLoop:
    """Exactly once, with a dead-letter topic: what one would write by hand in Python.

    Args:
        name: Key in the report.
        work: What to do; its source has one partition.
        record: Does it with a record: enriches it and writes it, or its dead letter. JSON by default.
    """

    def __init__(self, name: str, work: Work, record: Record | None = None) -> None:
        self.name = name
        self._work = work
        self._record = record or _produce

    def run(self, turn: int) -> Run:
        tag = run_tag(self._work.source, self.name, turn)
        out, dead_letters = f"{tag}.out", f"{tag}.dlq"
        for topic in (out, dead_letters):
            create_topic(self._work.bootstrap_servers, topic, config=TOPIC)
        elapsed = stopwatch()
        self._loop(tag, out, dead_letters)
        return Run(elapsed(), self._work.orders.count, lambda: self._problems(out, dead_letters))

    def _loop(self, group: str, out: str, dead_letters: str) -> None:
        servers, source = self._work.bootstrap_servers, self._work.source
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": group,
                # As kpipe's destination does; and no call of Python for a record that was acknowledged.
                "compression.type": "lz4",
                "linger.ms": 20,
                "delivery.report.only.error": True,
            }
        )
        producer.init_transactions(_TIMEOUT_S)
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        with closing(consumer):
            # Assigned rather than subscribed: joining the group is none of its work.
            consumer.assign([TopicPartition(source, 0, 0)])
            position, end = 0, self._work.orders.count
            while position < end:
                producer.begin_transaction()
                stop = min(position + RECORDS_A_TRANSACTION, end)
                while position < stop:
                    messages = consumer.consume(min(_AT_ONCE, stop - position), _TIMEOUT_S)
                    if not messages:
                        msg = f"topic {source} has no record at offset {position}"
                        raise RuntimeError(msg)
                    for message in messages:
                        if message.error() is not None:
                            raise KafkaException(message.error())
                        self._record(producer, message, out, dead_letters)
                        position += 1
                producer.send_offsets_to_transaction(
                    [TopicPartition(source, 0, position)], consumer.consumer_group_metadata(), _TIMEOUT_S
                )
                producer.commit_transaction(_TIMEOUT_S)

    def _problems(self, out: str, dead_letters: str) -> Problems:
        problems = self._work.output_problems(out) + self._work.dead_letter_problems(dead_letters)
        for topic in (out, dead_letters):
            delete_topic(self._work.bootstrap_servers, topic)
        return problems


def _produce(producer: Producer, message: Message, out: str, dead_letters: str) -> None:
    try:
        order = json.loads(message.value() or b"")
        enriched = {
            "order_id": order["order_id"],
            "customer": order["customer"],
            "country": order["country"],
            "gross": order["amount"] * TAX,
        }
    except (ValueError, KeyError):
        to_dead_letters(producer, message, dead_letters)
        return
    producer.produce(out, json.dumps(enriched), enriched["customer"])
    producer.poll(0)


def to_dead_letters(producer: Producer, message: Message, dead_letters: str) -> None:
    """Write the dead letter of a record."""
    where = {ERROR_PARTITION: message.partition(), ERROR_OFFSET: message.offset()}
    headers: list[tuple[str, str | bytes | None]] = [(name, str(value)) for name, value in where.items()]
    producer.produce(dead_letters, message.value(), message.key(), headers=headers)

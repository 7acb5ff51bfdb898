"""Sending rows and waiting for their acknowledgements, in a Spark task's Python worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from kpipe_platform.kafka.client.calls import kafka_error, served
from kpipe_platform.spark.sink.task.outputs import Message

# How long the writer waits for room in librdkafka's queue before it looks for failures again, seconds.
_QUEUE_WAIT_S = 0.02


class GiveUpError(Exception):
    """The brokers refused or did not acknowledge; the reason is in ``Sink.failures``."""


class Sink:
    """A producer that remembers which deliveries failed, and to which topics."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.failures: list[KafkaError] = []
        self.failed_topics: set[str] = set()

    def on_delivery(self, error: KafkaError | None, report: Report) -> None:
        """Called for failed deliveries only (``delivery.report.only.error``)."""
        if error is not None:
            self.failures.append(error)
            self.failed_topics.add(report.topic() or "")

    def send_all(self, topic: str, messages: Iterable[Message]) -> None:
        """Queue records, waiting for room while the queue is full.

        Raises:
            GiveUpError: A delivery failed, or a record cannot be queued.
        """
        produce: Callable[..., None] = self.producer.produce
        on_delivery = self.on_delivery
        for key, value, partition, timestamp, headers in messages:
            while True:
                try:
                    # By position: passing names takes as long as all the rest of the call.
                    produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
                    break
                except BufferError:
                    self.poll(_QUEUE_WAIT_S)
                except KafkaException as exception:
                    self.failures.append(kafka_error(exception))
                    self.failed_topics.add(topic)
                    raise GiveUpError from exception

    def partitions(self, topic: str, deadline_s: float) -> int | None:
        """How many partitions a topic has now; None where the brokers do not say.

        Raises:
            KafkaException: No answer within the deadline.
        """
        found = self.producer.list_topics(topic, deadline_s).topics.get(topic)
        return None if found is None else len(found.partitions) or None

    def poll(self, timeout_s: float = 0.0) -> None:
        """Serve delivery reports; stop the work at the first failure."""
        served(lambda: self.producer.poll(timeout_s))
        if self.failures:
            raise GiveUpError

    def flush(self, deadline_s: float) -> int:
        """Wait for every acknowledgement; returns how many records have none."""
        deadline = time.monotonic() + deadline_s
        left = len(self.producer)
        while left and not self.failures and time.monotonic() < deadline:
            left = served(lambda: self.producer.flush(min(1.0, deadline_s)))
        if self.failures:
            raise GiveUpError
        return left

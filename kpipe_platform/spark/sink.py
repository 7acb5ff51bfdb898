"""Sending rows and waiting for their acknowledgements, in a Spark task's Python worker."""

from __future__ import annotations

import time
from typing import Any, cast

from confluent_kafka import KafkaError, Message, Producer

from kpipe_platform.kafka.calls import served
from kpipe_platform.spark.outputs import Row

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

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Called for failed deliveries only (``delivery.report.only.error``)."""
        if error is not None:
            self.failures.append(error)
            self.failed_topics.add(message.topic() or "")

    def send(self, topic: str, row: Row) -> None:
        """Queue one record, waiting for room while the queue is full."""
        while True:
            try:
                self.producer.produce(
                    topic,
                    value=row.value,
                    key=row.key,
                    headers=cast(Any, row.headers or None),
                    on_delivery=self.on_delivery,
                    **row.placement(),
                )
            except BufferError:
                self.poll(_QUEUE_WAIT_S)
            else:
                return

    def send_plain(self, topic: str, messages: list[dict[str, Any]]) -> None:
        """Queue records that have neither headers, nor a timestamp, nor a partition of their own."""
        while messages:
            if self.producer.produce_batch(topic, messages, on_delivery=self.on_delivery) == len(messages):
                return
            messages = [m for m in messages if "_error" in m]
            for message in messages:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:
                    self.failures.append(error)
            self.poll(_QUEUE_WAIT_S)

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

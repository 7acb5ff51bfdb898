"""Sending records and waiting for their acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Report

from kpipe_platform.kafka.client._compat import serve_reports
from kpipe_platform.kafka.client.calls import kafka_error

# Wait for space in librdkafka's queue before checking for failures again, seconds.
_QUEUE_WAIT_S = 0.02

ANY_PARTITION, NOW = -1, 0
"""Values for ``produce`` if a record has no partition or no timestamp of its own."""

Message = tuple[bytes | None, bytes | None, int, int, list[tuple[str, bytes | None]] | None]
"""One record to write: key, value, partition, timestamp in milliseconds, headers."""


class GiveUpError(Exception):
    """The delivery of a record failed. ``AckedProducer.failures`` has the reason."""


class AckedProducer:
    """Sends records and collects failed deliveries and their topics.

    Args:
        producer: A producer whose ``delivery.report.only.error`` is true.
    """

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.failures: list[KafkaError] = []
        self.failed_topics: set[str] = set()

    @property
    def failed_topic_names(self) -> str | None:
        """The topics whose records failed, separated by commas; None if none did.

        In a transaction, all records fail together, and the client does not report which topic is the cause.
        """
        return ", ".join(sorted(self.failed_topics)) or None

    def on_delivery(self, error: KafkaError | None, report: Report) -> None:
        """Record a failed delivery. librdkafka reports only failures (``delivery.report.only.error``)."""
        if error is not None:
            self.failures.append(error)
            self.failed_topics.add(report.topic() or "")

    def send_all(self, topic: str, messages: Iterable[Message]) -> None:
        """Queue records. Waits while the queue is full.

        Raises:
            GiveUpError: A delivery failed, or a record cannot be queued.
        """
        produce: Callable[..., None] = self.producer.produce
        on_delivery = self.on_delivery
        for key, value, partition, timestamp, headers in messages:
            while True:
                try:
                    # Positional arguments: keyword arguments would double the duration of the call.
                    produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
                    break
                except BufferError:
                    self.poll(_QUEUE_WAIT_S)
                except KafkaException as exception:
                    self.failures.append(kafka_error(exception))
                    self.failed_topics.add(topic)
                    raise GiveUpError from exception

    def partitions(self, topic: str, deadline_s: float) -> int | None:
        """The current number of partitions of a topic; None if the brokers do not report it.

        Raises:
            KafkaException: No answer within the deadline.
        """
        metadata = self.producer.list_topics(topic, deadline_s).topics.get(topic)
        return None if metadata is None else len(metadata.partitions) or None

    def poll(self, timeout_s: float = 0.0) -> None:
        """Serve delivery reports.

        Raises:
            GiveUpError: A delivery failed.
        """
        serve_reports(lambda: self.producer.poll(timeout_s))
        if self.failures:
            raise GiveUpError

    def flush(self, deadline_s: float) -> int:
        """Wait for all acknowledgements, ``deadline_s`` seconds at most.

        Returns:
            The number of records that are not acknowledged.

        Raises:
            GiveUpError: A delivery failed.
        """
        deadline = time.monotonic() + deadline_s
        left = len(self.producer)
        while left and not self.failures and time.monotonic() < deadline:
            left = serve_reports(lambda: self.producer.flush(min(1.0, deadline_s)))
        if self.failures:
            raise GiveUpError
        return left

"""Original records by their coordinates, for dead letters of records whose bytes are no longer at hand."""

from __future__ import annotations

import time
from types import TracebackType
from typing import cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Consumer, Message, TopicPartition

from kpipe_platform.errors import TransientError
from kpipe_platform.kafka.calls import no_answer, translate
from kpipe_platform.kafka.records import KafkaRecord
from kpipe_platform.kafka.settings import ConnectionSettings


class RecordFetcher:
    """Reads single records; neighbours in offset order come from one fetch.

    Args:
        settings: The connection.
        group: Group id for the client; nothing is joined and nothing is committed.
        isolation: Isolation of the plan.
    """

    def __init__(self, settings: ConnectionSettings, group: str, isolation: str) -> None:
        self._settings = settings
        self._config = {
            **settings.for_librdkafka(),
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
        self._consumer: Consumer | None = None
        self._next: tuple[str, int, int] | None = None

    def get(self, topic: str, partition: int, offset: int) -> KafkaRecord:
        """The record at these coordinates.

        Raises:
            BrokerUnavailableError: No answer within the deadline.
            TransientError: The record is gone, for example by retention.
        """
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        if self._next != (topic, partition, offset):
            self._consumer.assign([TopicPartition(topic, partition, offset)])
        what = f"read {topic}/{partition} offset {offset}"
        deadline = time.monotonic() + self._settings.request_timeout_s
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                raise translate(error, self._settings, what, topic=topic, partition=partition, offset=offset)
            if message.offset() == offset:
                self._next = (topic, partition, offset + 1)
                return to_record(message)
            if (message.offset() or 0) > offset:
                msg = f"cannot {what}: the record is gone"
                raise TransientError(msg, fix="run again", topic=topic, partition=partition, offset=offset)
        raise no_answer(self._settings, what, topic=topic, partition=partition, offset=offset)

    def close(self) -> None:
        """Close the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def __enter__(self) -> RecordFetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def to_record(message: Message) -> KafkaRecord:
    """A client's message as a KafkaRecord."""
    kind, timestamp = message.timestamp()
    known = kind != TIMESTAMP_NOT_AVAILABLE
    return KafkaRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp if known else None,
        timestamp_type=("create_time" if kind == TIMESTAMP_CREATE_TIME else "log_append_time") if known else None,
        key=message.key(),
        value=message.value(),
        headers=tuple(cast("list[tuple[str, bytes | None]]", message.headers() or [])),
    )

"""Original records by their coordinates, for dead letters of records whose bytes are no longer at hand."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Consumer, Message, TopicPartition

from kpipe_platform.errors import TransientError
from kpipe_platform.kafka.calls import no_answer, translate
from kpipe_platform.kafka.clients import new_client, reader_config
from kpipe_platform.kafka.records import KafkaRecord
from kpipe_platform.kafka.settings import ConnectionSettings

# A slice over more partitions than this takes turns; each stream is a consumer with its own connection.
_MAX_STREAMS = 16
# Offsets that are read over rather than sought past: a seek costs a round trip and a new fetch, about 10 ms.
_MAX_AHEAD = 5_000
_BATCH = 500


class RecordFetcher:
    """Reads single records; those of one partition in offset order come from one stream.

    Args:
        settings: The connection.
        group: Group id for the client; nothing is joined and nothing is committed.
        isolation: Isolation of the plan.
    """

    def __init__(self, settings: ConnectionSettings, group: str, isolation: str) -> None:
        self._settings = settings
        self._config = {
            **reader_config(settings, group, isolation),
            # Records past the wanted one are mostly not wanted: do not prefetch the 64 MiB of the default.
            "queued.max.messages.kbytes": 4_096,
        }
        self._streams: dict[tuple[str, int], _Stream] = {}

    def get(self, topic: str, partition: int, offset: int) -> KafkaRecord:
        """The record at these coordinates.

        Raises:
            BrokerUnavailableError: No answer within the deadline.
            TransientError: The record is gone, for example by retention.
        """
        stream = self._streams.pop((topic, partition), None)
        if stream is None:
            if len(self._streams) >= _MAX_STREAMS:
                self._streams.pop(next(iter(self._streams))).close()
            consumer = new_client(Consumer, self._config, self._settings)
            stream = _Stream(consumer, topic, partition, self._settings)
        # The one used last goes to the end, so that the first is the one to close.
        self._streams[(topic, partition)] = stream
        return to_record(stream.at(offset))

    def close(self) -> None:
        """Close the consumers."""
        while self._streams:
            self._streams.popitem()[1].close()

    def __enter__(self) -> RecordFetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Stream:
    """One partition, read forward."""

    def __init__(self, consumer: Consumer, topic: str, partition: int, settings: ConnectionSettings) -> None:
        self._consumer = consumer
        self._topic, self._partition = topic, partition
        self._settings = settings
        self._waiting: deque[Message] = deque()
        # Offset that the consumer reads next, behind all that wait.
        self._next: int | None = None

    def at(self, offset: int) -> Message:
        """The message at this offset."""
        what = f"read {self._topic}/{self._partition} offset {offset}"
        place = {"topic": self._topic, "partition": self._partition, "offset": offset}
        first = self._waiting[0].offset() if self._waiting else self._next
        # Reading on is cheaper than a new fetch, which takes about as long as these many records.
        if first is None or not first <= offset <= first + _MAX_AHEAD:
            self._waiting.clear()
            self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])
            self._next = offset
        deadline = time.monotonic() + self._settings.request_timeout_s
        while time.monotonic() < deadline:
            while self._waiting:
                found = self._waiting[0].offset()
                if found == offset:
                    return self._waiting.popleft()
                if found is not None and found > offset:
                    msg = f"cannot {what}: the record is gone"
                    raise TransientError(msg, fix="run again", **place)
                self._waiting.popleft()
            for message in self._consumer.consume(_BATCH, 0.2):
                error = message.error()
                if error is not None:
                    raise translate(error, self._settings, what, **place)
                self._waiting.append(message)
                self._next = (message.offset() or 0) + 1
        raise no_answer(self._settings, what, **place)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


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

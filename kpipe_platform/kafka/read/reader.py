"""Read offset ranges with kpipe's own client, which never joins a group or commits offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

from kpipe_platform.errors import TransientError
from kpipe_platform.kafka.client.calls import no_answer, translate
from kpipe_platform.kafka.client.clients import Closable, new_client, reader_config
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition
from kpipe_platform.kafka.model.records import KafkaRecord

_BATCH = 500
_POLL_S = 0.1

# For reading a few records of each partition. Brokers return at least one batch, however large. Retention may pass a
# range's start between plan and read; the read then starts at the oldest remaining record.
_SAMPLES = {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 65_536}


class RecordReader(Closable):
    """Reads offset ranges of many partitions at once with one consumer, which stays open between reads.

    Args:
        settings: The connection.
        group: Group id of the client, which never joins the group or commits offsets.
        isolation: ``"read_committed"`` skips records of aborted transactions.
        samples: True to read only a few records of each range. A range whose start was deleted by retention then
            starts at the oldest remaining record, and a partition end before the range's end finishes the range.
            With False, the first case is an error, and in the second the reader waits for the missing records.
        prefetch_kbytes: Size of the client's prefetch queue, KiB; librdkafka's default is 64 MiB.
        clock: Monotonic clock in seconds; injected for tests.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        group: str,
        isolation: str,
        *,
        samples: bool = False,
        prefetch_kbytes: int = 16_384,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._config = {
            **reader_config(settings, group, isolation),
            # Only the partition end event shows that nothing but transaction markers is left.
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": prefetch_kbytes,
            **(_SAMPLES if samples else {}),
        }
        self._samples = samples
        self._clock = clock
        self._consumer: Consumer | None = None
        self._open: dict[Partition, OffsetRange] = {}
        self._finished: list[Partition] = []

    def read(self, ranges: Iterable[OffsetRange], until: float | None = None) -> Iterator[KafkaRecord]:
        """Yield the records of the ranges, each range in order. A new read ends the previous one.

        Args:
            ranges: At most one per partition. An end must not be past the last stable offset.
            until: Time on the reader's clock at which to stop without an error, seconds; None to read everything.

        Raises:
            BrokerUnavailableError: No answer within the connection's deadline.
            TransientError: Retention deleted records of a range before they were read.
            KpipeError: A partition cannot be read.
        """
        left = self._open = {(r.topic, r.partition): r for r in ranges if not r.is_empty}
        self._finished = []
        if not left:
            return
        if self._consumer is None:
            self._consumer = new_client(Consumer, self._config, self._settings)
        consumer = self._consumer
        consumer.assign([TopicPartition(r.topic, r.partition, r.start) for r in left.values()])
        heard_at = self._clock()
        try:
            while left:
                for message in consumer.consume(_BATCH, _POLL_S):
                    heard_at = self._clock()
                    if self._is_wanted(message):
                        yield to_record(message)
                        # Exclude the time that the caller spends on the record.
                        heard_at = self._clock()
                if self._finished:
                    # Finished partitions must not take fetch capacity from the others.
                    consumer.incremental_unassign(
                        [TopicPartition(*topic_partition) for topic_partition in self._finished]
                    )
                    self._finished = []
                now = self._clock()
                if until is not None and now >= until:
                    return
                if left and now - heard_at > self._settings.request_timeout_s:
                    topic, partition = next(iter(left))
                    raise no_answer(self._settings, f"read {topic}/{partition}", topic=topic, partition=partition)
        finally:
            if left and self._open is left and self._consumer is consumer:
                # Stop fetching between reads.
                consumer.unassign()

    def finish(self, topic_partition: Partition) -> None:
        """Stop reading a partition."""
        if self._open.pop(topic_partition, None) is not None:
            self._finished.append(topic_partition)

    def _is_wanted(self, message: Message) -> bool:
        """Return whether the message is a record of an unfinished range; finish the range at its end."""
        topic_partition = (str(message.topic()), int(message.partition() or 0))
        wanted = self._open.get(topic_partition)
        offset, error = message.offset() or 0, message.error()
        if wanted is None:
            if error is not None and message.topic() is None:
                raise translate(error, self._settings, "read records", needs="Read")
            # Fetched before its range was finished.
            return False
        if error is None:
            if offset + 1 >= wanted.end:
                self.finish(topic_partition)
            return offset < wanted.end
        if error.code() == KafkaError._PARTITION_EOF:
            # The broker may have reported this end before the last records were written. The missing records of a
            # full range are still to come, and must not be mistaken for a gap.
            if offset >= wanted.end or self._samples:
                self.finish(topic_partition)
            return False
        what, where = (
            f"read {topic_partition[0]}/{topic_partition[1]}",
            {"topic": topic_partition[0], "partition": topic_partition[1]},
        )
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # The range existed at plan time.
            msg = f"cannot {what}: retention deleted records of {wanted} during the read"
            fix = "run again to read the remaining records; to keep records longer, raise the topic's retention.ms"
            raise TransientError(msg, fix=fix, **where)
        raise translate(error, self._settings, what, needs="Read", **where)

    def close(self) -> None:
        """Close the consumer; the next read opens a new one."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def read_range(
    settings: ConnectionSettings, group: str, wanted: OffsetRange, isolation: str = "read_committed"
) -> Iterator[KafkaRecord]:
    """Yield the records of one range, in order; raises the errors of `RecordReader.read`.

    Args:
        settings: The connection.
        group: Group id of the client, which never joins the group or commits offsets.
        wanted: The range. Its end must not be past the last stable offset.
        isolation: ``"read_committed"`` or ``"read_uncommitted"``.
    """
    with RecordReader(settings, group, isolation) as reader:
        yield from reader.read([wanted])


def topic_partition_of(record: KafkaRecord) -> Partition:
    """Return the topic and partition of a record that was read."""
    return str(record.topic), int(record.partition or 0)


def to_record(message: Message) -> KafkaRecord:
    """Convert a client's message to a KafkaRecord."""
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

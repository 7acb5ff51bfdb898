"""The first record of each of many offset ranges: its timestamp, and how large the records behind it are."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from kpipe_platform.kafka.calls import no_answer, translate
from kpipe_platform.kafka.clients import Clients, new_client, reader_config
from kpipe_platform.kafka.fetch import to_record
from kpipe_platform.kafka.offsets import OffsetRange, Partition
from kpipe_platform.kafka.records import TimestampType
from kpipe_platform.kafka.sizes import BATCH_OVERHEAD_BYTES, record_size

# A sample ends at whichever comes first, so that a partition of large records costs no more than one of small ones.
SAMPLE_RECORDS = 100
_SAMPLE_BYTES = 262_144
_BATCH = 500
_POLL_S = 0.2


@dataclass(frozen=True)
class OldestRecord:
    """The first record of an offset range.

    Args:
        offset: Its offset; more than the range's start where markers or compaction left a gap there.
        timestamp_ms: Its timestamp, milliseconds since the epoch; None where it has none.
        timestamp_type: Who set the timestamp.
        mean_bytes: Mean size of the sampled records as they are without compression: more than they take on disk.
    """

    offset: int
    timestamp_ms: int | None
    timestamp_type: TimestampType | None
    mean_bytes: float


def oldest_records(
    clients: Clients, group: str, ranges: Iterable[OffsetRange], isolation: str, *, sample: int = 1
) -> dict[Partition, OldestRecord | None]:
    """Read the first record of each range; one client reads all of them at once.

    Args:
        clients: For the connection.
        group: Group id of the client; nothing is joined and nothing is committed.
        ranges: At most one for a partition.
        isolation: ``"read_committed"`` passes over records of aborted transactions.
        sample: Records of each range that count for the mean size, at most.

    Returns:
        For each partition its record; None where the range holds no record: only markers, or gaps of compaction.

    Raises:
        BrokerUnavailableError: No answer within the connection's deadline.
        KpipeError: The brokers refuse the read.
    """
    wanted = list(ranges)
    found: dict[Partition, OldestRecord | None] = dict.fromkeys(((r.topic, r.partition) for r in wanted), None)
    waiting = {(r.topic, r.partition): _Sample(r, sample) for r in wanted if not r.is_empty}
    if not waiting:
        return found
    settings = clients.settings
    config = {
        **reader_config(settings, group, isolation),
        # Retention may pass a start between the plan and the read; what is oldest then is the answer.
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        # Of each partition a few records are wanted. Brokers send at least one batch, however large.
        "fetch.message.max.bytes": 65_536,
        "queued.max.messages.kbytes": 16_384,
    }
    consumer = new_client(Consumer, config, settings)
    try:
        consumer.assign([TopicPartition(t, n, s.range.start) for (t, n), s in waiting.items()])
        deadline = time.monotonic() + settings.request_timeout_s
        while waiting:
            done = set()
            for message in consumer.consume(_BATCH, _POLL_S):
                partition = (str(message.topic()), int(message.partition() or 0))
                open_sample = waiting.get(partition)
                if open_sample is None:
                    continue
                deadline = time.monotonic() + settings.request_timeout_s
                if _takes_last(open_sample, message, clients):
                    found[partition] = open_sample.result()
                    del waiting[partition]
                    done.add(partition)
            if done:
                # What is done must not be fetched further in place of what still waits.
                consumer.incremental_unassign([TopicPartition(t, n) for t, n in done])
            elif time.monotonic() > deadline:
                topic, number = next(iter(waiting))
                raise no_answer(settings, f"read the oldest record of {topic}/{number}", topic=topic, partition=number)
    finally:
        consumer.close()
    return found


@dataclass
class _Sample:
    range: OffsetRange
    wanted: int
    first: Message | None = None
    sizes: list[int] = field(default_factory=list)

    def result(self) -> OldestRecord | None:
        if self.first is None:
            return None
        record = to_record(self.first)
        mean = sum(self.sizes) / len(self.sizes)
        return OldestRecord(int(record.offset or 0), record.timestamp_ms, record.timestamp_type, mean)


def _takes_last(sample: _Sample, message: Message, clients: Clients) -> bool:
    """Take a message; True when the range has no more to say."""
    where = sample.range
    error = message.error()
    if error is not None:
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        place = {"topic": where.topic, "partition": where.partition, "offset": where.start}
        raise translate(error, clients.settings, f"read {where.topic}/{where.partition}", **place)
    if (message.offset() or 0) >= where.end:
        return True
    if sample.first is None:
        sample.first = message
    record = to_record(message)
    sample.sizes.append(record_size(record.key, record.value, record.headers) - BATCH_OVERHEAD_BYTES)
    return len(sample.sizes) >= sample.wanted or sum(sample.sizes) >= _SAMPLE_BYTES

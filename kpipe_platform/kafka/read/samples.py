"""Read the first records of many offset ranges, and the first and last timestamp of each range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType

from kpipe_platform.kafka.client.clients import Clients
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange, Partition
from kpipe_platform.kafka.model.records import KafkaRecord, TimestampType
from kpipe_platform.kafka.model.sizes import BATCH_OVERHEAD_BYTES, record_size
from kpipe_platform.kafka.read.reader import RecordReader, topic_partition_of

# A sample ends at the limit that is reached first, so that partitions with large records cost no more than others.
SAMPLE_RECORDS = 100
_SAMPLE_BYTES = 262_144
# Number of offsets to read at a slice's end: transaction markers, which are not records, may follow the last record.
_TAIL_OFFSETS = 20


@dataclass(frozen=True)
class OldestRecord:
    """The first record of an offset range.

    Args:
        offset: Offset of the record; greater than the range's start if the range starts with a gap, left by
            transaction markers or compaction.
        timestamp_ms: Timestamp, milliseconds since the epoch; None if it has none.
        timestamp_type: Source of the timestamp.
        mean_bytes: Mean uncompressed size of the sampled records, bytes; more than they take on disk.
    """

    offset: int
    timestamp_ms: int | None
    timestamp_type: TimestampType | None
    mean_bytes: float


def oldest_records(
    clients: Clients, group: str, ranges: Iterable[OffsetRange], isolation: str, *, sample: int = 1
) -> dict[Partition, OldestRecord | None]:
    """Read the first record of each range, all with one client.

    Args:
        clients: Clients whose connection settings to use.
        group: Group id of the client, which never joins the group or commits offsets.
        ranges: At most one per partition.
        isolation: ``"read_committed"`` skips records of aborted transactions.
        sample: Maximum number of records of each range for the mean size, 1 by default.

    Returns:
        The first record of each partition; None if the range contains only transaction markers or compaction gaps.

    Raises:
        BrokerUnavailableError: No answer within the connection's deadline.
        KpipeError: The brokers refuse the read.
    """
    wanted = list(ranges)
    samples: dict[Partition, _Sample] = {}
    with RecordReader(clients.settings, group, isolation, samples=True) as reader:
        for record in reader.read(wanted):
            taken = samples.setdefault(topic_partition_of(record), _Sample(record))
            taken.sizes.append(record_size(record.key, record.value, record.headers) - BATCH_OVERHEAD_BYTES)
            if len(taken.sizes) >= sample or sum(taken.sizes) >= _SAMPLE_BYTES:
                reader.finish(topic_partition_of(record))
    topic_partitions = [(r.topic, r.partition) for r in wanted]
    return {
        topic_partition: samples[topic_partition].result() if topic_partition in samples else None
        for topic_partition in topic_partitions
    }


@dataclass
class _Sample:
    first: KafkaRecord
    sizes: list[int] = field(default_factory=list)

    def result(self) -> OldestRecord:
        first = self.first
        mean = sum(self.sizes) / len(self.sizes)
        return OldestRecord(int(first.offset or 0), first.timestamp_ms, first.timestamp_type, mean)


class TimestampReader:
    """Reads the timestamps of slices while they are processed, with one consumer that stays open.

    Args:
        settings: The connection.
        group: Group id of the client, which never joins the group or commits offsets.
        isolation: Isolation level of the plan.
        deadline_s: Maximum wait for the records of one slice, seconds, 2 by default. It is short because the
            timestamps are only reported.
        clock: Monotonic clock in seconds; injected for tests.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        group: str,
        isolation: str,
        *,
        deadline_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = RecordReader(settings, group, isolation, samples=True, clock=clock)
        self._deadline_s = deadline_s
        self._clock = clock

    def bounds(self, ranges: Iterable[OffsetRange]) -> list[int]:
        """Return the timestamps of the first and last record of each range, milliseconds since the epoch.

        Returns:
            Up to two per range; none if it contains no record, or if the brokers did not answer in time.

        Raises:
            KpipeError: The brokers refuse the read.
        """
        wanted = [r for r in ranges if not r.is_empty]
        end = self._clock() + self._deadline_s
        firsts: dict[Partition, int | None] = {}
        for record in self._reader.read(wanted, end):
            firsts[topic_partition_of(record)] = record.timestamp_ms
            self._reader.finish(topic_partition_of(record))
        tails = [replace(r, start=max(r.start + 1, r.end - _TAIL_OFFSETS)) for r in wanted]
        lasts = {topic_partition_of(record): record.timestamp_ms for record in self._reader.read(tails, end)}
        return [timestamp_ms for timestamp_ms in (*firsts.values(), *lasts.values()) if timestamp_ms is not None]

    def close(self) -> None:
        """Close the consumer; the next use opens a new one."""
        self._reader.close()

    def __enter__(self) -> TimestampReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

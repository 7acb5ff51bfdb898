"""The first records of many offset ranges, and the first and the last timestamp of each."""

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
from kpipe_platform.kafka.read.reader import RecordReader, place_of

# A sample ends at whichever comes first, so that a partition of large records costs no more than one of small ones.
SAMPLE_RECORDS = 100
_SAMPLE_BYTES = 262_144
# Behind a slice's last record may stand markers of transactions, which a reader does not see.
_TAIL_OFFSETS = 20


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
    samples: dict[Partition, _Sample] = {}
    with RecordReader(clients.settings, group, isolation, samples=True) as reader:
        for record in reader.read(wanted):
            taken = samples.setdefault(place_of(record), _Sample(record))
            taken.sizes.append(record_size(record.key, record.value, record.headers) - BATCH_OVERHEAD_BYTES)
            if len(taken.sizes) >= sample or sum(taken.sizes) >= _SAMPLE_BYTES:
                reader.finish(place_of(record))
    places = [(r.topic, r.partition) for r in wanted]
    return {place: samples[place].result() if place in samples else None for place in places}


@dataclass
class _Sample:
    first: KafkaRecord
    sizes: list[int] = field(default_factory=list)

    def result(self) -> OldestRecord:
        first = self.first
        mean = sum(self.sizes) / len(self.sizes)
        return OldestRecord(int(first.offset or 0), first.timestamp_ms, first.timestamp_type, mean)


class TimestampReader:
    """Reads the timestamps of slices, beside the work on them, with one consumer that stays open.

    Args:
        settings: The connection.
        group: Group id of the client; nothing is joined and nothing is committed.
        isolation: Isolation of the plan.
        deadline_s: How long to wait for the records of one slice, seconds: a figure for people is not worth more.
        clock: Monotonic seconds; injected for tests.
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
        """Timestamps of the first and of the last record of each range, milliseconds since the epoch.

        Returns:
            Up to two for a range; none where it holds no record, or where nobody answered in time.

        Raises:
            KpipeError: The brokers refuse the read.
        """
        wanted = [r for r in ranges if not r.is_empty]
        end = self._clock() + self._deadline_s
        firsts: dict[Partition, int | None] = {}
        for record in self._reader.read(wanted, end):
            firsts[place_of(record)] = record.timestamp_ms
            self._reader.finish(place_of(record))
        tails = [replace(r, start=max(r.start + 1, r.end - _TAIL_OFFSETS)) for r in wanted]
        lasts = {place_of(record): record.timestamp_ms for record in self._reader.read(tails, end)}
        return [stamp for stamp in (*firsts.values(), *lasts.values()) if stamp is not None]

    def close(self) -> None:
        """Close the consumer; it is opened again at the next use."""
        self._reader.close()

    def __enter__(self) -> TimestampReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

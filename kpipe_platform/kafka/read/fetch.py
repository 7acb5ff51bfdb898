"""Fetch original records by their coordinates, for dead letters of records whose bytes are no longer available."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from kpipe_platform.errors import TransientError
from kpipe_platform.kafka.client.settings import ConnectionSettings
from kpipe_platform.kafka.model.offsets import OffsetRange
from kpipe_platform.kafka.model.records import KafkaRecord
from kpipe_platform.kafka.read.reader import RecordReader

# Maximum number of open streams; each is a consumer with its own connection. The least recently used stream is closed.
_MAX_STREAMS = 16
# Maximum number of offsets to skip by reading. A seek costs a round trip and a new fetch, about 10 ms.
_MAX_AHEAD = 5_000
_LAST_OFFSET = 2**63 - 1
# Small, because most records after a requested one are not needed.
_PREFETCH_KBYTES = 4_096


class RecordFetcher:
    """Reads single records. Requests for one partition in offset order share one stream.

    Args:
        settings: The connection.
        group: Group id of the client, which never joins the group or commits offsets.
        isolation: Isolation level of the plan.
    """

    def __init__(self, settings: ConnectionSettings, group: str, isolation: str) -> None:
        self._client = (settings, group, isolation)
        self._streams: dict[tuple[str, int], _Stream] = {}

    def get(self, topic: str, partition: int, offset: int) -> KafkaRecord:
        """Return the record at these coordinates.

        Raises:
            BrokerUnavailableError: No answer within the deadline.
            TransientError: The record no longer exists, for example because of retention.
        """
        stream = self._streams.pop((topic, partition), None)
        if stream is None:
            if len(self._streams) >= _MAX_STREAMS:
                self._streams.pop(next(iter(self._streams))).close()
            stream = _Stream(RecordReader(*self._client, prefetch_kbytes=_PREFETCH_KBYTES), topic, partition)
        # Reinsert at the end, so that the first entry is the least recently used stream.
        self._streams[(topic, partition)] = stream
        return stream.at(offset)

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
    """Reads one partition forward."""

    def __init__(self, reader: RecordReader, topic: str, partition: int) -> None:
        self._reader = reader
        self._topic, self._partition = topic, partition
        self._records: Iterator[KafkaRecord] | None = None
        # The last record that was read but not requested, and the next offset to read.
        self._ahead: KafkaRecord | None = None
        self._next = 0

    def at(self, offset: int) -> KafkaRecord:
        """Return the record at this offset."""
        records, ahead = self._records, self._ahead
        # Reading on is cheaper than a new fetch, which takes about as long as reading this many records.
        if records is None or not self._next <= offset <= self._next + _MAX_AHEAD:
            records, ahead = self._reader.read([OffsetRange(self._topic, self._partition, offset, _LAST_OFFSET)]), None
        # If an error occurs, the next call starts a new read.
        self._records = None
        record = ahead or next(records)
        while (record.offset or 0) < offset:
            record = next(records)
        self._records = records
        if record.offset != offset:
            self._ahead, self._next = record, record.offset or 0
            where = {"topic": self._topic, "partition": self._partition, "offset": offset}
            msg = f"cannot read {self._topic}/{self._partition} offset {offset}: the record no longer exists"
            raise TransientError(msg, fix="run again", **where)
        self._ahead, self._next = None, offset + 1
        return record

    def close(self) -> None:
        """Close the consumer."""
        self._reader.close()

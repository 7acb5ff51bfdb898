"""The timestamps of the first and the last record of a slice, read beside the work on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from kpipe_platform.kafka.calls import translate
from kpipe_platform.kafka.clients import new_client, reader_config
from kpipe_platform.kafka.offsets import OffsetRange, Partition
from kpipe_platform.kafka.settings import ConnectionSettings

# Behind a slice's last record may stand markers of transactions, which a reader does not see.
_TAIL_OFFSETS = 20
_BATCH = 500
_POLL_S = 0.1


class StampReader:
    """Reads timestamps with one consumer, which stays open and joins no group.

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
        self._settings = settings
        self._deadline_s = deadline_s
        self._clock = clock
        self._config = {
            **reader_config(settings, group, isolation),
            "enable.partition.eof": True,
            # Two records of each partition are wanted. Brokers send at least one batch, however large.
            "fetch.message.max.bytes": 65_536,
            "queued.max.messages.kbytes": 4_096,
        }
        self._consumer: Consumer | None = None

    def bounds(self, ranges: Iterable[OffsetRange]) -> list[int]:
        """Timestamps of the first and of the last record of each range, milliseconds since the epoch.

        Returns:
            Up to two for a range; none where it holds no record, or where nobody answered in time.

        Raises:
            KpipeError: The brokers refuse the read.
        """
        wanted = [r for r in ranges if not r.is_empty]
        if not wanted:
            return []
        end = self._clock() + self._deadline_s
        firsts = self._read(wanted, 1, end)
        lasts = self._read([_tail(r) for r in wanted if r.span > 1], _TAIL_OFFSETS, end)
        return [*firsts.values(), *lasts.values()]

    def close(self) -> None:
        """Close the consumer; it is made again if asked for."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _read(self, ranges: list[OffsetRange], records: int, end: float) -> dict[Partition, int]:
        """The timestamp of the last of so many records of each range."""
        found: dict[Partition, int] = {}
        waiting = {(r.topic, r.partition): (r, records) for r in ranges}
        if not waiting:
            return found
        if self._consumer is None:
            self._consumer = new_client(Consumer, self._config, self._settings)
        self._consumer.assign([TopicPartition(r.topic, r.partition, r.start) for r in ranges])
        try:
            while waiting and self._clock() < end:
                for message in self._consumer.consume(_BATCH, _POLL_S):
                    place = (str(message.topic()), int(message.partition() or 0))
                    if place not in waiting:
                        continue
                    range_, left = waiting[place]
                    if self._is_past(message, range_):
                        del waiting[place]
                        continue
                    kind, timestamp = message.timestamp()
                    if kind != TIMESTAMP_NOT_AVAILABLE:
                        found[place] = timestamp
                    if left == 1 or (message.offset() or 0) + 1 >= range_.end:
                        del waiting[place]
                    else:
                        waiting[place] = (range_, left - 1)
        finally:
            # Nothing is fetched between two slices.
            self._consumer.unassign()
        return found

    def _is_past(self, message: Message, range_: OffsetRange) -> bool:
        error = message.error()
        if error is None:
            return (message.offset() or 0) >= range_.end
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        raise translate(error, self._settings, f"read {range_}", topic=range_.topic, partition=range_.partition)

    def __enter__(self) -> StampReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tail(range_: OffsetRange) -> OffsetRange:
    return replace(range_, start=max(range_.start + 1, range_.end - _TAIL_OFFSETS))

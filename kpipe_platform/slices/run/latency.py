"""Produce-to-commit latency of a run: percentiles with memory that does not grow with the number of slices."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from confluent_kafka import KafkaException

from kpipe_platform.errors import KpipeError
from kpipe_platform.kafka.model.slices import Slice
from kpipe_platform.kafka.read.samples import TimestampReader

logger = logging.getLogger(__name__)

# A bucket is 2% wide, which is the precision of a percentile. One day in milliseconds needs about 900 buckets.
_STEP = math.log(1.02)


@dataclass
class Latencies:
    """Latencies in buckets of equal ratio."""

    _buckets: Counter[int] = field(default_factory=Counter)
    _count: int = 0

    @property
    def count(self) -> int:
        """Number of latencies."""
        return self._count

    def add(self, latencies_ms: Iterable[int]) -> None:
        """Add latencies, milliseconds. Negative ones (the producer's clock is ahead of this one) count as 1 ms."""
        for latency_ms in latencies_ms:
            self._buckets[round(math.log(max(latency_ms, 1)) / _STEP)] += 1
            self._count += 1

    def percentiles(self, *percents: float) -> list[int | None]:
        """Return the latency at each percentile, milliseconds; None if there are no latencies."""
        return [self._percentile(percent) for percent in percents]

    def _percentile(self, percent: float) -> int | None:
        wanted = math.ceil(self._count * percent / 100)
        for bucket, count in sorted(self._buckets.items()):
            wanted -= count
            if wanted <= 0:
                return round(math.exp(bucket * _STEP))
        return None


class CommitLatency:
    """Measures the time from the produce of a slice's first and last record to the slice's commit.

    A separate thread reads the timestamps, so that the slice is not delayed. A run has one reader for all its
    partitions.

    Args:
        reader: Reads the timestamps.
        now_ms: Milliseconds since the epoch; injected for tests.
    """

    def __init__(self, reader: TimestampReader, *, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._reader = reader
        self._now_ms = now_ms
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kpipe-timestamps")

    def planned(self, slice_: Slice) -> Future[list[int]]:
        """Start reading the timestamps of a slice."""
        return self._pool.submit(self._reader.bounds, [planned.range for planned in slice_.ranges])

    def committed(self, reading: Future[list[int]]) -> list[int]:
        """Return the latencies of a slice that was just committed, milliseconds; empty if they are unknown."""
        now_ms = self._now_ms()
        try:
            return [now_ms - timestamp_ms for timestamp_ms in reading.result()]
        except (KpipeError, KafkaException) as error:
            logger.debug("the latency of a slice is unknown: %s", error)
            return []

    def close(self) -> None:
        """Stop the thread and close the reader."""
        self._pool.shutdown(cancel_futures=True)
        self._reader.close()

    def __enter__(self) -> CommitLatency:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Offset ranges and watermarks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.calls import ask, first_then
from kpipe_platform.kafka.clients import Clients

Partition = tuple[str, int]
"""A topic's name and a partition number."""


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one Kafka partition.

    The number of offsets in a range is not the number of records: transaction markers and compaction leave gaps.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end or self.partition < 0:
            msg = f"{self.topic}/{self.partition} [{self.start}, {self.end}) is not an offset range"
            raise ValueError(msg)

    @property
    def is_empty(self) -> bool:
        """True when the range holds no offset."""
        return self.start == self.end

    @property
    def span(self) -> int:
        """Number of offsets, an upper bound of the number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class Watermarks:
    """Where a partition's log begins and ends.

    Args:
        log_start: First offset that can still be read.
        end: Next offset to be read at this isolation: the last stable offset under read_committed, the log
            end under read_uncommitted.
    """

    log_start: int
    end: int


def watermarks(clients: Clients, partitions: Iterable[Partition], isolation: str) -> dict[Partition, Watermarks]:
    """Log start and end of each partition, in two calls whatever their number.

    Args:
        clients: The clients to use.
        partitions: Pairs of topic and partition number.
        isolation: ``"read_committed"`` (end is the last stable offset) or ``"read_uncommitted"``.

    Raises:
        TopicNotFoundError: A topic or partition does not exist.
        BrokerUnavailableError: No answer within the deadline.
    """
    wanted = list(partitions)
    starts = _list_offsets(clients, wanted, OffsetSpec.earliest(), isolation)
    ends = _list_offsets(clients, wanted, OffsetSpec.latest(), isolation)
    return {p: Watermarks(starts[p], max(starts[p], ends[p])) for p in wanted}


def offsets_at(
    clients: Clients, partitions: Iterable[Partition], timestamp_ms: int, isolation: str
) -> dict[Partition, int | None]:
    """First offset with a timestamp at or after ``timestamp_ms``; None where there is no such record."""
    found = _list_offsets(clients, list(partitions), OffsetSpec.for_timestamp(timestamp_ms), isolation)
    return {p: None if offset < 0 else offset for p, offset in found.items()}


def _list_offsets(
    clients: Clients, partitions: list[Partition], spec: OffsetSpec, isolation: str
) -> dict[Partition, int]:
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    settings = clients.settings
    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}

    def request() -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        return clients.admin().list_offsets(wanted, isolation_level=level, request_timeout=settings.request_timeout_s)

    # One request for all partitions; where one of them has no leader yet, that one is asked again by itself.
    futures = request()
    found = {}
    for tp, future in futures.items():
        found[(tp.topic, tp.partition)] = ask(
            first_then(future, partial(_one_of, request, tp)),
            clients,
            f"list offsets of {tp.topic}/{tp.partition}",
            topic=tp.topic,
            partition=tp.partition,
        ).offset
    return found


def _one_of(
    request: Callable[[], dict[TopicPartition, Future[ListOffsetsResultInfo]]], tp: TopicPartition
) -> Future[ListOffsetsResultInfo]:
    return request()[tp]


def parse_start(start: str | int | dt.datetime) -> str | int:
    """A start policy: ``"earliest"``, ``"latest"``, ``"error"``, or a timestamp in milliseconds since 1970.

    Args:
        start: One of the three words, an ISO 8601 date or time (UTC where it names no zone), a datetime, or
            milliseconds.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(start, str):
        if start in ("earliest", "latest", "error"):
            return start
        try:
            start = int(start) if start.isdigit() else dt.datetime.fromisoformat(start.replace("Z", "+00:00"))
        except ValueError:
            msg = f"start is {start!r}, which is neither a policy nor a time"
            raise ConfigError(
                msg, fix='use "earliest", "latest", "error" or a time such as "2026-01-31T00:00:00Z"'
            ) from None
    if isinstance(start, dt.datetime):
        if start.tzinfo is None:
            start = start.replace(tzinfo=dt.timezone.utc)
        return int(start.timestamp() * 1000)
    return start

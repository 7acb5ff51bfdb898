"""Offset ranges and watermarks."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.client.calls import RequestText, ask, ask_each, run_in_thread
from kpipe_platform.kafka.client.clients import Clients

Partition = tuple[str, int]
"""A topic's name and a partition number."""

Before = TypeVar("Before")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets ``[start, end)`` of one Kafka partition.

    The number of offsets is not the number of records, because transaction markers and compaction leave gaps.
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
        """True if the range contains no offset."""
        return self.start == self.end

    @property
    def span(self) -> int:
        """Number of offsets, an upper bound on the number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True)
class Watermarks:
    """Log start and end of a partition.

    Args:
        log_start: First offset that can still be read.
        end: End of the readable offsets at this isolation, exclusive: the last stable offset under read_committed,
            the log end under read_uncommitted.
    """

    log_start: int
    end: int


def read_watermarks(clients: Clients, partitions: Iterable[Partition], isolation: str) -> dict[Partition, Watermarks]:
    """Return the log start and end of each partition, in two calls for any number of partitions.

    Args:
        clients: The clients to use.
        partitions: Pairs of topic and partition number.
        isolation: ``"read_committed"`` (end is the last stable offset) or ``"read_uncommitted"``.

    Raises:
        TopicNotFoundError: A topic or partition does not exist.
        BrokerUnavailableError: No answer within the deadline.
    """
    wanted = list(dict.fromkeys(partitions))
    # Send both requests before waiting for either.
    starts = _send(clients, wanted, OffsetSpec.earliest(), isolation)
    ends = _send(clients, wanted, OffsetSpec.latest(), isolation)
    return _paired(wanted, starts(), ends())


def watermarks_around(
    clients: Clients, group: str, partitions: Iterable[Partition], isolation: str, read: Callable[[], Before]
) -> tuple[dict[Partition, Watermarks], Before]:
    """Return watermarks and the result of ``read``: log starts are read concurrently with it, ends after it.

    So an offset that ``read`` returns is never past the end, and a log start is never past what was processed by then.
    The requests use the group's consumer, because the admin client creates a future for each partition, which takes
    longer than the response.

    Args:
        clients: The clients to use.
        group: Consumer group whose consumer sends the requests; it does not affect the result.
        partitions: Pairs of topic and partition number.
        isolation: Isolation of the ends.
        read: The other request, for example for the group's committed offsets.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    wanted = list(dict.fromkeys(partitions))
    starts = run_in_thread(partial(_ask_consumer, clients, group, wanted, OFFSET_BEGINNING, isolation))
    try:
        before = read()
        ends = _ask_consumer(clients, group, wanted, OFFSET_END, isolation)
    finally:
        # Closing a consumer during a call crashes the process.
        wait([starts])
    return _paired(wanted, starts.result(), ends), before


def _paired(partitions: Sequence[Partition], starts: list[int], ends: list[int]) -> dict[Partition, Watermarks]:
    rows = zip(partitions, starts, ends, strict=True)
    return {topic_partition: Watermarks(start, max(start, end)) for topic_partition, start, end in rows}


def offsets_at(
    clients: Clients, partitions: Iterable[Partition], timestamp_ms: int, isolation: str
) -> dict[Partition, int | None]:
    """Return the first offset with a timestamp at or after ``timestamp_ms``; None if there is no such record."""
    wanted = list(dict.fromkeys(partitions))
    offsets = _send(clients, wanted, OffsetSpec.for_timestamp(timestamp_ms), isolation)()
    return {p: None if offset < 0 else offset for p, offset in zip(wanted, offsets, strict=True)}


def _send(
    clients: Clients, partitions: Sequence[Partition], spec: OffsetSpec, isolation: str
) -> Callable[[], list[int]]:
    """Request one offset of each partition, in one call; the results are in the order of the partitions."""
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    settings = clients.settings
    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}

    def request() -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        return clients.admin().list_offsets(wanted, isolation_level=level, request_timeout=settings.request_timeout_s)

    # A partition without a leader is retried separately.
    answers = ask_each(request, clients, _request_text)
    return lambda: [result.offset for result in answers().values()]


def _ask_consumer(
    clients: Clients, group: str, partitions: Sequence[Partition], which: int, isolation: str
) -> list[int]:
    """Request one offset of each partition, with a consumer that never joins its group.

    Source: Kafka protocol ListOffsets, where the timestamps -2 and -1 mean log start and log end.
    """
    settings = clients.settings
    wanted = [TopicPartition(topic, number, which) for topic, number in partitions]

    def request() -> Future[list[int]]:
        answer: Future[list[int]] = Future()
        offsets = clients.consumer(group, isolation).offsets_for_times(wanted, timeout=settings.request_timeout_s)
        answer.set_result(offsets_of(offsets))
        return answer

    topics = ", ".join(dict.fromkeys(topic for topic, _ in partitions))
    return ask(request, clients, f"list offsets of {topics}", group=group)


def offsets_of(answered: Sequence[TopicPartition]) -> list[int]:
    """Return the offsets in a response for several partitions.

    Raises:
        KafkaException: A partition has an error.
    """
    failed = next((tp.error for tp in answered if tp.error is not None), None)
    if failed is not None:
        raise KafkaException(failed)
    return [tp.offset for tp in answered]


def _request_text(tp: TopicPartition) -> RequestText:
    where = {"topic": tp.topic, "partition": tp.partition}
    return RequestText(f"list offsets of {tp.topic}/{tp.partition}", where)


def parse_start(start: str) -> str | int:
    """Parse a start policy: ``"earliest"``, ``"latest"``, ``"error"``, or a timestamp in milliseconds since 1970.

    Args:
        start: One of the three words, or a time that `parse_time` accepts.

    Raises:
        ConfigError: The text is none of these.
    """
    if start in ("earliest", "latest", "error"):
        return start
    return parse_time(start, "start", or_else='"earliest", "latest", "error"')


def parse_time(text: str, what: str, *, or_else: str = "") -> int:
    """Parse a time to milliseconds since 1970.

    Args:
        text: An ISO 8601 date or time with hyphens (UTC if it has no time zone), or milliseconds since 1970 in 13
            digits. Any other number is refused, because 20260131 could be a date or milliseconds.
        what: Name of the option, for the error.
        or_else: Other values that the option accepts, for the error.

    Raises:
        ConfigError: The text is neither, or the time is before 1970, because Kafka uses negative timestamps for log
            start and log end.
    """
    if re.fullmatch("[0-9]{13}", text):
        return int(text)
    try:
        # Python 3.10 does not accept Z, and later versions also accept dates without hyphens.
        when = dt.datetime.fromisoformat(text.replace("Z", "+00:00")) if re.match("[0-9]{4}-[0-9]{2}-", text) else None
    except ValueError:
        when = None
    if when is not None:
        ms = ((when if when.tzinfo else when.replace(tzinfo=dt.timezone.utc)) - _EPOCH) // dt.timedelta(milliseconds=1)
        if ms >= 0:
            return ms
    forms = "a time since 1970, such as 2026-01-31, 2026-01-31T06:00:00Z or 1769839200000 (milliseconds, 13 digits)"
    msg = f"{what} is {text!r}, which is not a valid time"
    raise ConfigError(msg, fix=f"use {or_else}, or {forms}" if or_else else f"use {forms}")

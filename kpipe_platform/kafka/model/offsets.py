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
from kpipe_platform.kafka.client.calls import Asked, ask, ask_each, beside
from kpipe_platform.kafka.client.clients import Clients

Partition = tuple[str, int]
"""A topic's name and a partition number."""

Before = TypeVar("Before")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


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
    wanted = list(dict.fromkeys(partitions))
    # Both are under way before the first is awaited.
    starts = _send(clients, wanted, OffsetSpec.earliest(), isolation)
    ends = _send(clients, wanted, OffsetSpec.latest(), isolation)
    return _paired(wanted, starts(), ends())


def watermarks_around(
    clients: Clients, group: str, partitions: Iterable[Partition], isolation: str, read: Callable[[], Before]
) -> tuple[dict[Partition, Watermarks], Before]:
    """The same around another question: log starts are read beside it, ends behind its answer.

    So an offset that ``read`` finds is no further than the end, and a log start no further than what was done by then.
    The group's consumer asks: for each partition the admin client makes a future, which takes longer than the answer.

    Args:
        clients: The clients to use.
        group: Whose consumer asks; it has no part in the answer.
        partitions: Pairs of topic and partition number.
        isolation: Isolation of the ends.
        read: The other question.

    Raises:
        BrokerUnavailableError: No answer within the deadline.
    """
    wanted = list(dict.fromkeys(partitions))
    starts = beside(partial(_ask_consumer, clients, group, wanted, OFFSET_BEGINNING, isolation))
    try:
        before = read()
        ends = _ask_consumer(clients, group, wanted, OFFSET_END, isolation)
    finally:
        # A consumer that is closed in the middle of a call takes the process down.
        wait([starts])
    return _paired(wanted, starts.result(), ends), before


def _paired(partitions: Sequence[Partition], starts: list[int], ends: list[int]) -> dict[Partition, Watermarks]:
    found = zip(partitions, starts, ends, strict=True)
    return {place: Watermarks(start, max(start, end)) for place, start, end in found}


def offsets_at(
    clients: Clients, partitions: Iterable[Partition], timestamp_ms: int, isolation: str
) -> dict[Partition, int | None]:
    """First offset with a timestamp at or after ``timestamp_ms``; None where there is no such record."""
    wanted = list(dict.fromkeys(partitions))
    found = _send(clients, wanted, OffsetSpec.for_timestamp(timestamp_ms), isolation)()
    return {p: None if offset < 0 else offset for p, offset in zip(wanted, found, strict=True)}


def _send(
    clients: Clients, partitions: Sequence[Partition], spec: OffsetSpec, isolation: str
) -> Callable[[], list[int]]:
    """Ask for one offset of each partition, in one request; the answers are in the order of the partitions."""
    level = IsolationLevel.READ_COMMITTED if isolation == "read_committed" else IsolationLevel.READ_UNCOMMITTED
    settings = clients.settings
    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}

    def request() -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        return clients.admin().list_offsets(wanted, isolation_level=level, request_timeout=settings.request_timeout_s)

    # Where one of the partitions has no leader yet, that one is asked again by itself.
    answers = ask_each(request, clients, _asked_of)
    return lambda: [found.offset for found in answers().values()]


def _ask_consumer(
    clients: Clients, group: str, partitions: Sequence[Partition], which: int, isolation: str
) -> list[int]:
    """The same by a consumer that never joins its group.

    Source: in Kafka's protocol (ListOffsets) log start and end are times, by the numbers that name them as offsets.
    """
    settings = clients.settings
    wanted = [TopicPartition(topic, number, which) for topic, number in partitions]

    def request() -> Future[list[int]]:
        answer: Future[list[int]] = Future()
        found = clients.consumer(group, isolation).offsets_for_times(wanted, timeout=settings.request_timeout_s)
        answer.set_result(offsets_of(found))
        return answer

    topics = ", ".join(dict.fromkeys(topic for topic, _ in partitions))
    return ask(request, clients, f"list offsets of {topics}", group=group)


def offsets_of(found: Sequence[TopicPartition]) -> list[int]:
    """The offsets of an answer about several partitions.

    Raises:
        KafkaException: One of them has an error instead.
    """
    failed = next((tp.error for tp in found if tp.error is not None), None)
    if failed is not None:
        raise KafkaException(failed)
    return [tp.offset for tp in found]


def _asked_of(tp: TopicPartition) -> Asked:
    where = {"topic": tp.topic, "partition": tp.partition}
    return Asked(f"list offsets of {tp.topic}/{tp.partition}", where)


def parse_start(start: str) -> str | int:
    """A start policy: ``"earliest"``, ``"latest"``, ``"error"``, or a timestamp in milliseconds since 1970.

    Args:
        start: One of the three words, or a time as `parse_time` takes it.

    Raises:
        ConfigError: It is none of these.
    """
    if start in ("earliest", "latest", "error"):
        return start
    return parse_time(start, "start", or_else='"earliest", "latest", "error"')


def parse_time(text: str, what: str, *, or_else: str = "") -> int:
    """A time as milliseconds since 1970.

    Args:
        text: An ISO 8601 date or time with its hyphens (UTC where it names no zone), or milliseconds since 1970 in 13
            digits. Any other number is refused: 20260131 is a date to one reader and milliseconds to another.
        what: Name of the option, for the error.
        or_else: What else the option takes, for the error.

    Raises:
        ConfigError: It is neither, or is before 1970, which Kafka takes for a name of the log's start or end.
    """
    if re.fullmatch("[0-9]{13}", text):
        return int(text)
    try:
        # Python 3.10 reads no Z, and later versions also read dates without hyphens.
        when = dt.datetime.fromisoformat(text.replace("Z", "+00:00")) if re.match("[0-9]{4}-[0-9]{2}-", text) else None
    except ValueError:
        when = None
    if when is not None:
        ms = ((when if when.tzinfo else when.replace(tzinfo=dt.timezone.utc)) - _EPOCH) // dt.timedelta(milliseconds=1)
        if ms >= 0:
            return ms
    forms = "a time since 1970: 2026-01-31, 2026-01-31T06:00:00Z, or milliseconds in 13 digits"
    msg = f"{what} is {text!r}, which is not a time that can be read"
    raise ConfigError(msg, fix=f"use {or_else}, or {forms}" if or_else else f"use {forms}")

"""Select dead letters by origin, time, exception and position."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.offsets import parse_time


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions that a dead letter must meet. All given conditions must hold; one matching value is enough for each.

    Names are case-sensitive shell patterns (``*``, ``?``, ``[...]``).

    Args:
        topics: Original topic.
        partitions: Original partition.
        since_ms: Dead-lettered at this time or later, milliseconds since the epoch. If a dead letter has only its
            record's timestamp, that timestamp is compared.
        until_ms: Dead-lettered before this time, milliseconds since the epoch.
        exceptions: Class of the last exception or of its cause, with or without its module: ``*.JsonParseException``
            or ``JsonParseException``.
        rules: Name of a failed rule, the fault's kind, or Connect's stage.
        assets: Asset, connector or consumer group that gave up on the record.
        places: Partition and offset of the dead letter itself.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    exceptions: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    places: tuple[tuple[int, int], ...] = ()

    def takes(self, found: FoundDeadLetter) -> bool:
        """Return whether a dead letter meets the conditions."""
        original, record, time_ms = found.original, found.dead_letter, found.time_ms
        if self.places and (record.partition, record.offset) not in self.places:
            return False
        if self.partitions and original.partition not in self.partitions:
            return False
        if self.since_ms is not None and (time_ms is None or time_ms < self.since_ms):
            return False
        if self.until_ms is not None and (time_ms is None or time_ms >= self.until_ms):
            return False
        names = (found.exception_type, found.cause_type)
        return (
            _matches(self.topics, [original.topic])
            and _matches(self.exceptions, [*names, *(_short(name) for name in names)])
            and _matches(self.rules, [found.kind, *found.rules])
            and _matches(self.assets, [found.who])
        )


def parse_place(text: str) -> tuple[int, int]:
    """Parse the partition and offset of a dead letter from ``PARTITION@OFFSET``.

    Raises:
        ConfigError: The text does not have this form.
    """
    partition, _, offset = text.partition("@")
    if partition.isdecimal() and offset.isdecimal():
        return int(partition), int(offset)
    msg = f"{text!r} is not the position of a dead letter"
    raise ConfigError(msg, fix="use partition@offset as shown by kpipe dlq list, for example 0@42")


def make_filter(
    *,
    topics: Iterable[str] = (),
    partitions: Iterable[int] = (),
    since: str | None = None,
    until: str | None = None,
    exceptions: Iterable[str] = (),
    rules: Iterable[str] = (),
    assets: Iterable[str] = (),
    places: Iterable[str] = (),
) -> DeadLetterFilter:
    """Create a filter from command-line options or configuration values.

    Raises:
        ConfigError: A time or a place is invalid, or ``since`` is not before ``until``.
    """
    since_ms = None if since is None else parse_time(since, "since")
    until_ms = None if until is None else parse_time(until, "until")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        msg = f"since ({_shown(since_ms)}) is not before until ({_shown(until_ms)})"
        raise ConfigError(msg, fix="set since to the earlier time and until to the later time")
    return DeadLetterFilter(
        tuple(topics),
        tuple(partitions),
        since_ms,
        until_ms,
        tuple(exceptions),
        tuple(rules),
        tuple(assets),
        tuple(parse_place(text) for text in places),
    )


def _matches(patterns: tuple[str, ...], names: Iterable[str | None]) -> bool:
    if not patterns:
        return True
    return any(name is not None and fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _short(name: str | None) -> str | None:
    return None if name is None else name.rpartition(".")[2]


def _shown(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc).isoformat()

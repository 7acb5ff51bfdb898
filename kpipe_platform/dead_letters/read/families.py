"""The header families that kpipe reads: its own, Kafka Connect's, Spring Kafka's, and those of installed packages.

A header family is the set of header names by which one tool says where a dead letter comes from and why it is there.
A package adds one by an entry point of the group `ENTRY_POINT_GROUP`, which names a `HeaderFamily`.

Source: Kafka Connect ``DeadLetterQueueReporter``; Spring Kafka ``DeadLetterPublishingRecoverer`` and its retry topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import NamedTuple

from kpipe_platform.dead_letters.envelope.origin import ORIGIN_HEADER, REDACTED_HEADER
from kpipe_platform.dead_letters.read.found import FoundDeadLetter
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.records import Headers

ENTRY_POINT_GROUP = "kpipe_platform.dead_letter_families"
"""Group of the entry points that add header families."""

ADD_A_FAMILY = (
    f"for dead letters of a tool that kpipe does not know, install a package with an entry point of group "
    f"{ENTRY_POINT_GROUP!r} that names its HeaderFamily"
)
"""How to make dead letters readable that another tool wrote; part of error messages."""


@dataclass(frozen=True, slots=True)
class HeaderFamily:
    """The names of one tool's error headers; None, or no names, for what the tool does not write.

    Where several names are given, the first one that the dead letter has counts. When several hops left their headers,
    the oldest original coordinates and the newest exception count.

    Args:
        name: Shown by ``kpipe dlq``; no two families have the same.
        topic: Original topic.
        partition: Original partition.
        offset: Original offset.
        timestamp: Original timestamp, milliseconds.
        exceptions: The exception's class.
        cause: Class of the exception's cause.
        messages: The exception's message.
        stacktraces: Its stack trace.
        kind: A short reason.
        asset: Who gave the record up: an asset or a connector.
        group: The consumer group that gave it up.
        run: The run or task.
        attempts: How often the record was tried.
        prefixes: How the names of the tool's headers begin. They are error headers: a redrive strips them.
        names: Further names of its error headers.
        binary_numbers: Whether numbers may be big-endian integers, and not only text.
        keeps_timestamp: Whether the dead letter has the record's own timestamp, rather than the time of its failure.
        refine: Called with what the headers of a dead letter say, returns it with what else the tool's rules imply:
            another exception, the record out of a document in the value, or ``from_source`` where the tool does not
            copy the whole record.
    """

    name: str
    topic: str | None = None
    partition: str | None = None
    offset: str | None = None
    timestamp: str | None = None
    exceptions: tuple[str, ...] = ()
    cause: str | None = None
    messages: tuple[str, ...] = ()
    stacktraces: tuple[str, ...] = ()
    kind: str | None = None
    asset: str | None = None
    group: str | None = None
    run: str | None = None
    attempts: str | None = None
    prefixes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    binary_numbers: bool = False
    keeps_timestamp: bool = False
    refine: Callable[[FoundDeadLetter], FoundDeadLetter] | None = None


def _spring(name: str, prefix: str, prefixes: tuple[str, ...]) -> HeaderFamily:
    original, exception, key = f"{prefix}original-", f"{prefix}exception-", f"{prefix}key-exception-"
    return HeaderFamily(
        name,
        topic=f"{original}topic",
        partition=f"{original}partition",
        offset=f"{original}offset",
        timestamp=f"{original}timestamp",
        exceptions=(f"{exception}fqcn", f"{key}fqcn"),
        cause=f"{exception}cause-fqcn",
        messages=(f"{exception}message", f"{key}message"),
        stacktraces=(f"{exception}stacktrace", f"{key}stacktrace"),
        group=f"{original}consumer-group",
        attempts="retry_topic-attempts",
        prefixes=(*prefixes, "retry_topic-"),
        names=("springDeserializerExceptionKey", "springDeserializerExceptionValue"),
        binary_numbers=True,
    )


CONNECT = HeaderFamily(
    "connect",
    topic="__connect.errors.topic",
    partition="__connect.errors.partition",
    offset="__connect.errors.offset",
    exceptions=("__connect.errors.exception.class.name",),
    messages=("__connect.errors.exception.message",),
    stacktraces=("__connect.errors.exception.stacktrace",),
    kind="__connect.errors.stage",
    asset="__connect.errors.connector.name",
    run="__connect.errors.task.id",
    prefixes=("__connect.errors.",),
    keeps_timestamp=True,
)
SPRING = _spring("spring", "kafka_dlt-", ("kafka_dlt-",))
# Dead letters that went through Spring's retry topics have these names.
SPRING_RETRY = _spring("spring_retry", "kafka_", ("kafka_original-", "kafka_exception-", "kafka_key-exception-"))


class _Known(NamedTuple):
    families: tuple[HeaderFamily, ...]
    names: frozenset[str]
    prefixes: tuple[str, ...]


@lru_cache(maxsize=1)
def _known() -> _Known:
    """All families, once in each process; an entry point that fails is tried again by the next call."""
    families = [CONNECT, SPRING, SPRING_RETRY]
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        family = _loaded(entry_point)
        if family.name in {each.name for each in families} | {"kpipe", "unknown"}:
            msg = f"entry point {entry_point.name!r} adds a second dead-letter family named {family.name!r}"
            raise ConfigError(msg, fix="give it another name, or uninstall one of the packages")
        families.append(family)
    names = {REDACTED_HEADER, ORIGIN_HEADER}.union(*(family.names for family in families))
    prefixes = tuple(dict.fromkeys(prefix for family in families for prefix in family.prefixes))
    return _Known(tuple(families), frozenset(names), prefixes)


def _loaded(entry_point: metadata.EntryPoint) -> HeaderFamily:
    where = f"entry point {entry_point.name!r} = {entry_point.value!r} of group {ENTRY_POINT_GROUP!r}"
    try:
        family = entry_point.load()
    except Exception as error:  # importing runs the package's code
        msg = f"{where} cannot be loaded: {type(error).__name__}: {error}"
        raise ConfigError(msg, fix="correct the package that has it, or uninstall it") from error
    if not isinstance(family, HeaderFamily):
        msg = f"{where} names {type(family).__name__}"
        raise ConfigError(msg, fix="let it name a kpipe_platform.dead_letters.HeaderFamily")
    return family


def header_families() -> tuple[HeaderFamily, ...]:
    """The families that are known here.

    Raises:
        ConfigError: An entry point does not load, or does not name a family.
    """
    return _known().families


def is_error_header(name: str) -> bool:
    """Whether a header of that name belongs to a dead letter and not to its record."""
    _, names, prefixes = _known()
    return name in names or name.startswith(prefixes)


def own_headers(headers: Headers) -> Headers:
    """The record's own headers, untouched and in their order."""
    _, names, prefixes = _known()
    return tuple(pair for pair in headers if pair[0] not in names and not pair[0].startswith(prefixes))
